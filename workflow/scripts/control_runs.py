from crsbench.config.grid import Cell
from crsbench.core.errors import user_error_boundary
from crsbench.core.threads import use_one_thread
from crsbench.evaluation.control_probes import ControlSettings, write_control_runs

with user_error_boundary(snakemake.log[0]):
    params = snakemake.params
    settings = ControlSettings.of(params.control, params.probe)
    use_one_thread()
    for output, names, files in zip(snakemake.output, params.cells, params.files, strict=True):
        cell = Cell(*names)
        write_control_runs(output, cell, files, settings, params.excluded_classes[cell.dataset])
