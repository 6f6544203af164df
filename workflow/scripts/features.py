from crsbench.core.errors import user_error_boundary
from crsbench.features.embeddings import take_embeddings

with user_error_boundary(snakemake.log[0]):
    settings = snakemake.params.settings
    files = {
        "manifest_file": snakemake.input.manifest,
        "test_file": snakemake.input.get("test"),
        "outputs": snakemake.output,
    }
    if "embeddings" in settings.encoders[0].spec:
        take_embeddings(settings, snakemake.wildcards.dataset, **files)
    else:
        from crsbench.features.jobs import extract_features  # here: own embeddings need no torch

        extract_features(settings, workers=snakemake.threads - 1, **files)
