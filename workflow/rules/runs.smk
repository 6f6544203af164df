# From features to probes, and from probes to the runs: one small JSON file each.


# Worked off by the warm main process, on a cluster too: milliseconds each.
localrules:
    run,
    shift_run,
    runs,
    kept_predictions,
    predictions,


rule probes:
    input:
        features=LAYOUT.features.replace("{condition}", "clean"),
        manifest=LAYOUT.manifest,
        split=LAYOUT.split,
    output:
        expand(LAYOUT.probe, percent=[f"{p:03d}" for p in CONFIG.fractions], allow_missing=True),
    log:
        LAYOUT.log("probes", "{encoder}/{dataset}/seed{seed}"),
    resources:
        mem_mb=needs("probes", "mem_mb"),
        runtime=needs("probes", "runtime"),
    params:
        fractions=list(CONFIG.fractions),
        settings=CONFIG.settings["probe"],
    run:
        from crsbench.core.worker import in_worker

        files = input.features, input.manifest, input.split, params.fractions
        work = "crsbench.evaluation.runs:fit_probes_of", *files, list(output), params.settings
        attempt(log[0], in_worker, *work, features_made_by(wildcards.encoder, "clean"))


# Runs take no core of their own: the main process works them off in its threads, hundreds at each
# round of the scheduler, while the cores are for the jobs that need one.
#
# They state only the inputs that they are made again for. Manifest and split, which they read too,
# come before the probe, and a target's manifest before its features: what makes these anew makes
# the run anew. Two inputs in place of four save a third of the time that the graph takes.
rule run:
    input:
        probe=LAYOUT.probe,
        features=LAYOUT.features,
    output:
        LAYOUT.run,
    log:
        LAYOUT.log("run", "{encoder}/{dataset}/seed{seed}/{condition}/frac{percent}"),
    threads: 0
    params:
        excluded_classes=excluded_classes_of,
    run:
        from crsbench.evaluation.runs import Run, RunFiles, evaluate_run

        run = Run.named(**wildcards)
        files = RunFiles(**run_files(run, *input))
        attempt(log[0], evaluate_run, run, files, output[0], params.excluded_classes)


# A rule of its own, since patterns are planned faster than functions.
use rule run as shift_run with:
    input:
        probe=LAYOUT.probe,
        features=LAYOUT.features.replace("{condition}", "{target}"),
        clean=LAYOUT.run.replace("{condition}", "clean"),
    output:
        LAYOUT.run.replace("{condition}", "{target}"),
    log:
        LAYOUT.log("run", "{encoder}/{dataset}/seed{seed}/{target}/frac{percent}"),


rule runs:
    input:
        all_runs,


rule kept_predictions:
    input:
        probe=LAYOUT.probe.replace("{percent}", "100"),
        features=features_of_cell,
        manifest=LAYOUT.manifest,
        split=LAYOUT.split,
        targets=target_manifests,
    output:
        LAYOUT.predictions,
    log:
        LAYOUT.log("kept_predictions", "{encoder}/{dataset}/seed{seed}"),
    params:
        conditions=lambda wc: GRID.conditions(wc.dataset),
    run:
        from crsbench.evaluation.predictions import keep_predictions

        files = files_of_cell(wildcards.encoder, wildcards.dataset, probes=True)
        attempt(log[0], keep_predictions, output[0], files, int(wildcards.seed))


rule predictions:
    input:
        [LAYOUT.predictions_file(cell, seed) for cell in GRID.cells for seed in CONFIG.seeds],
