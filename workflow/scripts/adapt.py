from pathlib import Path

from crsbench.adaptation.jobs import Training, TrainingFiles, adapt
from crsbench.config.layout import Layout
from crsbench.config.load import load_config
from crsbench.core.errors import user_error_boundary
from crsbench.data.readers import image_root

with user_error_boundary(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    named = snakemake.wildcards
    training = Training(named.encoder, named.dataset, int(named.seed), int(named.percent))
    read = [snakemake.input[name] for name in ("manifest", "split", "features")]
    files = TrainingFiles(*map(Path, [*read, *snakemake.output]))
    root = image_root(config, Layout(config.results), named.dataset)
    adapt(config, training, files, root, workers=snakemake.threads - 1)
