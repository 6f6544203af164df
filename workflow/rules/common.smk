# Shared by all: the configuration, the grid, the names of the files, the input functions.
import gc
import inspect
import logging
import os
import re
import sys
from functools import cache
from pathlib import Path

from snakemake.common import __version__ as snakemake_version
from snakemake.exceptions import WorkflowError
from snakemake.utils import update_config

# The folder of this file's Snakefile: workflow.basedir is that of a workflow which imports it.
HOME = Path(workflow.current_basedir.get_path_or_uri(secret_free=False)).parents[1]
# The library beside this workflow is the one that runs, here and in every job's process.
sys.path.insert(0, str(HOME / "src"))
OTHERS = os.environ.get("PYTHONPATH", "")
os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, [str(HOME / "src"), OTHERS])))

from crsbench.config.load import load_config
from crsbench.config.planned import keep_planned, load_planned
from crsbench.config.schema import read_unique_keys, typed
from crsbench.operations.console import Console, failure_report, is_noise, summary
from crsbench.config.sources import encoder_inputs, image_root
from crsbench.data.readers import source_tables
from crsbench.data.audit_page import notices
from crsbench.core.errors import UserError, attempt
from crsbench.evaluation.runs import CellFiles
from crsbench.features.embeddings import embedding_files
from crsbench.features.settings import ExtractionSettings, ImageSettings
from crsbench.core.hashing import sha256_of_file
from crsbench.config.grid import Grid
from crsbench.config.layout import Layout
from crsbench.operations.targets import check_targets
from crsbench.operations.resources import NEEDS, control_needs
from crsbench.core.threads import use_one_thread
from crsbench.weights.files import version

use_one_thread()  # this process works off the runs
# A graph of 18,000 jobs is millions of objects that stay; with Python's own thresholds a quarter of
# the time to plan it goes into looking for garbage among them.
gc.set_threshold(50_000, 20, 100)

# A job in a process of its own has the settings that the main process started with, whatever the
# files of the config and the registries say by now.
try:
    if workflow.is_main_process:
        for file in workflow.configfiles:  # Snakemake's own reading keeps the last of equal keys
            read_unique_keys(file)
        update_config(config, typed(workflow.config_settings.config))
    CONFIG = load_config(config, HOME) if workflow.is_main_process else load_planned(HOME)
except UserError as error:
    raise WorkflowError(error)
if workflow.is_main_process and CONFIG.lacking_note:
    print(CONFIG.lacking_note, file=sys.stderr)

GRID = Grid(CONFIG)
LAYOUT = Layout(CONFIG.results)
CONSOLE = Console()
PLANNED_WEIGHTS = {}


def any_of(names):
    """A wildcard constraint that matches exactly these names (nothing, if there are none)."""
    return "|".join(map(re.escape, names)) or "(?!)"


def phantom_table(wc):
    synthetic = CONFIG.dataset(wc.dataset).synthetic
    return LAYOUT.at(LAYOUT.phantoms, dataset=wc.dataset) if synthetic else []


def table_digests(wc):
    """The publisher's tables by content: where they lie and when they were copied says nothing.

    A table that is not there has no digest: the grid can be planned without data, and the job says
    in one sentence what is missing.
    """
    entry = CONFIG.dataset(wc.dataset)
    if entry.synthetic or "reader" not in entry.spec:
        return []
    tables = source_tables(entry, image_root(CONFIG, wc.dataset))
    return [sha256_of_file(table) for table in tables]


def seeds_of_dataset(wc):
    """A panel data set is split for every seed, a shift target is not split."""
    return list(CONFIG.seeds) if wc.dataset in CONFIG.datasets else []


def targets_of_dataset(wc):
    return list(CONFIG.dataset(wc.dataset).shift) if wc.dataset in CONFIG.datasets else []


def inputs_of_encoder(wc):
    entry = CONFIG.encoders[wc.encoder]
    if "embeddings" not in entry.spec:
        return encoder_inputs(CONFIG, LAYOUT, wc.encoder)
    conditions = [wc.target] if "target" in wc.keys() else ["clean", *GRID.degraded]
    files = embedding_files(entry, CONFIG.weights_root, wc.dataset, conditions).values()
    return [file for file in files if file.is_file()]


def inputs_together(_):
    names = CONFIG.encoders_together
    return [file for name in names for file in encoder_inputs(CONFIG, LAYOUT, name)]


def version_of_weights(wc):
    """Weights by content: where they lie and when they were copied says nothing."""
    if wc.encoder not in PLANNED_WEIGHTS:  # once: while it runs, the job deletes and fetches
        record = LAYOUT.at(LAYOUT.weights, encoder=wc.encoder)
        made_of = CONFIG.encoders[wc.encoder], CONFIG.weights_root
        PLANNED_WEIGHTS[wc.encoder] = version(*made_of, LAYOUT.digests, record)
    return PLANNED_WEIGHTS[wc.encoder]


