from pathlib import Path

from crsbench.config import load_config
from crsbench.errors import told_in_one_sentence
from crsbench.files import read_table
from crsbench.score import load_reference, load_scoring
from crsbench.studies.base import Inputs, write_study
from crsbench.studies.beyond import run_beyond
from crsbench.threads import use_one_thread

with told_in_one_sentence(snakemake.log[0]):
    use_one_thread()
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    files, params = snakemake.input, snakemake.params
    inputs = Inputs(
        runs=read_table(files.runs)[0],
        axes=read_table(files.axes)[0],
        crs=read_table(files.crs)[0],
        scoring=load_scoring(files.scoring),
        reference=load_reference(files.reference) if files.get("reference") else None,
        encoders=params.encoders,
        datasets=params.datasets,
        targets=params.targets,
        settings=params.settings,
    )
    studies = run_beyond(config, inputs, params.names)
    for (name, study), table, figure in zip(
        studies.items(), snakemake.output.tables, snakemake.output.figures, strict=True
    ):
        write_study(table, figure, name, study)
