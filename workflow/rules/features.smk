# From images to features. One job per encoder × data set decodes each image once for all its views;
# with `extraction.together` one job per data set decodes it once for the encoders too.


EXTRACTION = CONFIG.settings["extraction"]
TOGETHER = CONFIG.encoders_together
ALONE = [name for name in CONFIG.encoders if name not in TOGETHER]


localrules:
    weights,


rule weights:
    output:
        LAYOUT.weights,
    log:
        LAYOUT.log("weights", "{encoder}"),
    params:
        weights=lambda wc: CONFIG.encoders[wc.encoder].feature_spec.get("weights"),
        version=version_of_weights,
    run:
        from crsbench.weights.files import record

        made_of = CONFIG.encoders[wildcards.encoder], CONFIG.weights_root, LAYOUT.digests
        attempt(log[0], record, *made_of, output[0], params.version)


rule features:
    input:
        manifest=LAYOUT.manifest,
        test=LAYOUT.test,
        encoder=inputs_of_encoder,
    output:
        expand(LAYOUT.features, condition=["clean", *GRID.degraded], allow_missing=True),
    log:
        LAYOUT.log("features", "{encoder}/{dataset}"),
    wildcard_constraints:
        encoder=any_of(ALONE),
    conda:
        "../../envs/gpu.yaml"
    threads: EXTRACTION["workers"] + 1
    resources:
        gpu=int(EXTRACTION["device"] == "cuda"),
        mem_mb=needs("extraction", "mem_mb"),
        runtime=needs("extraction", "runtime"),
    params:
        made_by=lambda wc: extraction_settings(wc).made_by,
        settings=extraction_settings,
    script:
        "../scripts/features.py"


use rule features as shift_features with:
    input:
        manifest=LAYOUT.manifest.replace("{dataset}", "{target}"),
        encoder=inputs_of_encoder,
    output:
        LAYOUT.features.replace("{condition}", "{target}"),
    log:
        LAYOUT.log("features", "{encoder}/{dataset}-{target}"),


if TOGETHER:

    use rule features as features_together with:
        input:
            manifest=LAYOUT.manifest,
            test=LAYOUT.test,
            encoder=inputs_together,
        output:
            expand(
                LAYOUT.features,
                encoder=TOGETHER,
                condition=["clean", *GRID.degraded],
                allow_missing=True,
            ),
        log:
            LAYOUT.log("features", "together/{dataset}"),

    use rule shift_features as shift_features_together with:
        input:
            manifest=LAYOUT.manifest.replace("{dataset}", "{target}"),
            encoder=inputs_together,
        output:
            expand(
                LAYOUT.features.replace("{condition}", "{target}"),
                encoder=TOGETHER,
                allow_missing=True,
            ),
        log:
            LAYOUT.log("features", "together/{dataset}-{target}"),
