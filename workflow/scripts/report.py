from pathlib import Path

from crsbench.config.layout import Layout
from crsbench.config.load import load_config
from crsbench.core.errors import user_error_boundary
from crsbench.core.files import read_json
from crsbench.report import gallery, provenance, read_material, write_report
from crsbench.score import load_scoring

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    home = Path(snakemake.scriptdir).resolve().parents[1]
    config = load_config(snakemake.config, home)
    runs = dict(zip(params.encoder_names, files.encoder_runs, strict=True))
    shown = dict(zip(params.shown_datasets, files.shown, strict=True))
    material = read_material(
        files,
        params.study_names,
        encoders=params.encoders,
        datasets=params.datasets,
        targets=params.targets,
        scoring=load_scoring(files.scoring),
        audits=[read_json(file) for file in files.audits],
        left_out=config.left_out,
        gallery=gallery(config, Layout(config.results), shown),
        provenance=provenance(home, params.settings, runs),
    )
    write_report(snakemake.output[0], material)
