# LoRA adaptation: a target of its own, `snakemake adaptation`, that `all` does not ask for.


localrules:
    adaptation,


ADAPTATION = CONFIG.settings.get("adaptation", {"in_report": False, "target_modules": {}})
ADAPTATION_STUDIES = ["adaptation", "adaptation_axes"]
if ADAPTATION["in_report"]:
    STUDY_NAMES += ADAPTATION_STUDIES
ADAPTER_FILES = [
    f"{LAYOUT.adapter}/adapter_{name}" for name in ("model.safetensors", "config.json")
]
NOT_TRAINED_BY = ["encoders", "datasets", "seeds", "fractions", "conditions", "in_report"]


rule adapt:
    input:
        manifest=LAYOUT.manifest,
        split=LAYOUT.split,
        features=LAYOUT.features.replace("{condition}", "clean"),
        encoder=inputs_of_encoder,
    output:
        weights=ADAPTER_FILES[0],
        config=ADAPTER_FILES[1],
        head=LAYOUT.adapted_head,
        log=LAYOUT.training,
    log:
        LAYOUT.log("adapt", "{encoder}/{dataset}/seed{seed}/frac{percent}"),
    conda:
        "../../envs/gpu.yaml"
    threads: EXTRACTION["workers"] + 1
    resources:
        gpu=int(EXTRACTION["device"] == "cuda"),
        mem_mb=needs("adaptation", "mem_mb"),
        runtime=needs("adaptation", "runtime"),
    params:
        encoder=encoder_spec,
        recipe={
            key: value
            for key, value in ADAPTATION.items()
            if key not in [*NOT_TRAINED_BY, "target_modules"]
        },
        targets=lambda wc: ADAPTATION["target_modules"].get(wc.encoder),
        image=CONFIG.settings["image"],
        device=EXTRACTION["device"],
    script:
        "../scripts/adapt.py"


rule adapted_runs:
    input:
        adapter=ADAPTER_FILES,
        head=LAYOUT.adapted_head,
        log=LAYOUT.training,
        manifest=LAYOUT.manifest,
        test=LAYOUT.test,
        split=LAYOUT.split,
        targets=lambda wc: [
            LAYOUT.at(LAYOUT.manifest, dataset=name)
            for name in GRID.adapted_conditions(wc.dataset, int(wc.percent))
            if name in CONFIG.targets
        ],
    output:
        LAYOUT.adapted_runs,
    log:
        LAYOUT.log("adapted_runs", "{encoder}/{dataset}/seed{seed}/frac{percent}"),
    conda:
        "../../envs/gpu.yaml"
    threads: EXTRACTION["workers"] + 1
    resources:
        gpu=int(EXTRACTION["device"] == "cuda"),
        mem_mb=needs("extraction", "mem_mb"),
        runtime=needs("extraction", "runtime"),
    params:
        conditions=lambda wc: GRID.adapted_conditions(wc.dataset, int(wc.percent)),
        perturbations={kind: list(levels) for kind, levels in CONFIG.perturbations.items()},
        image=CONFIG.settings["image"],
        precision=EXTRACTION["precision"],
        batch_size=EXTRACTION["batch_size"],
        excluded_classes=lambda wc: CONFIG.dataset(wc.dataset).excluded_classes,
    script:
        "../scripts/adapted_runs.py"


rule adaptation:
    input:
        frozen=[LAYOUT.run_file(run) for run in GRID.adapted_runs()],
        adapted=sorted(
            {
                LAYOUT.at(
                    LAYOUT.adapted_runs,
                    encoder=run.encoder,
                    dataset=run.dataset,
                    seed=run.seed,
                    percent=run.percent,
                )
                for run in GRID.adapted_runs()
            }
        ),
        scoring=CONFIG.scoring_file,
    output:
        tables=expand(LAYOUT.study, study=ADAPTATION_STUDIES),
        figures=expand(LAYOUT.study_figure, study=ADAPTATION_STUDIES),
    log:
        LAYOUT.log("studies", "adaptation"),
    conda:
        "../../envs/cpu.yaml"
    params:
        **PANEL,
        recipe=ADAPTATION,
    script:
        "../scripts/adaptation.py"
