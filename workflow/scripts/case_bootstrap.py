import pandas as pd

from crsbench.core.errors import user_error_boundary
from crsbench.core.files import write_table
from crsbench.core.names import CLEAN
from crsbench.data.manifest import read_manifest
from crsbench.evaluation.predictions import read_test_set
from crsbench.studies.case_bootstrap import case_bootstrap

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    manifests = dict(zip(params.manifests, files.manifests, strict=True))
    n = len(params.seeds)
    kept = {cell: files.predictions[n * k : n * (k + 1)] for k, cell in enumerate(params.cells)}
    parts = []
    for dataset, targets in params.shift.items():
        of_encoders = {encoder: of for (encoder, on), of in kept.items() if on == dataset}
        for condition in (CLEAN, *targets) if of_encoders else ():
            manifest = read_manifest(manifests[dataset if condition == CLEAN else condition])
            test_set = read_test_set(manifest, condition, of_encoders)
            parts.append(case_bootstrap(test_set, dataset, condition, params.replicates))
    for name, tables in zip(("cases", "pairs"), zip(*parts, strict=True), strict=True):
        write_table(snakemake.output[name], pd.concat(tables, ignore_index=True))
