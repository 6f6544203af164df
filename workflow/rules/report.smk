# What all studies end in: the scorecard beside the published figures, and the report.

from crsbench.config.grid import Run

REPORT_TABLES = ["runs", "confidence_bins", *SCORE_TABLES, *JOINT_TABLES, "reproduction"]
REPORT_TABLES += ["reliability"] if GRID.recalibrated else []


localrules:
    reproduction,
    report,
    figures,


PAPER_FILES = [
    *expand("{name}.{kind}", name=["profiles", "ranks", "rank_probability"], kind=["svg", "pdf"]),
    *("leaderboard.md", "leaderboard.tex"),
]


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
        tsv=report(LAYOUT.scorecard, caption="../report/scorecard.rst", category="Scorecard"),
    log:
        LAYOUT.log("tables", "reproduction"),
    conda:
        "../../envs/cpu.yaml"
    params:
        floors=CONFIG.floors,
        synthetic=any(entry.synthetic for entry in CONFIG.datasets.values()),
    script:
        "../scripts/reproduction.py"


# One run of each encoder: its file holds the digest of the encoder's weights.
WEIGHED_RUNS = {
    cell.encoder: LAYOUT.run_file(Run(cell.encoder, cell.dataset, CONFIG.seeds[0], "clean", 100))
    for cell in GRID.cells
}
# Where data, weights and registries lie is not part of a result, nor of what the report says of it.
PLACES = ["results", "data_root", "weights_root", "encoder_registry", "dataset_registry", "scoring"]
SHOWN_SETTINGS = {key: value for key, value in CONFIG.settings.items() if key not in PLACES}
# Whose images the report may show: those that a program drew, and those that the config names.
SHOWN_DATASETS = [
    name
    for name, entry in CONFIG.datasets.items()
    if entry.synthetic or name in CONFIG.settings.get("report", {}).get("gallery", [])
]


rule report:
    input:
        **{name: table(name) for name in REPORT_TABLES},
        studies=rules.studies.input,
        figures=expand(LAYOUT.study_figure, study=STUDY_NAMES),
        scoring=CONFIG.scoring_file,
        audits=rules.audits.input,
        encoder_runs=list(WEIGHED_RUNS.values()),
        shown=expand(LAYOUT.manifest, dataset=SHOWN_DATASETS),
    output:
        report(LAYOUT.report, caption="../report/page.rst", category="Report"),
    log:
        LAYOUT.log("report"),
    conda:
        "../../envs/cpu.yaml"
    params:
        **PANEL,
        study_names=STUDY_NAMES,
        encoder_names=list(WEIGHED_RUNS),
        shown_datasets=SHOWN_DATASETS,
        settings=SHOWN_SETTINGS,
        left_out=dict(CONFIG.left_out),
        images=ImageSettings.of(CONFIG, SHOWN_DATASETS),
        home=HOME,
    script:
        "../scripts/report.py"


rule figures:
    input:
        **{name: table(name) for name in REPORT_TABLES},
        scoring=CONFIG.scoring_file,
    output:
        report(
            expand(LAYOUT.paper, file=PAPER_FILES),
            caption="../report/paper.rst",
            category="For papers",
        ),
    log:
        LAYOUT.log("figures"),
    conda:
        "../../envs/cpu.yaml"
    params:
        **PANEL,
    script:
        "../scripts/figures.py"
