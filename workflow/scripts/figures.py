from pathlib import Path

from crsbench.core.errors import user_error_boundary
from crsbench.report import read_material, write_paper
from crsbench.score import load_scoring

with user_error_boundary(snakemake.log[0]):
    params = snakemake.params
    material = read_material(
        snakemake.input,
        studies=[],
        encoders=params.encoders,
        datasets=params.datasets,
        targets=params.targets,
        scoring=load_scoring(snakemake.input.scoring),
    )
    write_paper(Path(snakemake.output[0]).parent, material)
