"""What a schema cannot say: names that must exist elsewhere, keys that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crsbench.config.model import EMBEDDING_FORMATS, Config, DatasetEntry, EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.names import CALIBRATION, CLEAN, nearest


def check_label_rules(entry: DatasetEntry, file: Path) -> None:
    """`label_map` maps to classes (a table: several names to one); three more keys name classes."""
    label_map, uncertain = entry.spec.get("label_map", {}), entry.spec.get("uncertain", {})
    named = {
        "excluded_classes": list(entry.excluded_classes),
        "positive_classes": [
            name for members in entry.positive_classes.values() for name in members
        ],
        "label_map": list(label_map.values()),
        "uncertain": [] if isinstance(uncertain, str) else list(uncertain),
    }
    for key, names in named.items():
        for name in names:
            if name not in entry.classes:
                raise UserError(
                    f"{file}: {key} of data set '{entry.name}' names '{name}', which is none of "
                    f"its classes{nearest(name, entry.classes)}."
                )
    if entry.task == "multilabel":
        for name, members in entry.positive_classes.items():
            if len(members) > 1:
                raise UserError(
                    f"{file}: positive_classes of data set '{entry.name}' makes '{name}' of "
                    f"{len(members)} labels; allowed for a multi-label data set is one, since "
                    "their probabilities do not add up."
                )
    if set(entry.excluded_classes) == set(entry.classes):
        raise UserError(
            f"{file}: excluded_classes of data set '{entry.name}' leaves none of its classes."
        )
    for name in label_map:
        if isinstance(name, bool) or name is None:
            raise UserError(
                f"{file}: label_map of data set '{entry.name}' has the key {name}, which YAML does "
                "not read as text; write what stands in the table in quotation marks."
            )
    taken = [*label_map.values(), *label_map]
    if entry.spec.get("reader") == "table":  # one's own table may spell a class in several ways
        for name, label in label_map.items():
            if name in entry.classes and name != label:
                raise UserError(
                    f"{file}: label_map of data set '{entry.name}' maps its class '{name}' to "
                    f"'{label}'; allowed are names that are no class of its own."
                )
        taken = []
    twice = sorted({name for name in entry.classes if taken.count(name) > 1})
    if twice:
        raise UserError(
            f"{file}: label_map of data set '{entry.name}' must be one to one; '{twice[0]}' has "
            "more than one name."
        )


def check_label_columns(entry: DatasetEntry, file: Path) -> None:
    columns, separator = entry.spec["columns"], entry.spec.get("separator")
    where = f"{file}: data set '{entry.name}'"
    if ("label" in columns) == ("labels" in columns):
        raise UserError(
            f"{where}: columns must have either `label` (one column) or `labels` (class: column)."
        )
    if entry.task == "multiclass" and ("labels" in columns or separator is not None):
        raise UserError(f"{where} is multiclass: it takes `label` and no `labels` or `separator`.")
    if entry.task == "multilabel" and ("label" in columns) != (separator is not None):
        raise UserError(
            f"{where} is multilabel: `label` goes with a `separator`, `labels` goes without one."
        )
    if "labels" in columns and "label_map" in entry.spec:
        raise UserError(f"{where}: label_map has no meaning beside `labels`, a column a class.")
    if "labels" in columns and set(columns["labels"]) != set(entry.classes):
        odd = sorted(set(columns["labels"]) ^ set(entry.classes))
        raise UserError(f"{where}: `labels` must name each of its classes once; check {odd}.")


def check_relations(config: Config, encoder_file: Path, dataset_specs: Mapping[str, Any]) -> None:
    """What a schema cannot say: names that must exist elsewhere or must not collide."""
    for encoder in config.encoders.values():
        for name in encoder.without_datasets:
            if name not in dataset_specs:
                raise UserError(
                    f"{encoder_file}: encoder '{encoder.name}' excludes the unknown data set "
                    f"'{name}'{nearest(name, dataset_specs)}."
                )
        for name in encoder.spec.get("pretraining", ()):
            if name not in dataset_specs:
                raise UserError(
                    f"{encoder_file}: pretraining of encoder '{encoder.name}' names the unknown "
                    f"data set '{name}'{nearest(name, dataset_specs)}."
                )
        _check_embeddings(encoder, encoder_file)
    _check_depth_sweep(config)
    _check_adaptation(config)
    extraction = config.settings["extraction"]
    if extraction["device"] == "cpu" and extraction["precision"] != "float32":
        raise UserError(
            f"extraction.precision is {extraction['precision']} with extraction.device cpu; "
            "allowed there: float32."
        )
    if config.control_probes is not None:
        _check_control_probes(config)
    conditions = {CLEAN, CALIBRATION, *config.degraded}
    for name, target in config.targets.items():
        if name in conditions:
            raise UserError(f"The shift target '{name}' has the name of a condition; rename it.")
        for source in config.datasets.values():
            if name in source.shift:
                _check_target(source, target)


def check_without_images(config: Config, shown: Sequence[str]) -> None:
    """A data set without images has none to encode or to show."""
    for name in [*config.datasets, *config.targets]:
        if not config.dataset(name).without_images:
            continue
        of = [name] if name in config.datasets else []
        of += [source.name for source in config.datasets.values() if name in source.shift]
        for encoder in config.encoders.values():
            cells = [
                source
                for source in of
                if source not in encoder.without_datasets
                and (encoder.name, source) not in config.left_out
            ]
            if cells and "embeddings" not in encoder.spec:
                raise UserError(
                    f"The data set '{name}' is without_images, and the encoder '{encoder.name}' "
                    "has to see them; allowed there are encoders of the library embeddings."
                )
        if name in shown:
            raise UserError(f"report.gallery names '{name}', a data set that is without_images.")


def _check_control_probes(config: Config) -> None:
    control = config.control_probes
    if not {"neighbours", "perceptron"} & set(control):
        raise UserError(
            "control_probes names no probe; it needs the key neighbours, perceptron or both."
        )
    unknown = sorted(set(control["fractions"]) - set(config.fractions))
    if unknown:
        raise UserError(
            f"control_probes.fractions has {unknown[0]}, which is none of the label fractions; "
            f"allowed: {', '.join(map(str, config.fractions))}."
        )


def _check_depth_sweep(config: Config) -> None:
    """The sweep's names are of the panel, and there is a cell to sweep."""
    sweep = config.settings.get("depth_sweep")
    if sweep is None:
        return
    _check_panel_names(config, "depth_sweep", sweep)
    for name in sweep["without_norm"]:
        if name not in sweep["encoders"]:
            raise UserError(
                f"depth_sweep.without_norm names '{name}'{nearest(name, sweep['encoders'])}; "
                f"allowed are the encoders of the sweep: {', '.join(sweep['encoders'])}."
            )


