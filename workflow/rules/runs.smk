# From features to probes, and from probes to the runs: one small JSON file each.


rule probes:
    input:
        features=LAYOUT.features.replace("{condition}", "clean"),
        manifest=LAYOUT.manifest,
        split=LAYOUT.split,
    output:
        expand(LAYOUT.probe, percent=[f"{p:03d}" for p in CONFIG.fractions], allow_missing=True),
    log:
        LAYOUT.log("probes", "{encoder}/{dataset}/seed{seed}"),
    conda:
        "../../envs/cpu.yaml"
    params:
        fractions=CONFIG.fractions,
        settings=CONFIG.settings["probe"],
    script:
        "../scripts/probes.py"


def shift_manifest(wc):
    if wc.condition in CONFIG.targets:
        return LAYOUT.at(LAYOUT.manifest, dataset=wc.condition)
    return []


def clean_run(wc):
    """What a run on a shift target is set beside."""
    if wc.condition in CONFIG.targets:
        return LAYOUT.at(LAYOUT.run, **{**wc, "condition": "clean"})
    return []


rule run:
    input:
        probe=LAYOUT.probe,
        features=LAYOUT.features,
        manifest=LAYOUT.manifest,
        split=LAYOUT.split,
        target=shift_manifest,
        clean=clean_run,
    output:
        LAYOUT.run,
    log:
        LAYOUT.log("run", "{encoder}/{dataset}/seed{seed}/{condition}/frac{percent}"),
    params:
        apart=lambda wc: CONFIG.dataset(wc.dataset).apart,
    run:
        from crsbench.runs import Run, RunFiles, evaluate_run

        files = RunFiles(*map(str, input))
        evaluate_run(Run.named(**wildcards), files, output[0], params.apart)


rule runs:
    input:
        [LAYOUT.run_file(run) for run in GRID.runs()],


rule kept_predictions:
    input:
        probe=LAYOUT.probe.replace("{percent}", "100"),
        features=lambda wc: [
            LAYOUT.at(LAYOUT.features, **{**wc, "condition": condition})
            for condition in GRID.conditions(wc.dataset)
        ],
        manifest=LAYOUT.manifest,
        split=LAYOUT.split,
        targets=lambda wc: [
            LAYOUT.at(LAYOUT.manifest, dataset=target)
            for target in CONFIG.datasets[wc.dataset].shift
        ],
    output:
        LAYOUT.predictions,
    log:
        LAYOUT.log("kept_predictions", "{encoder}/{dataset}/seed{seed}"),
    run:
        from crsbench.predictions import keep_predictions

        keep_predictions(
            output[0],
            str(input.probe),
            dict(
                zip(GRID.conditions(wildcards.dataset), map(str, input.features), strict=True)
            ),
            str(input.manifest),
            str(input.split),
            dict(
                zip(
                    CONFIG.datasets[wildcards.dataset].shift,
                    map(str, input.targets),
                    strict=True,
                )
            ),
        )


rule predictions:
    input:
        [LAYOUT.predictions_file(cell, seed) for cell in GRID.cells for seed in CONFIG.seeds],
