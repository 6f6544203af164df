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


rule run:
    input:
        probe=LAYOUT.probe,
        features=LAYOUT.features,
        manifest=LAYOUT.manifest,
        split=LAYOUT.split,
        target=shift_manifest,
    output:
        LAYOUT.run,
    log:
        LAYOUT.log("run", "{encoder}/{dataset}/seed{seed}/{condition}/frac{percent}"),
    run:
        from crsbench.runs import Run, RunFiles, evaluate_run

        evaluate_run(Run.named(**wildcards), RunFiles(*map(str, input)), output[0])


rule runs:
    input:
        [LAYOUT.run_file(run) for run in GRID.runs()],
