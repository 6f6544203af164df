# From runs to the tables and the report.


rule runs_table:
    input:
        rules.runs.input,
    output:
        LAYOUT.table.format(table="runs"),
    log:
        LAYOUT.log("tables", "runs"),
    conda:
        "../../envs/cpu.yaml"
    script:
        "../scripts/runs_table.py"


rule score_tables:
    input:
        runs=LAYOUT.table.format(table="runs"),
        scoring=CONFIG.scoring_file,
    output:
        rows=LAYOUT.table.format(table="rows"),
        axes=LAYOUT.table.format(table="axes"),
        crs=LAYOUT.table.format(table="crs"),
    log:
        LAYOUT.log("tables", "score"),
    conda:
        "../../envs/cpu.yaml"
    params:
        shift={name: list(entry.shift) for name, entry in CONFIG.datasets.items()},
        floors=[name for name, entry in CONFIG.encoders.items() if entry.is_floor],
    script:
        "../scripts/score_tables.py"


rule crs:
    input:
        rules.score_tables.output.crs,


rule report:
    input:
        axes=rules.score_tables.output.axes,
        crs=rules.score_tables.output.crs,
        runs=rules.runs_table.output,
    output:
        LAYOUT.report,
    log:
        LAYOUT.log("report"),
    conda:
        "../../envs/cpu.yaml"
    params:
        encoders={name: dict(entry.spec) for name, entry in CONFIG.encoders.items()},
        datasets={name: dict(entry.spec) for name, entry in CONFIG.datasets.items()},
    script:
        "../scripts/report.py"
