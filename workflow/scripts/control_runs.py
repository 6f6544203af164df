from pathlib import Path

from crsbench.config import load_config
from crsbench.controls import CellFiles, ControlSettings, write_control_runs
from crsbench.errors import told_in_one_sentence
from crsbench.grid import Cell
from crsbench.threads import use_one_thread

with told_in_one_sentence(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    params = snakemake.params
    settings = ControlSettings.of(params.control, params.probe)
    use_one_thread()
    for output, names in zip(snakemake.output, params.cells, strict=True):
        cell = Cell(*names)
        files = CellFiles.of(config, cell)
        write_control_runs(output, cell, files, settings, params.apart[cell.dataset])
