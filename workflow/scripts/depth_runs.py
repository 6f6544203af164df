from crsbench.errors import told_in_one_sentence
from crsbench.features.depths import probe_depths
from crsbench.probes import ProbeSettings
from crsbench.threads import use_one_thread

with told_in_one_sentence(snakemake.log[0]):
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
    )
