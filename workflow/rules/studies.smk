# From the tables to the studies, and to the figures that the CRS-Bench study publishes.
from crsbench.studies import STUDIES


rule studies_of_tables:
    input:
        runs=table("runs"),
        axes=table("axes"),
        crs=table("crs"),
        scoring=CONFIG.scoring_file,
        reference=CONFIG.reference_file or [],
    output:
        tables=expand(LAYOUT.study, study=STUDIES),
        figures=expand(LAYOUT.study_figure, study=STUDIES),
    log:
        LAYOUT.log("studies", "of_tables"),
    conda:
        "../../envs/cpu.yaml"
    params:
        **PANEL,
        settings=CONFIG.settings["studies"],
    script:
        "../scripts/studies.py"


rule studies:
    input:
        rules.studies_of_tables.output,


rule reproduction:
    input:
        runs=table("runs"),
        crs=table("crs"),
        bootstrap=table("bootstrap"),
        bootstrap_pairs=table("bootstrap_pairs"),
        studies=rules.studies_of_tables.output.tables,
        scoring=CONFIG.scoring_file,
        published=HOME / "config" / "published.yaml",
    output:
        table=table("reproduction"),
        tsv=LAYOUT.scorecard,
    log:
        LAYOUT.log("tables", "reproduction"),
    conda:
        "../../envs/cpu.yaml"
    params:
        floors=CONFIG.floors,
        synthetic=any(entry.synthetic for entry in CONFIG.datasets.values()),
    script:
        "../scripts/reproduction.py"


rule case_bootstrap:
    input:
        manifests=expand(LAYOUT.manifest, dataset=[*CONFIG.datasets, *CONFIG.targets]),
        predictions=rules.predictions.input,
    output:
        cases=table("case_bootstrap"),
        pairs=table("case_bootstrap_pairs"),
    log:
        LAYOUT.log("tables", "case_bootstrap"),
    conda:
        "../../envs/cpu.yaml"
    params:
        replicates=CONFIG.settings["bootstrap"]["case_replicates"],
    script:
        "../scripts/case_bootstrap.py"
