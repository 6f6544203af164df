# From a data set's own table to the manifest and the splits.


rule phantoms:
    output:
        LAYOUT.phantoms,
    log:
        LAYOUT.log("phantoms", "{dataset}"),
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=lambda wc: CONFIG.dataset(wc.dataset).spec["phantom"],
    script:
        "../scripts/phantoms.py"


def existing_table(wc):
    """The table as an input, so that a change re-runs what hangs on it.

    A table that is not there is no input: the grid can be planned without data, and the job says
    in one sentence what is missing.
    """
    entry = CONFIG.dataset(wc.dataset)
    if "reader" not in entry.spec:
        return []
    table = image_table(CONFIG, LAYOUT, wc.dataset)
    return [table] if entry.synthetic or table.is_file() else []


rule manifest:
    input:
        table=existing_table,
    output:
        LAYOUT.manifest,
    log:
        LAYOUT.log("manifest", "{dataset}"),
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=lambda wc: dict(CONFIG.dataset(wc.dataset).spec),
    script:
        "../scripts/manifest.py"


rule test_set:
    input:
        manifest=LAYOUT.manifest,
    output:
        LAYOUT.test,
    log:
        LAYOUT.log("test_set", "{dataset}"),
    params:
        share=CONFIG.settings["splits"]["test"],
    run:
        from crsbench.data.splits import write_test

        write_test(output[0], input.manifest, params.share)


rule split:
    input:
        manifest=LAYOUT.manifest,
        test=LAYOUT.test,
    output:
        LAYOUT.split,
    log:
        LAYOUT.log("split", "{dataset}/seed{seed}"),
    params:
        calibration=CONFIG.settings["splits"]["calibration"],
        fractions=CONFIG.fractions,
    run:
        from crsbench.data.splits import write_split

        names = input.manifest, input.test, int(wildcards.seed)
        write_split(output[0], *names, params.fractions, params.calibration)
