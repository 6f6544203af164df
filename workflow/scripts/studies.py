from crsbench.errors import told_in_one_sentence
from crsbench.overlap import Overlaps
from crsbench.studies import run_study
from crsbench.studies.base import Inputs, write_study

with told_in_one_sentence(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    inputs = Inputs.read(files, params)
    overlaps = Overlaps.of_panel(params)
    outputs = zip(params.studies, snakemake.output.tables, snakemake.output.figures, strict=True)
    for name, table, figure in outputs:
        write_study(table, figure, name, run_study(name, inputs), overlaps)
