from crsbench.errors import told_in_one_sentence
from crsbench.predictions import keep_predictions
from crsbench.threads import use_one_thread

with told_in_one_sentence(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    use_one_thread()
    keep_predictions(
        snakemake.output[0],
        files.probe,
        dict(zip(params.conditions, files.features, strict=True)),
        files.manifest,
        files.split,
        dict(zip(params.shift, files.targets, strict=True)),
    )
