from crsbench.core.errors import user_error_boundary
from crsbench.core.files import write_table
from crsbench.evaluation.runs import collect_confidence_bins, collect_runs

with user_error_boundary(snakemake.log[0]):
    write_table(snakemake.output.runs, collect_runs(snakemake.input.runs))
    write_table(snakemake.output.confidence_bins, collect_confidence_bins(snakemake.input.runs))
