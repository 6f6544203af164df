from crsbench.errors import told_in_one_sentence
from crsbench.files import read_json, read_table
from crsbench.report import write_report
from crsbench.report.page import Tables
from crsbench.studies.base import read_sentence

with told_in_one_sentence(snakemake.log[0]):
    files = snakemake.input
    tables = Tables(
        *(read_table(file)[0] for file in (files.runs, files.axes, files.crs, files.bootstrap))
    )
    write_report(
        snakemake.output[0],
        tables,
        snakemake.params.encoders,
        snakemake.params.datasets,
        snakemake.params.targets,
        rank_agreement=read_sentence(files.rank_agreement),
        audits=[read_json(file) for file in files.audits],
    )