# A rule's `params` that are plain values are what Snakemake compares, to run again what other values
# made. Those that are objects of the library (settings, registry entries, paths) it hands to the
# script as they are and does not compare: beside them stands what of them decides the result.


def check_cell(wc):
    if wc.dataset in CONFIG.encoders[wc.encoder].without_datasets:
        raise WorkflowError(f"The encoder '{wc.encoder}' has no cell on '{wc.dataset}'.")
    if (wc.encoder, wc.dataset) in CONFIG.left_out:
        raise WorkflowError(f"The config leaves '{wc.encoder}' out on '{wc.dataset}' (without).")


def clean_settings(wc):
    """To embed a data set's images as they are with one encoder."""
    check_cell(wc)
    return ExtractionSettings.of(CONFIG, [wc.encoder], [wc.dataset], degraded=False)


def extraction_settings(wc):
    """To embed the images of a data set, or of its shift target, with one encoder or several."""
    if "encoder" in wc.keys():
        check_cell(wc)
    encoders = [wc.encoder] if "encoder" in wc.keys() else CONFIG.encoders_together
    images, degraded = wc.get("target", wc.dataset), "target" not in wc.keys()
    return ExtractionSettings.of(CONFIG, encoders, [images], degraded=degraded)


@cache
def features_made_by(encoder, condition):
    """What a file of features must have been made by, for who reads it."""
    degraded = condition not in CONFIG.targets
    return ExtractionSettings.of(CONFIG, [encoder], [], degraded=degraded).made_by[encoder]


def all_runs(_):
    return [LAYOUT.run_file(run) for run in GRID.runs()]


def run_files(run, probe, features, clean=""):
    """All that a run reads; `clean` of a run on a shift target."""
    return {
        **{"probe": str(probe), "features": str(features), "clean": str(clean)},
        "manifest": LAYOUT.at(LAYOUT.manifest, dataset=run.dataset),
        "split": LAYOUT.at(LAYOUT.split, dataset=run.dataset, seed=run.seed),
        "target": LAYOUT.at(LAYOUT.manifest, dataset=run.condition) if clean else "",
        "made_by": features_made_by(run.encoder, run.condition),
    }


def files_of_cell(encoder, dataset, probes=False):
    """All that the runs of a cell read; probes: with those of all labels."""
    names = {"encoder": encoder, "dataset": dataset}
    at, seeds, conditions = LAYOUT.at, CONFIG.seeds, GRID.conditions(dataset)
    return CellFiles(
        manifest=at(LAYOUT.manifest, **names),
        splits={seed: at(LAYOUT.split, **names, seed=seed) for seed in seeds},
        features={name: at(LAYOUT.features, **names, condition=name) for name in conditions},
        targets={
            name: at(LAYOUT.manifest, dataset=name) for name in CONFIG.datasets[dataset].shift
        },
        probes={
            seed: at(LAYOUT.probe, **names, seed=seed, percent="100") for seed in seeds if probes
        },
        made_by={name: features_made_by(encoder, name) for name in conditions},
    )


def excluded_classes_of(wc):
    return CONFIG.dataset(wc.dataset).excluded_classes


def follow_jobs():
    """One line of progress in place of several a job, and a record of what fails."""
    logger = logging.getLogger("snakemake.logging")
    for handler in logger.handlers:
        if handler.name == "DefaultStreamHandler":
            handler.addFilter(lambda record: not is_noise(record))
    logger.addHandler(CONSOLE)


def report_failures():
    without = CONFIG.settings.get("without", {})
    failures = failure_report(CONSOLE, sys.argv, without, len(workflow.dag))
    print(f"\n{failures}", file=sys.stderr)


def report_products():
    print(f"\n{summary(CONSOLE, CONFIG.results, LAYOUT.report)}", file=sys.stderr)
    known = notices(expand(LAYOUT.audit, dataset=[*CONFIG.datasets, *CONFIG.targets]))
    if known:
        print(f"What the audits found first (snakemake audits):\n{known}", file=sys.stderr)


def as_known(name, private, *parameters):
    """Whether something private of Snakemake has the form that its patch was written for."""
    if callable(private) and list(inspect.signature(private).parameters) == list(parameters):
        return True
    print(
        f"crsbench: the {name} of Snakemake {snakemake_version} is not the one that is patched "
        "here; the run goes on without the patch, and slower.",
        file=sys.stderr,
    )
    return False


