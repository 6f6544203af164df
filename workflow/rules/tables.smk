# From runs to the tables of the score.
from crsbench.config.grid import Run
from crsbench.config.overlap import OVERLAP_KEYS


localrules:
    runs_table,
    score_tables,
    crs,
    joint_bootstrap,
    freeze_reference,


PANEL = {
    "encoders": {name: dict(entry.spec) for name, entry in CONFIG.encoders.items()},
    "datasets": {name: dict(entry.spec) for name, entry in CONFIG.datasets.items()},
    "targets": {name: dict(entry.spec) for name, entry in CONFIG.targets.items()},
}
# Of the panel what the column `overlap` depends on.
SEEN = {
    kind: {
        name: {key: spec[key] for key in OVERLAP_KEYS if key in spec}
        for name, spec in entries.items()
    }
    for kind, entries in PANEL.items()
}
SCORE_TABLES = ["rows", "axes", "crs", "bootstrap", "bootstrap_pairs", "bootstrap_ranks"]


rule runs_table:
    input:
        runs=all_runs,
        read_by_runs=[  # which state them not: a lost one is made again for the runs' sake
            *expand(LAYOUT.manifest, dataset=[*CONFIG.datasets, *CONFIG.targets]),
            *expand(LAYOUT.split, dataset=CONFIG.datasets, seed=CONFIG.seeds),
        ],
    output:
        runs=table("runs"),
        confidence_bins=table("confidence_bins"),
    log:
        LAYOUT.log("tables", "runs"),
    conda:
        "../../envs/cpu.yaml"
    script:
        "../scripts/runs_table.py"


rule score_tables:
    input:
        runs=table("runs"),
        scoring=CONFIG.scoring_file,
        reference=CONFIG.reference_file or [],
    output:
        **{name: table(name) for name in SCORE_TABLES},
    log:
        LAYOUT.log("tables", "score"),
    conda:
        "../../envs/cpu.yaml"
    params:
        **SEEN,
        shift={name: list(entry.shift) for name, entry in CONFIG.datasets.items()},
        floors=CONFIG.floors,
        replicates=CONFIG.settings["bootstrap"]["replicates"],
    script:
        "../scripts/score_tables.py"


rule crs:
    input:
        rules.score_tables.output.crs,


BOOTSTRAP = CONFIG.settings["bootstrap"]
JOINT_TABLES = (
    ["joint_bootstrap", "joint_bootstrap_pairs"] if "joint_replicates" in BOOTSTRAP else []
)


# All that a cell's axes are made of, in one pass over its features: one job a cell.
rule resample:
    input:
        manifest=LAYOUT.manifest,
        probes=expand(
            LAYOUT.probe,
            seed=CONFIG.seeds,
            percent=[f"{p:03d}" for p in CONFIG.fractions],
            allow_missing=True,
        ),
        splits=expand(LAYOUT.split, seed=CONFIG.seeds, allow_missing=True),
        features=features_of_cell,
        targets=target_manifests,
    output:
        LAYOUT.resamples,
    log:
        LAYOUT.log("resample", "{encoder}/{dataset}"),
    conda:
        "../../envs/cpu.yaml"
    resources:  # as much as for the probes, which read the same features
        mem_mb=needs("probes", "mem_mb"),
        runtime=needs("probes", "runtime"),
    params:
        seeds=CONFIG.seeds,
        fractions=list(CONFIG.fractions),
        conditions=lambda wc: GRID.conditions(wc.dataset),
        targets=targets_of_dataset,
        replicates=BOOTSTRAP.get("joint_replicates", 0),
    script:
        "../scripts/resample.py"


rule joint_bootstrap:
    input:
        runs=table("runs"),
        axes=table("axes"),
        scoring=CONFIG.scoring_file,
        reference=CONFIG.reference_file or [],
        resamples=[LAYOUT.at(LAYOUT.resamples, **vars(cell)) for cell in GRID.cells],
    output:
        table=table("joint_bootstrap"),
        pairs=table("joint_bootstrap_pairs"),
    log:
        LAYOUT.log("tables", "joint_bootstrap"),
    conda:
        "../../envs/cpu.yaml"
    params:
        **SEEN,
        cells=[(cell.encoder, cell.dataset) for cell in GRID.cells],
        shift={name: list(entry.shift) for name, entry in CONFIG.datasets.items()},
        floors=CONFIG.floors,
        margin=BOOTSTRAP.get("equivalence_margin", 0.01),
    script:
        "../scripts/joint_bootstrap.py"


# One run of each ranked encoder: its file holds the digest of the encoder's weights.
RUN_OF_ENCODER = {
    cell.encoder: LAYOUT.run_file(Run(cell.encoder, cell.dataset, CONFIG.seeds[0], "clean", 100))
    for cell in GRID.cells
    if cell.encoder not in CONFIG.floors
}


# No output: a frozen reference must not be deleted to make room for a new one, as Snakemake would.
# The library writes the file, or refuses to replace one that says something else.
rule freeze_reference:
    input:
        runs=table("runs"),
        axes=table("axes"),
        scoring=CONFIG.scoring_file,
        manifests=expand(LAYOUT.manifest, dataset=CONFIG.datasets),
        encoder_runs=list(RUN_OF_ENCODER.values()),
    log:
        LAYOUT.log("freeze_reference"),
    conda:
        "../../envs/cpu.yaml"
    params:
        file=CONFIG.settings["freeze_to"],
        encoders=list(RUN_OF_ENCODER),
        datasets=list(CONFIG.datasets),
        floors=CONFIG.floors,
    script:
        "../scripts/freeze_reference.py"
