# What can be done before a run: see what it costs, fetch the weights, see whether all is there,
# and whether the encoders keep to what every encoder must.


localrules:
    stage,
    doctor,
    conformance,
    plan,


rule stage:
    log:
        LAYOUT.log("stage"),
    conda:
        "../../envs/gpu.yaml"
    params:
        config=CONFIG,
    script:
        "../scripts/stage.py"


rule doctor:
    log:
        LAYOUT.log("doctor"),
    conda:
        "../../envs/gpu.yaml"
    params:
        config=CONFIG,
    script:
        "../scripts/doctor.py"


rule conformance:
    log:
        LAYOUT.log("conformance"),
    conda:
        "../../envs/gpu.yaml"
    params:
        config=CONFIG,
    script:
        "../scripts/conformance.py"


rule plan:
    log:
        LAYOUT.log("plan"),
    run:
        from crsbench.operations.plan import formatted

        print(f"\n{formatted(CONFIG)}\n", flush=True)