def patch_rate_limiter():
    """No limit to the jobs a second, unless one was asked for.

    Snakemake 9.27's limiter sets a timer at every round of its scheduler, and every timer starts
    another round: while 12 probes were fitted there were 22,000, which took a core of their own. A
    longer span is no way out: the process does not end before its timers. The plugin for SLURM
    submits two jobs at a time whatever the limit.
    """
    limit = workflow.scheduling_settings.max_jobs_per_timespan
    default = limit is not None and (limit.max_jobs, limit.timespan) == (100, 1)
    if workflow.touch or not default:  # to touch files there is no limiter
        return
    limiter = getattr(workflow.scheduler, "job_rate_limiter", None)
    if as_known("rate limiter", limiter and type(limiter), "limit"):
        workflow.scheduler.job_rate_limiter = None


def patch_pipe_search():
    """Snakemake 9.27 looks for each input of a job through all its dependencies, to know whether
    it is a pipe: of a table of 52,725 runs that took four minutes. This workflow has none.
    """
    from snakemake.jobs import Job

    search = getattr(Job, "is_pipe_or_service_input", None)
    if as_known("search for pipes", search, "self", "path"):
        Job.is_pipe_or_service_input = lambda job, path: False


def patch_missing_targets():
    """Snakemake 9.27 says of a target that nothing makes neither what was meant nor what there is."""
    prepare = getattr(workflow, "_prepare_dag", None)
    known = ["forceall", "ignore_incomplete", "lock_warn_only", "nolock", "shadow_prefix"]
    if not as_known("preparation of the graph", prepare, *known):
        return

    def prepare_known_targets(*arguments, **options):
        rules = list(workflow.rules)
        named = [rule.name for rule in rules if not rule.has_wildcards()]
        parts = [*CONFIG.encoders, *CONFIG.datasets, *CONFIG.targets, "clean", *GRID.degraded]
        parts += [*STUDY_NAMES, *SCORE_TABLES]

        def is_made(path):
            return os.path.exists(path) or any(rule.is_producer(path) for rule in rules)

        try:
            check_targets(workflow.dag_settings.targets, named, parts, is_made)
        except UserError as error:
            raise WorkflowError(error)
        prepare(*arguments, **options)

    workflow._prepare_dag = prepare_known_targets


def needs(work, what):
    """What a job asks of a cluster: `what` (mem_mb, runtime) for a kind of work, more at a retry."""
    return lambda wc, attempt: getattr(
        NEEDS[work](CONFIG, wc.get("target", wc.dataset)).at(attempt), what
    )


def features_of_cell(wc):
    """The feature files of a cell, in the order of its conditions."""
    conditions = GRID.conditions(wc.dataset)
    return expand(LAYOUT.features, **wc, condition=conditions)


def target_manifests(wc):
    return expand(LAYOUT.manifest, dataset=CONFIG.datasets[wc.dataset].shift)


def external_table(wc):
    """The table of a user's own model, which must be there."""
    name = CONFIG.settings.get("external_predictions")
    if name is None:
        raise WorkflowError(
            "The target external_predictions needs a table: --config external_predictions=FILE (see docs/calibration.md)."
        )
    if not os.path.isfile(name):
        raise WorkflowError(f"external_predictions names the file {name}, which does not exist.")
    return name


def needs_of_control(cells, what):
    """The same for a job of control probes, which has no wildcards."""
    return lambda wc, attempt: getattr(control_needs(CONFIG, cells).at(attempt), what)


def settings_of_adapted(wc):
    """To embed the images of a training's data set and of its shift targets."""
    check_cell(wc)
    datasets = [wc.dataset, *CONFIG.datasets[wc.dataset].shift]
    return ExtractionSettings.of(CONFIG, [wc.encoder], datasets)


def adapted_targets(wc):
    """The shift targets that an adapted encoder is tested on."""
    conditions = GRID.adapted_conditions(wc.dataset, int(wc.percent))
    return [name for name in conditions if name in CONFIG.targets]


def adaptation_studies(_):
    if not ADAPTATION_STUDIES:
        raise WorkflowError("The config has no section `adaptation`; config/README.md explains it.")
    return expand(LAYOUT.study, study=ADAPTATION_STUDIES)


def table(name):
    return LAYOUT.at(LAYOUT.table, table=name)


wildcard_constraints:
    encoder=any_of(CONFIG.encoders),
    dataset=any_of([*CONFIG.datasets, *CONFIG.targets]),
    target=any_of(CONFIG.targets),
    condition=any_of(["clean", *GRID.degraded]),
    seed=any_of(map(str, CONFIG.seeds)),
    percent=any_of(f"{percent:03d}" for percent in CONFIG.fractions),


patch_missing_targets()
