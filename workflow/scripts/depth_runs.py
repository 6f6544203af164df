from crsbench.core.errors import user_error_boundary
from crsbench.core.threads import use_one_thread
from crsbench.evaluation.depth import probe_depths
from crsbench.probes import ProbeSettings

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    settings = ProbeSettings(**{**params.settings, "c_grid": tuple(params.settings["c_grid"])})
    use_one_thread()
    probe_depths(
        snakemake.output[0],
        snakemake.wildcards.encoder,
        dict(zip(params.depths, files.features, strict=True)),
        files.manifest,
        dict(zip(params.seeds, files.splits, strict=True)),
        settings,
        params.extraction.made_by[snakemake.wildcards.encoder],
    )
