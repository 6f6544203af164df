# The runs under other classifiers than the logistic probe.
CONTROL = CONFIG.control_probes


if CONTROL is not None:
    # Starting a process takes seconds; a job takes as many cells as the config says.
    for cells in GRID.batches(CONTROL["cells_per_job"]):

        rule:
            name:
                f"control_runs_{cells[0].encoder}@{cells[0].dataset}"  # a sign that no name has
            input:
                [file for cell in cells for file in files_of_cell(cell.encoder, cell.dataset).all],
            output:
                [LAYOUT.control_file(cell) for cell in cells],
            log:
                LAYOUT.log("control_runs", f"{cells[0].encoder}/{cells[0].dataset}"),
            conda:
                "../../envs/gpu.yaml"
            resources:
                gpu=int(CONTROL["device"] == "cuda"),
                mem_mb=needs_of_control(cells, "mem_mb"),
                runtime=needs_of_control(cells, "runtime"),
            params:
                cells=[(cell.encoder, cell.dataset) for cell in cells],
                excluded_classes={
                    cell.dataset: CONFIG.dataset(cell.dataset).excluded_classes for cell in cells
                },
                control={key: CONTROL[key] for key in CONTROL if key != "cells_per_job"},
                probe=CONFIG.settings["probe"],
                files=[files_of_cell(cell.encoder, cell.dataset) for cell in cells],
            script:
                "../scripts/control_runs.py"
