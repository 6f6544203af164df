# From a data set's own tables to the manifest, the splits and the audit.


localrules:
    phantoms,
    test_set,
    split,
    audits,


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


rule manifest:
    input:
        phantoms=phantom_table,
    output:
        manifest=LAYOUT.manifest,
        images=LAYOUT.images,
    log:
        LAYOUT.log("manifest", "{dataset}"),
    conda:
        "../../envs/cpu.yaml"
    threads: 8
    resources:
        mem_mb=needs("manifest", "mem_mb"),
        runtime=needs("manifest", "runtime"),
    params:
        spec=lambda wc: CONFIG.dataset(wc.dataset).manifest_spec,
        image=dict(CONFIG.settings["image"]),
        tables=table_digests,
        entry=lambda wc: CONFIG.dataset(wc.dataset),
        root=lambda wc: image_root(CONFIG, wc.dataset),
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

        attempt(log[0], write_test, output[0], input.manifest, params.share)


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
        settings = params.fractions, params.calibration
        attempt(log[0], write_split, output[0], *names, *settings)


rule audit:
    input:
        manifest=LAYOUT.manifest,
        images=LAYOUT.images,
        splits=lambda wc: expand(LAYOUT.split, seed=seeds_of_dataset(wc), dataset=wc.dataset),
        targets=lambda wc: expand(LAYOUT.manifest, dataset=targets_of_dataset(wc)),
    output:
        audit=LAYOUT.audit,
        page=LAYOUT.audit_page,
    log:
        LAYOUT.log("audit", "{dataset}"),
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=lambda wc: dict(CONFIG.dataset(wc.dataset).spec),
        seeds=seeds_of_dataset,
        targets=targets_of_dataset,
        test_share=CONFIG.settings["splits"]["test"],
    script:
        "../scripts/audit.py"


rule audits:
    input:
        expand(LAYOUT.audit, dataset=[*CONFIG.datasets, *CONFIG.targets]),
    log:
        LAYOUT.log("audits"),
    params:
        pages=expand(LAYOUT.audit_page, dataset=[*CONFIG.datasets, *CONFIG.targets]),
    run:
        from crsbench.data.audit_page import summaries

        print(summaries(dict(zip(params.pages, input, strict=True))))
