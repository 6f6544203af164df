from pathlib import Path

from crsbench.config import load_config
from crsbench.errors import told_in_one_sentence
from crsbench.overlap import Overlaps
from crsbench.studies.base import Inputs, write_study
from crsbench.studies.beyond import run_beyond
from crsbench.threads import use_one_thread

with told_in_one_sentence(snakemake.log[0]):
    use_one_thread()
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    files, params = snakemake.input, snakemake.params
    inputs = Inputs.read(files, params)
    studies = run_beyond(config, inputs, params.names)
    for (name, study), table, figure in zip(
        studies.items(), snakemake.output.tables, snakemake.output.figures, strict=True
    ):
        write_study(table, figure, name, study, Overlaps.of_panel(params))
