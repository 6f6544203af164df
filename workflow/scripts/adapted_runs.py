from pathlib import Path

from crsbench.adaptation.jobs import EvaluationFiles, Training, evaluate_adapted
from crsbench.config.layout import Layout
from crsbench.config.load import load_config
from crsbench.core.errors import user_error_boundary
from crsbench.data.readers import image_root

with user_error_boundary(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    named, read, conditions = snakemake.wildcards, snakemake.input, snakemake.params.conditions
    layout = Layout(config.results)
    training = Training(named.encoder, named.dataset, int(named.seed), int(named.percent))
    names = [name for name in conditions if name in config.targets]
    targets = {
        name: (Path(manifest), image_root(config, layout, name))
        for name, manifest in zip(names, read.targets, strict=True)
    }
    own = [Path(read[name]) for name in ("manifest", "test", "split")]
    made = Path(read.adapter[0]).parent, Path(read.head), Path(read.log)
    files = EvaluationFiles(*own, *made, targets)
    root = image_root(config, layout, named.dataset)
    output, workers = Path(snakemake.output[0]), snakemake.threads - 1
    evaluate_adapted(config, training, files, root, conditions, output, workers)
