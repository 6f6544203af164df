# From images to features: one job per encoder × data set decodes each image once for all its views.


EXTRACTION = CONFIG.settings["extraction"]


rule features:
    input:
        manifest=LAYOUT.manifest,
        test=LAYOUT.test,
        encoder=existing_encoder_files,
    output:
        expand(LAYOUT.features, condition=["clean", *GRID.degraded], allow_missing=True),
    log:
        LAYOUT.log("features", "{encoder}/{dataset}"),
    conda:
        "../../envs/gpu.yaml"
    threads: EXTRACTION["workers"] + 1
    resources:
        gpu=int(EXTRACTION["device"] == "cuda"),
        mem_mb=needs("extraction", "mem_mb"),
        runtime=needs("extraction", "runtime"),
    params:
        encoder=encoder_spec,
        image=CONFIG.settings["image"],
        perturbations={kind: list(levels) for kind, levels in CONFIG.perturbations.items()},
        device=EXTRACTION["device"],
        precision=EXTRACTION["precision"],
        batch_size=EXTRACTION["batch_size"],
    script:
        "../scripts/features.py"


rule shift_features:
    input:
        manifest=LAYOUT.manifest.replace("{dataset}", "{target}"),
        encoder=existing_encoder_files,
    output:
        LAYOUT.features.replace("{condition}", "{target}"),
    log:
        LAYOUT.log("features", "{encoder}/{dataset}-{target}"),
    conda:
        "../../envs/gpu.yaml"
    threads: EXTRACTION["workers"] + 1
    resources:
        gpu=int(EXTRACTION["device"] == "cuda"),
        mem_mb=needs("extraction", "mem_mb"),
        runtime=needs("extraction", "runtime"),
    params:
        encoder=encoder_spec,
        image=CONFIG.settings["image"],
        device=EXTRACTION["device"],
        precision=EXTRACTION["precision"],
        batch_size=EXTRACTION["batch_size"],
    script:
        "../scripts/features.py"
