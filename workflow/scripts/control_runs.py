from pathlib import Path

from crsbench.config.grid import Cell
from crsbench.config.load import load_config
from crsbench.core.errors import user_error_boundary
from crsbench.core.threads import use_one_thread
from crsbench.evaluation.control_probes import CellFiles, ControlSettings, write_control_runs

with user_error_boundary(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    params = snakemake.params
    settings = ControlSettings.of(params.control, params.probe)
    use_one_thread()
    for output, names in zip(snakemake.output, params.cells, strict=True):
        cell = Cell(*names)
        files = CellFiles.of(config, cell)
        write_control_runs(output, cell, files, settings, params.excluded_classes[cell.dataset])
