# Studies of test cases that go beyond the published ones, each only where the config names it.
from crsbench.studies import case_study_names

CASE_STUDIES = case_study_names(CONFIG.settings["studies"])
STUDY_NAMES += CASE_STUDIES
# What they are made of: of the cells, kept predictions or features; else the tables alone.
CASE_STUDY_KEYS = set(CONFIG.settings["studies"])
OF_PREDICTIONS = CASE_STUDY_KEYS & {"subgroups", "operating_points", "selective_prediction"}
CASE_STUDY_FEATURES = [
    LAYOUT.at(LAYOUT.features, encoder=cell.encoder, dataset=cell.dataset, condition=condition)
    for cell in GRID.cells
    for condition in GRID.conditions(cell.dataset)
]


if CASE_STUDIES:

    rule case_studies:
        input:
            runs=table("runs"),
            axes=table("axes"),
            crs=table("crs"),
            scoring=CONFIG.scoring_file,
            reference=CONFIG.reference_file or [],
            manifests=expand(LAYOUT.manifest, dataset=[*CONFIG.datasets, *CONFIG.targets]),
            splits=expand(LAYOUT.split, dataset=CONFIG.datasets, seed=CONFIG.seeds),
            predictions=rules.predictions.input if OF_PREDICTIONS else [],
            features=CASE_STUDY_FEATURES if "shift_detection" in CASE_STUDY_KEYS else [],
        output:
            tables=expand(LAYOUT.study, study=CASE_STUDIES),
            figures=expand(LAYOUT.study_figure, study=CASE_STUDIES),
        log:
            LAYOUT.log("studies", "case_studies"),
        conda:
            "../../envs/cpu.yaml"
        params:
            **PANEL,
            names=CASE_STUDIES,
            settings=CONFIG.settings["studies"],
        script:
            "../scripts/case_studies.py"
