# CRS-Bench: frozen image encoder × data set × seed × condition × label fraction -> CRS.
import os

from snakemake.utils import min_version

min_version("9.13")

if not workflow.overwrite_configfiles:  # a config file of the user's own replaces ours whole

    configfile: os.path.join(workflow.basedir, "config/config.yaml")


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/features.smk"
include: "workflow/rules/runs.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/calibration.smk"
include: "workflow/rules/control_probes.smk"
include: "workflow/rules/depth.smk"
include: "workflow/rules/adaptation.smk"
include: "workflow/rules/studies.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/checks.smk"


localrules:
    all,


onstart:
    keep_planned(config, CONFIG)
    patch_rate_limiter()
    patch_pipe_search()
    follow_jobs()


onsuccess:
    report_products()


onerror:
    report_failures()


rule all:
    default_target: True
    input:
        LAYOUT.report,
        expand(LAYOUT.table, table=["runs", *SCORE_TABLES, *JOINT_TABLES, "reproduction"]),
        rules.predictions.input if CONFIG.settings["keep_predictions"] else [],
        rules.case_bootstrap.output if CONFIG.settings["bootstrap"]["case_replicates"] else [],
