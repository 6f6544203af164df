from pathlib import Path

from crsbench.config.layout import Layout
from crsbench.config.load import load_config
from crsbench.core.errors import user_error_boundary
from crsbench.data.readers import image_root
from crsbench.features.embeddings import take_embeddings

with user_error_boundary(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    dataset = snakemake.wildcards.dataset
    alone = snakemake.wildcards.get("encoder")
    names = config.encoders_together if alone is None else [alone]
    entries = [config.encoders[name] for name in names]
    files = {
        "manifest_file": snakemake.input.manifest,
        "test_file": snakemake.input.get("test"),
        "outputs": snakemake.output,
    }
    if "embeddings" in entries[0].spec:
        take_embeddings(config, entries[0], dataset, **files)
    else:
        from crsbench.features.jobs import extract_features  # here: own embeddings need no torch

        images = snakemake.wildcards.get("target", dataset)
        root = image_root(config, Layout(config.results), images)
        extract_features(config, entries, image_root=root, workers=snakemake.threads - 1, **files)
