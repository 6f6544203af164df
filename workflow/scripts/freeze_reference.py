from crsbench.core.errors import user_error_boundary
from crsbench.core.files import read_json, read_table
from crsbench.core.hashing import sha256_of_file
from crsbench.score import freeze_reference, load_scoring

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    digests = {"runs": sha256_of_file(files.runs), "scoring": sha256_of_file(files.scoring)}
    for dataset, manifest in zip(params.datasets, files.manifests, strict=True):
        digests[f"manifest {dataset}"] = sha256_of_file(manifest)
    for encoder, run in zip(params.encoders, files.encoder_runs, strict=True):
        digests[f"weights {encoder}"] = read_json(run)["weights_sha256"]
    axes, _ = read_table(files.axes)
    scoring = load_scoring(files.scoring)
    freeze_reference(params.file, axes, scoring, digests, floors=params.floors)
