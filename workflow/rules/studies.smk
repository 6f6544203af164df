# From a run's tables, kept predictions, features and further runs to the studies.
from crsbench.config.layout import RECALIBRATED_PARTS
from crsbench.data.readers import stated_subgroups
from crsbench.studies.registry import SOURCES, studies


localrules:
    studies,
    adaptation,


STUDIES = {name: one for name, one in studies().items() if one.wanted(CONFIG.settings)}
ADAPTATION_STUDIES = [name for name in STUDIES if "adapted_runs" in STUDIES[name].needs]
STUDY_NAMES = [
    name for name in STUDIES if ADAPTATION["in_report"] or name not in ADAPTATION_STUDIES
]
# Of the subgroup columns asked for, those that some entry of the registry states.
STATED_SUBGROUPS = [
    name
    for name in CONFIG.settings["studies"].get("subgroups", {}).get("columns", [])
    if any(name in stated_subgroups(spec) for spec in CONFIG.dataset_specs.values())
]
MANIFESTS = expand(LAYOUT.manifest, dataset=[*CONFIG.datasets, *CONFIG.targets])
STUDY_FILES = {
    "tables": {
        **{name: table(name) for name in ("runs", "axes", "crs")},
        "scoring": CONFIG.scoring_file,
        "reference": CONFIG.reference_file or [],
    },
    "recalibrated_cells": {
        part: [
            LAYOUT.at(LAYOUT.recalibrated, **vars(cell), part=part) for cell in GRID.recalibrated
        ]
        for part in RECALIBRATED_PARTS
    },
    "kept_predictions": {"manifests": MANIFESTS, "predictions": rules.predictions.input},
    "features": {
        "manifests": MANIFESTS,
        "splits": expand(LAYOUT.split, dataset=CONFIG.datasets, seed=CONFIG.seeds[0]),
        "features": [
            LAYOUT.at(LAYOUT.features, **vars(cell), condition=condition)
            for cell in GRID.cells
            for condition in GRID.conditions(cell.dataset)
        ],
    },
    "control_runs": {"control_runs": [LAYOUT.control_file(cell) for cell in GRID.cells]},
    "depth_runs": {
        "depth_runs": [LAYOUT.at(LAYOUT.depth_runs, **vars(cell)) for cell in GRID.depth_cells]
    },
    "adapted_runs": {
        "frozen_runs": [LAYOUT.run_file(run) for run in GRID.adapted_runs()],
        "adapted_runs": sorted(
            {LAYOUT.at(LAYOUT.adapted_runs, **vars(run)) for run in GRID.adapted_runs()}
        ),
        "scoring": CONFIG.scoring_file,
    },
}
# What is published of further runs, beside the studies that are made of them.
TABLES_BESIDE = {
    "recalibrated_cells": ["recalibrated", "reliability"],
    "control_runs": ["control_runs"],
}


# A job for each kind of need: they differ in what they wait for and in what they cost.
for job in sorted({one.job for one in STUDIES.values()}):
    names = [name for name, one in STUDIES.items() if one.job == job]
    kinds = [need for need in SOURCES if any(need in STUDIES[name].needs for name in names)]

    rule:
        name:
            f"studies_of_{job}"
        input:
            **{key: files for kind in kinds for key, files in STUDY_FILES[kind].items()},
        output:
            studies=expand(LAYOUT.study, study=names),
            figures=report(
                expand(LAYOUT.study_figure, study=names),
                caption="../report/study.rst",
                category="Studies",
            ),
            tables=[table(name) for name in TABLES_BESIDE.get(job, [])],
        log:
            LAYOUT.log("studies", job),
        localrule: not {"tables", "kept_predictions", "features"} & set(kinds)
        conda:
            "../../envs/cpu.yaml"
        params:
            **PANEL,
            settings={key: CONFIG.settings[key] for key in map(SOURCES.get, kinds) if key},
            cells=[(cell.encoder, cell.dataset) for cell in GRID.cells],
            seeds=CONFIG.seeds,
            conditions={name: GRID.conditions(name) for name in CONFIG.datasets},
            stated_subgroups=STATED_SUBGROUPS,
            studies=names,
            tables=TABLES_BESIDE.get(job, []),
            extraction=ExtractionSettings.of(CONFIG, CONFIG.encoders, []),
        script:
            "../scripts/studies.py"


rule studies:
    input:
        expand(LAYOUT.study, study=STUDY_NAMES),


# A target of its own, which `all` asks for only with `adaptation.in_report`.
rule adaptation:
    input:
        adaptation_studies,


rule case_bootstrap:
    input:
        manifests=MANIFESTS,
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
        manifests=[*CONFIG.datasets, *CONFIG.targets],
        cells=[(cell.encoder, cell.dataset) for cell in GRID.cells],
        seeds=CONFIG.seeds,
        shift={name: list(entry.shift) for name, entry in CONFIG.datasets.items()},
    script:
        "../scripts/case_bootstrap.py"
