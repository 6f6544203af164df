# Studies of test cases that go beyond the published ones, each only where the config names it.
from crsbench.studies import beyond_names

BEYOND = beyond_names(CONFIG.settings["studies"])
STUDY_NAMES += BEYOND
# What they are made of: of the cells, kept predictions or features; else the tables alone.
BEYOND_KEYS = set(CONFIG.settings["studies"])
OF_PREDICTIONS = BEYOND_KEYS & {"subgroups", "operating_points", "selective_prediction"}
BEYOND_FEATURES = [
    LAYOUT.at(LAYOUT.features, encoder=cell.encoder, dataset=cell.dataset, condition=condition)
    for cell in GRID.cells
    for condition in GRID.conditions(cell.dataset)
]


if BEYOND:

    rule beyond:
        input:
            runs=table("runs"),
            axes=table("axes"),
            crs=table("crs"),
            scoring=CONFIG.scoring_file,
            reference=CONFIG.reference_file or [],
            manifests=expand(LAYOUT.manifest, dataset=[*CONFIG.datasets, *CONFIG.targets]),
            splits=expand(LAYOUT.split, dataset=CONFIG.datasets, seed=CONFIG.seeds),
            predictions=rules.predictions.input if OF_PREDICTIONS else [],
            features=BEYOND_FEATURES if "sentinel" in BEYOND_KEYS else [],
        output:
            tables=expand(LAYOUT.study, study=BEYOND),
            figures=expand(LAYOUT.study_figure, study=BEYOND),
        log:
            LAYOUT.log("studies", "beyond"),
        conda:
            "../../envs/cpu.yaml"
        params:
            **PANEL,
            names=BEYOND,
            settings=CONFIG.settings["studies"],
        script:
            "../scripts/beyond.py"
