from crsbench.errors import told_in_one_sentence
from crsbench.files import read_table
from crsbench.score import load_reference, load_scoring
from crsbench.studies import run_study
from crsbench.studies.base import Inputs, write_study

with told_in_one_sentence(snakemake.log[0]):
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
    outputs = zip(params.studies, snakemake.output.tables, snakemake.output.figures, strict=True)
    for name, table, figure in outputs:
        write_study(table, figure, name, run_study(name, inputs))
