from crsbench.core.errors import user_error_boundary
from crsbench.core.threads import use_one_thread
from crsbench.evaluation.runs import CellFiles
from crsbench.score.resampling import resample_cell

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    use_one_thread()
    splits = dict(zip(params.seeds, files.splits, strict=True))
    features = dict(zip(params.conditions, files.features, strict=True))
    targets = dict(zip(params.targets, files.targets, strict=True))
    n = len(params.fractions)  # of each seed, its fractions one after the other
    cells = {}
    for place, percent in enumerate(params.fractions):
        probes = dict(zip(params.seeds, files.probes[place::n], strict=True))
        tested = features if percent == 100 else {"clean": features["clean"]}
        cells[percent] = CellFiles(files.manifest, splits, tested, targets, probes)
    resample_cell(snakemake.output[0], cells, params.seeds, params.replicates)
