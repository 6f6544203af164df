from pathlib import Path

from crsbench.data.phantoms import write_phantoms
from crsbench.errors import told_in_one_sentence

with told_in_one_sentence(snakemake.log[0]):
    write_phantoms(Path(snakemake.output[0]).parent, **snakemake.params.spec)
