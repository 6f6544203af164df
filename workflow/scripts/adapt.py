from pathlib import Path

from crsbench.adaptation.jobs import Training, TrainingFiles, adapt
from crsbench.config import load_config
from crsbench.errors import told_in_one_sentence
from crsbench.grid import Layout
from crsbench.sources import image_root

with told_in_one_sentence(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    named = snakemake.wildcards
    training = Training(named.encoder, named.dataset, int(named.seed), int(named.percent))
    read = [snakemake.input[name] for name in ("manifest", "split", "features")]
    files = TrainingFiles(*map(Path, [*read, *snakemake.output]))
    root = image_root(config, Layout(config.results), named.dataset)
    adapt(config, training, files, root, workers=snakemake.threads - 1)
