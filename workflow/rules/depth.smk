# Depth sweep: features at several depths in one forward pass, the same probe on each.


DEPTH_SWEEP = CONFIG.settings.get("depth_sweep", {"depths": [], "without_norm": []})
DEPTHS = sorted(DEPTH_SWEEP["depths"])


rule depth_features:
    input:
        manifest=LAYOUT.manifest,
        encoder=inputs_of_encoder,
    output:
        expand(LAYOUT.depth_features, depth=DEPTHS or ["none"], allow_missing=True),
    log:
        LAYOUT.log("depth_features", "{encoder}/{dataset}"),
    conda:
        "../../envs/gpu.yaml"
    threads: EXTRACTION["workers"] + 1
    resources:
        gpu=int(EXTRACTION["device"] == "cuda"),
        mem_mb=needs("extraction", "mem_mb"),
        runtime=needs("extraction", "runtime"),
    params:
        made_by=lambda wc: clean_settings(wc).made_by,
        depths=DEPTHS,
        without_norm=lambda wc: wc.encoder in DEPTH_SWEEP["without_norm"],
        settings=clean_settings,
    script:
        "../scripts/depth_features.py"


rule depth_runs:
    input:
        features=rules.depth_features.output,
        manifest=LAYOUT.manifest,
        splits=expand(LAYOUT.split, seed=CONFIG.seeds, allow_missing=True),
    output:
        LAYOUT.depth_runs,
    log:
        LAYOUT.log("depth_runs", "{encoder}/{dataset}"),
    conda:
        "../../envs/cpu.yaml"
    resources:
        mem_mb=needs("depth", "mem_mb"),
        runtime=needs("depth", "runtime"),
    params:
        depths=DEPTHS,
        seeds=CONFIG.seeds,
        settings=CONFIG.settings["probe"],
        extraction=clean_settings,
    script:
        "../scripts/depth_runs.py"
