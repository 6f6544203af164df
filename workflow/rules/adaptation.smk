# LoRA adaptation: a target of its own, `snakemake adaptation`, that `all` does not ask for.
from dataclasses import asdict

from crsbench.adaptation.settings import Recipe

ADAPTATION = CONFIG.settings.get("adaptation", {"in_report": False, "target_modules": {}})
ADAPTER_FILES = [
    f"{LAYOUT.adapter}/adapter_{name}" for name in ("model.safetensors", "config.json")
]
RECIPE = Recipe.from_settings(ADAPTATION) if "rank" in ADAPTATION else None


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
        made_by=lambda wc: clean_settings(wc).made_by,
        trained_by=RECIPE and asdict(RECIPE),
        target_modules=lambda wc: ADAPTATION["target_modules"].get(wc.encoder),
        recipe=RECIPE,
        settings=clean_settings,
        frozen=extraction_settings,
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
        targets=lambda wc: expand(LAYOUT.manifest, dataset=adapted_targets(wc)),
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
        targets=adapted_targets,
        made_by=lambda wc: settings_of_adapted(wc).made_by,
        excluded_classes=excluded_classes_of,
        settings=settings_of_adapted,
    script:
        "../scripts/adapted_runs.py"
