# Recalibration: one job a cell; and a user's own model.
from crsbench.config.layout import RECALIBRATED_PARTS
from crsbench.calibration import METHODS


localrules:
    external_predictions,


rule recalibrate:
    input:
        manifest=LAYOUT.manifest,
        probes=expand(LAYOUT.probe, seed=CONFIG.seeds, percent="100", allow_missing=True),
        splits=expand(LAYOUT.split, seed=CONFIG.seeds, allow_missing=True),
        features=features_of_cell,
        targets=target_manifests,
    output:
        expand(LAYOUT.recalibrated, part=RECALIBRATED_PARTS, allow_missing=True),
    log:
        LAYOUT.log("recalibrate", "{encoder}/{dataset}"),
    conda:
        "../../envs/cpu.yaml"
    resources:  # as much as for the probes, which read the same features
        mem_mb=needs("probes", "mem_mb"),
        runtime=needs("probes", "runtime"),
    params:
        seeds=CONFIG.seeds,
        conditions=lambda wc: GRID.conditions(wc.dataset),
        targets=targets_of_dataset,
        cases=CONFIG.settings.get("recalibration", {}).get("cases", []),
        files=lambda wc: files_of_cell(wc.encoder, wc.dataset, probes=True),
    script:
        "../scripts/recalibrate.py"


rule external_predictions:
    input:
        external_table,
    output:
        table=LAYOUT.at(LAYOUT.external_predictions, file="calibration.parquet"),
        recalibrated=LAYOUT.at(LAYOUT.external_predictions, file="recalibrated.parquet"),
        figure=LAYOUT.at(LAYOUT.external_predictions, file="reliability.svg"),
        calibrators=expand(LAYOUT.external_predictions, file=[f"{name}.json" for name in METHODS]),
    log:
        LAYOUT.log("external_predictions"),
    conda:
        "../../envs/cpu.yaml"
    script:
        "../scripts/external_predictions.py"