def _check_adaptation(config: Config) -> None:
    """Every name and number of the section is one of the config's own."""
    section = config.settings.get("adaptation")
    if section is None:
        return
    _check_panel_names(config, "adaptation", section)
    targets = {name for dataset in section["datasets"] for name in config.datasets[dataset].shift}
    chosen = [] if section["conditions"] == "all" else section["conditions"]
    for key, found, known in (
        ("seeds", section["seeds"], config.seeds),
        ("fractions", section["fractions"], config.fractions),
        ("conditions", chosen, [*config.degraded, *sorted(targets)]),
        ("target_modules", section["target_modules"], section["encoders"]),
    ):
        for value in found:
            if value not in known:
                hint = nearest(value, known) if isinstance(value, str) else ""
                raise UserError(
                    f"adaptation.{key} has {value!r}{hint}; allowed: {', '.join(map(str, known))}."
                )
    for encoder, pattern in section["target_modules"].items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(
                f"adaptation.target_modules.{encoder} is '{pattern}', no regular expression: "
                f"{error}."
            ) from error
    if config.settings["extraction"]["device"] == "cpu" and section["precision"] != "float32":
        raise UserError(
            f"adaptation.precision is {section['precision']} with extraction.device cpu; allowed "
            "there: float32."
        )


def _check_panel_names(config: Config, key: str, section: Mapping[str, Any]) -> None:
    """`encoders` and `datasets` of a section are in the panel, and each encoder has a cell."""
    for kind, panel in (("encoders", config.encoders), ("datasets", config.datasets)):
        for name in section[kind]:
            if name not in panel:
                raise UserError(
                    f"{key}.{kind} names '{name}'{nearest(name, panel)}, which is not in {kind}; "
                    f"allowed: {', '.join(panel)}."
                )
    for name in section["encoders"]:
        if set(section["datasets"]) <= set(config.encoders[name].without_datasets):
            raise UserError(
                f"{key}.encoders names '{name}', which has no cell on {key}.datasets: "
                f"{', '.join(section['datasets'])}."
            )


def _check_target(source: DatasetEntry, target: DatasetEntry) -> None:
    """A shift target has its source's task, and all or some of its classes in any order."""
    if target.task != source.task:
        raise UserError(
            f"The shift target '{target.name}' is {target.task}; it must be {source.task}, as "
            f"'{source.name}' is."
        )
    for name in target.classes:
        if name not in source.classes:
            raise UserError(
                f"The shift target '{target.name}' has the class '{name}', which '{source.name}' "
                f"lacks{nearest(name, source.classes)}; allowed: {', '.join(source.classes)} (its "
                "table may name them otherwise: see label_map)."
            )


def _check_embeddings(encoder: EncoderEntry, file: Path) -> None:
    """The pattern of the user's own files names each data set and condition, and their format."""
    pattern = encoder.spec.get("embeddings", "{dataset}{condition}.npz")
    rest = pattern.replace("{dataset}", "", 1).replace("{condition}", "", 1)
    if len(rest) != len(pattern) - len("{dataset}{condition}") or set(rest) & set("{}"):
        raise UserError(
            f"{file}: embeddings of encoder '{encoder.name}' is '{pattern}'; it must hold "
            "{dataset} and {condition}, once each, and no other braces."
        )
    if Path(pattern).suffix not in EMBEDDING_FORMATS:
        raise UserError(
            f"{file}: embeddings of encoder '{encoder.name}' is '{pattern}'; allowed endings: "
            f"{', '.join(EMBEDDING_FORMATS)}."
        )
