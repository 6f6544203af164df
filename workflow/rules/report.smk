# What all studies end in: the scorecard beside the published figures, and the report.


localrules:
    studies,
    reproduction,
    report,


rule studies:
    input:
        expand(LAYOUT.study, study=STUDY_NAMES),


rule reproduction:
    input:
        runs=table("runs"),
        crs=table("crs"),
        bootstrap=table("bootstrap"),
        bootstrap_pairs=table("bootstrap_pairs"),
        studies=rules.studies.input,
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


rule report:
    input:
        axes=table("axes"),
        crs=table("crs"),
        bootstrap=table("bootstrap"),
        runs=table("runs"),
        rank_agreement=LAYOUT.at(LAYOUT.study, study="rank_agreement"),
        audits=rules.audits.input,
        studies=rules.studies.input,
    output:
        LAYOUT.report,
    log:
        LAYOUT.log("report"),
    conda:
        "../../envs/cpu.yaml"
    params:
        **PANEL,
    script:
        "../scripts/report.py"
