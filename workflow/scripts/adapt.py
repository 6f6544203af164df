from pathlib import Path

from crsbench.adaptation.jobs import Training, TrainingFiles, adapt
from crsbench.core.errors import user_error_boundary

with user_error_boundary(snakemake.log[0]):
    named, params = snakemake.wildcards, snakemake.params
    training = Training(named.encoder, named.dataset, int(named.seed), int(named.percent))
    read = [snakemake.input[name] for name in ("manifest", "split", "features")]
    made_by = params.frozen.made_by[named.encoder]
    files = TrainingFiles(*map(Path, [*read, *snakemake.output]), made_by)
    how = params.settings, params.recipe, params.target_modules
    adapt(*how, training, files, workers=snakemake.threads - 1)
