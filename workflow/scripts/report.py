from crsbench.core.errors import user_error_boundary
from crsbench.core.files import read_json
from crsbench.report import gallery, provenance, read_material, write_report
from crsbench.score import load_scoring

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    runs = dict(zip(params.encoder_names, files.encoder_runs, strict=True))
    titles = {name: entry["title"] for name, entry in params.datasets.items()}
    shown = dict(zip(params.shown_datasets, files.shown, strict=True))
    material = read_material(
        files,
        params.study_names,
        encoders=params.encoders,
        datasets=params.datasets,
        targets=params.targets,
        scoring=load_scoring(files.scoring),
        audits=[read_json(file) for file in files.audits],
        left_out=params.left_out,
        gallery=gallery(params.images, shown, titles),
        provenance=provenance(params.home, params.settings, runs),
    )
    write_report(snakemake.output[0], material)
