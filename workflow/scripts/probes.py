from crsbench.errors import told_in_one_sentence
from crsbench.probes.fitted import ProbeSettings
from crsbench.runs import fit_probes
from crsbench.threads import use_one_thread

with told_in_one_sentence(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    settings = ProbeSettings(**{**params.settings, "c_grid": tuple(params.settings["c_grid"])})
    outputs = dict(zip(params.fractions, snakemake.output, strict=True))
    use_one_thread()
    fit_probes(files.features, files.manifest, files.split, outputs, settings)
