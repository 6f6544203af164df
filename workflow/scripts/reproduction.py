from crsbench.core.errors import user_error_boundary
from crsbench.core.files import read_table, write_table
from crsbench.score import load_scoring
from crsbench.studies.reproduction import load_published, own_figures, scorecard, write_tsv

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    names = ("runs", "crs", "bootstrap", "bootstrap_pairs")
    own = own_figures(
        {name: read_table(files[name])[0] for name in names},
        load_scoring(files.scoring),
        files.studies,
        floors=params.floors,
        synthetic=params.synthetic,
    )
    table = scorecard(load_published(files.published), own)
    write_table(snakemake.output.table, table)
    write_tsv(snakemake.output.tsv, table)
