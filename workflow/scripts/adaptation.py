import pandas as pd

from crsbench.config.overlap import Overlaps
from crsbench.core.errors import UserError, user_error_boundary
from crsbench.core.files import read_table
from crsbench.evaluation.runs import collect_runs
from crsbench.score import load_scoring
from crsbench.studies.adaptation import AdaptationInputs, adaptation, adaptation_axes
from crsbench.studies.base import write_study

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    if not files.frozen:
        raise UserError("The config has no section `adaptation`; config/README.md explains it.")
    inputs = AdaptationInputs(
        frozen=collect_runs(files.frozen),
        adapted=pd.concat([read_table(file)[0] for file in files.adapted], ignore_index=True),
        scoring=load_scoring(files.scoring),
        encoders=params.encoders,
        datasets=params.datasets,
        recipe=params.recipe,
    )
    for number, study in enumerate((adaptation, adaptation_axes)):
        written = snakemake.output.tables[number], snakemake.output.figures[number]
        write_study(*written, study.__name__, study(inputs), Overlaps.of_panel(params))
