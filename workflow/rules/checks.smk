# What can be done before a run: fetch the weights, see whether all that it needs is there.


localrules:
    stage,
    doctor,


rule stage:
    log:
        LAYOUT.log("stage"),
    conda:
        "../../envs/gpu.yaml"
    script:
        "../scripts/stage.py"


rule doctor:
    log:
        LAYOUT.log("doctor"),
    conda:
        "../../envs/gpu.yaml"
    script:
        "../scripts/doctor.py"
