from pathlib import Path

from crsbench.adaptation.jobs import EvaluationFiles, Training, evaluate_adapted
from crsbench.core.errors import user_error_boundary

with user_error_boundary(snakemake.log[0]):
    named, read, params = snakemake.wildcards, snakemake.input, snakemake.params
    training = Training(named.encoder, named.dataset, int(named.seed), int(named.percent))
    targets = dict(zip(params.targets, map(Path, read.targets), strict=True))
    own = [Path(read[name]) for name in ("manifest", "test", "split")]
    made = Path(read.adapter[0]).parent, Path(read.head), Path(read.log)
    evaluate_adapted(
        params.settings,
        training,
        EvaluationFiles(*own, *made, targets),
        params.conditions,
        params.excluded_classes,
        Path(snakemake.output[0]),
        workers=snakemake.threads - 1,
    )
