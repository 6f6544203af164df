# From images to features: one job per encoder × data set decodes each image once for all its views.
from crsbench.features.embeddings import embedding_files


def existing_encoder_files(wc):
    entry = CONFIG.encoders[wc.encoder]
    files = encoder_files(CONFIG, wc.encoder)
    if "embeddings" in entry.spec:
        conditions = [wc.target] if "target" in wc.keys() else ["clean", *GRID.degraded]
        names = CONFIG.weights_root, wc.dataset, conditions
        files = embedding_files(entry, *names).values()
    return [file for file in files if file.is_file()]


def encoder_spec(wc):
    """What decides the encoder's features: a title or a licence does not."""
    if wc.dataset in CONFIG.encoders[wc.encoder].without_datasets:
        raise WorkflowError(f"The encoder '{wc.encoder}' has no cell on '{wc.dataset}'.")
    return CONFIG.encoders[wc.encoder].feature_spec


EXTRACTION = CONFIG.settings["extraction"]


rule features:
    input:
        manifest=LAYOUT.manifest,
        test=LAYOUT.test,
        encoder=existing_encoder_files,
    output:
        expand(LAYOUT.features, condition=["clean", *GRID.degraded], allow_missing=True),
    log:
        LAYOUT.log("features", "{encoder}/{dataset}"),
    conda:
        "../../envs/gpu.yaml"
    threads: EXTRACTION["workers"] + 1
    resources:
        gpu=int(EXTRACTION["device"] == "cuda"),
    params:
        encoder=encoder_spec,
        image=CONFIG.settings["image"],
        perturbations={kind: list(levels) for kind, levels in CONFIG.perturbations.items()},
        device=EXTRACTION["device"],
        precision=EXTRACTION["precision"],
        batch_size=EXTRACTION["batch_size"],
    script:
        "../scripts/features.py"


rule shift_features:
    input:
        manifest=LAYOUT.manifest.replace("{dataset}", "{target}"),
        encoder=existing_encoder_files,
    output:
        LAYOUT.features.replace("{condition}", "{target}"),
    log:
        LAYOUT.log("features", "{encoder}/{dataset}-{target}"),
    conda:
        "../../envs/gpu.yaml"
    threads: EXTRACTION["workers"] + 1
    resources:
        gpu=int(EXTRACTION["device"] == "cuda"),
    params:
        encoder=encoder_spec,
        image=CONFIG.settings["image"],
        device=EXTRACTION["device"],
        precision=EXTRACTION["precision"],
        batch_size=EXTRACTION["batch_size"],
    script:
        "../scripts/features.py"
