# From the tables to the studies that need nothing else.
from crsbench.studies import studies_of

STUDIES_OF_TABLES = studies_of(CONFIG.settings["studies"])
STUDY_NAMES += STUDIES_OF_TABLES


rule studies_of_tables:
    input:
        runs=table("runs"),
        axes=table("axes"),
        crs=table("crs"),
        scoring=CONFIG.scoring_file,
        reference=CONFIG.reference_file or [],
    output:
        tables=expand(LAYOUT.study, study=STUDIES_OF_TABLES),
        figures=report(
            expand(LAYOUT.study_figure, study=STUDIES_OF_TABLES),
            caption="../report/study.rst",
            category="Studies",
        ),
    log:
        LAYOUT.log("studies", "of_tables"),
    conda:
        "../../envs/cpu.yaml"
    params:
        **PANEL,
        settings=CONFIG.settings["studies"],
        studies=STUDIES_OF_TABLES,
    script:
        "../scripts/studies.py"


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
