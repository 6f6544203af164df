"""The validated, frozen configuration: one config file and the two registries that it names.

Everything the workflow may be told stands in three YAML files, each closed by a JSON Schema in
`workflow/schemas/`: an unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonschema import Draft202012Validator, ValidationError

from crsbench.errors import UserError

Task = Literal["multiclass", "multilabel"]

CLEAN = "clean"

CALIBRATION = "calibration"
"""What kept predictions of the calibration set are filed under, beside those of the conditions."""

FEATURE_KEYS = (
    *("library", "model", "architecture", "checkpoint", "prefix", "feature", "cut_to_blocks"),
    *("weights", "embeddings", "general_twin", "preprocessing"),
)
"""The keys of an encoder's registry entry that its features depend on."""

BESIDE_WEIGHTS = ("sha256", "md5", "source")
"""The keys of an encoder's weights that do not decide what is loaded."""

BESIDE_MANIFEST = ("title", "licence", "apart", "detect", "shift", "expected_images")
"""The keys of a data set's registry entry that its manifest does not depend on."""

EMBEDDING_FORMATS = (".arrow", ".parquet", ".npz")
"""The endings of the files that own embeddings may lie in."""


@dataclass(frozen=True)
class EncoderEntry:
    """One encoder of the registry; `spec` is its entry as written, the truth for its results."""

    name: str
    title: str
    group: Literal["general", "medical", "specialist", "floor"]
    spec: Mapping[str, Any] = field(repr=False)

    @property
    def untrained(self) -> bool:
        return self.spec.get("weights") == "untrained"

    @property
    def has_weights(self) -> bool:
        """Whether the model is loaded from weights files."""
        return self.spec.get("weights") not in (None, "untrained")

    @property
    def is_floor(self) -> bool:
        """Whether the encoder is a floor: shown apart, never part of a reference panel."""
        return self.group == "floor"

    @property
    def without_datasets(self) -> tuple[str, ...]:
        return tuple(self.spec.get("without_datasets", ()))

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What may stand before the wanted tensors' names in the encoder's checkpoint."""
        return tuple(self.spec.get("prefix", ("",)))

    @property
    def configuration_file(self) -> str | None:
        """The file beside the weights that the library reads the architecture from, if any."""
        library = self.spec.get("library")
        if library == "transformers" and "architecture" not in self.spec:
            return "config.json"
        if library == "open_clip" and self.spec["model"] == "open_clip_config.json":
            return "open_clip_config.json"
        if library == "timm" and "folder" in self.spec["weights"]:
            return "config.json"
        return None

    @property
    def feature_spec(self) -> dict[str, Any]:
        """The part of the entry that decides what the encoder's features are.

        Not where a file is to be had, nor the digest that it must have: to state these of the file
        that was used changes nothing.
        """
        spec = {key: self.spec[key] for key in FEATURE_KEYS if key in self.spec}
        if isinstance(spec.get("weights"), Mapping):
            spec["weights"] = {k: v for k, v in spec["weights"].items() if k not in BESIDE_WEIGHTS}
        return spec

    def pretrained_on(self, dataset: str) -> bool | None:
        """Whether pre-training included the images of a data set; None where it is not known."""
        known = self.spec.get("pretraining", {})
        return known[dataset]["included"] if dataset in known else None


@dataclass(frozen=True)
class DatasetEntry:
    """One data set of the registry; `spec` is its entry as written."""

    name: str
    title: str
    task: Task
    classes: tuple[str, ...]
    shift: tuple[str, ...]
    spec: Mapping[str, Any] = field(repr=False)

    @property
    def manifest_spec(self) -> dict[str, Any]:
        """The part of the entry that its manifest depends on."""
        return {key: self.spec[key] for key in self.spec if key not in BESIDE_MANIFEST}

    @property
    def apart(self) -> tuple[str, ...]:
        """The classes that a second macro-AUROC leaves out."""
        return tuple(self.spec.get("apart", ()))

    @property
    def detect(self) -> dict[str, tuple[str, ...]]:
        """What an operating point is to find: by name the classes that make it; default, each."""
        named = self.spec.get("detect", {name: [name] for name in self.classes})
        return {name: tuple(classes) for name, classes in named.items()}

    @property
    def without_images(self) -> bool:
        """Whether only the labels are at hand, for encoders that bring embeddings of their own."""
        return bool(self.spec.get("without_images", False))

    @property
    def synthetic(self) -> bool:
        return self.spec.get("reader") == "phantom"


@dataclass(frozen=True)
class Config:
    """A run of the benchmark.

    `encoders` and `datasets` are the panel in the order of the config; `targets` are the foreign
    data sets that a panel data set names under `shift`. `settings` is the config as written. An
    encoder that is left out on every data set is not in `encoders`, nor in the sections of the
    settings that have `encoders` of their own.
    """

    home: Path
    results: Path
    encoders: Mapping[str, EncoderEntry]
    datasets: Mapping[str, DatasetEntry]
    targets: Mapping[str, DatasetEntry]
    seeds: tuple[int, ...]
    fractions: tuple[int, ...]
    perturbations: Mapping[str, tuple[float, ...]]
    settings: Mapping[str, Any] = field(repr=False)
    left_out: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Cells (encoder, data set) that the config leaves out of the panel, each with its reason."""
    lacking: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By section of the settings the names that it lost because the panel lacks them."""

    @property
    def data_root(self) -> Path:
        return Path(self.settings["data_root"])

    @property
    def weights_root(self) -> Path:
        return Path(self.settings["weights_root"])

    @property
    def scoring_file(self) -> Path:
        return self.home / self.settings["scoring"]

    @property
    def reference_file(self) -> Path | None:
        """The frozen reference to score against, below the working directory."""
        name = self.settings["reference"]
        return None if name is None else Path(name)

    @property
    def encoders_together(self) -> list[str]:
        """The encoders that one job extracts side by side: those with a cell on every data set."""
        if not self.settings["extraction"].get("together", False):
            return []
        return [
            name
            for name, entry in self.encoders.items()
            if "embeddings" not in entry.spec and not entry.without_datasets
        ]

    @property
    def control_probes(self) -> Mapping[str, Any] | None:
        """The key of that name, if there is one."""
        return self.settings.get("control_probes")

    @property
    def told_lacking(self) -> str:
        """In one line which sections lost which names; "" for none."""
        parts = [
            f"{section} {'without' if section in self.settings else 'is not made, without'} "
            f"{', '.join(names)}"
            for section, names in self.lacking.items()
        ]
        return f"Left out, for the panel lacks them: {'; '.join(parts)}." if parts else ""

    @property
    def floors(self) -> list[str]:
        return [name for name, entry in self.encoders.items() if entry.is_floor]

    @property
    def degraded(self) -> list[str]:
        """The perturbed conditions, `{kind}-{severity}` with severities from 1 (mild) up."""
        return [
            f"{kind}-{severity}"
            for kind, levels in self.perturbations.items()
            for severity in range(1, len(levels) + 1)
        ]

    def dataset(self, name: str) -> DatasetEntry:
        """The panel data set or shift target called `name`."""
        return self.datasets[name] if name in self.datasets else self.targets[name]


def load_config(settings: Mapping[str, Any], home: Path) -> Config:
    """Validate a run's settings and the registries that they name.

    settings: the mapping of `config/config.yaml`'s form; home: the workflow's own folder, which
    holds `workflow/schemas/` and to which the registry and scoring paths are relative (`results`,
    `data_root`, `weights_root`, `reference` and `freeze_to` are relative to the working directory).

    Raises UserError on an unknown key, a value out of its range, an unknown name, a missing file.
    """
    home = Path(home)
    _validate(settings, home, "config", "the config")
    encoder_file = home / settings["encoder_registry"]
    dataset_file = home / settings["dataset_registry"]
    encoder_specs = read_closed(encoder_file, home, "encoders")
    dataset_specs = read_closed(dataset_file, home, "datasets")

    encoders = {
        name: EncoderEntry(name, spec["title"], spec["group"], spec)
        for name, spec in _select(settings["encoders"], encoder_specs, "encoder", encoder_file)
    }
    datasets = {
        name: _dataset_entry(name, spec, dataset_file)
        for name, spec in _select(settings["datasets"], dataset_specs, "data set", dataset_file)
    }
    target_names = sorted({target for entry in datasets.values() for target in entry.shift})
    targets = {
        name: _dataset_entry(name, spec, dataset_file)
        for name, spec in _select(target_names, dataset_specs, "shift target", dataset_file)
    }
    left_out = _left_out(settings, encoders, datasets)
    panel = _with_a_cell(encoders, datasets, left_out)
    settings = _without(settings, set(encoders) - set(panel))
    settings, lacking = _narrowed(settings, encoder_specs, dataset_specs, panel, datasets)
    config = Config(
        home=home,
        results=Path(settings["results"]),
        encoders=panel,
        datasets=datasets,
        targets=targets,
        seeds=tuple(settings["seeds"]),
        fractions=tuple(sorted(settings["fractions"])),
        perturbations={k: tuple(v) for k, v in settings["perturbations"].items()},
        settings=settings,
        left_out=left_out,
        lacking=lacking,
    )
    _check_relations(config, encoder_file, dataset_specs)
    named = [settings["studies"]["baseline_encoder"]]
    named += settings.get("recalibration", {}).get("primary", [])
    _select(named, encoder_specs, "encoder", encoder_file)
    shown = settings.get("report", {}).get("gallery", [])
    _select(shown, datasets, "data set in report.gallery", "the panel")
    _check_without_images(config, shown)
    points = settings["studies"].get("operating_points")
    if points and ("sensitivity" in points) == ("specificity" in points):
        raise UserError(
            "studies.operating_points must have either `sensitivity` or `specificity`, one of the "
            "two."
        )
    return config


def _dataset_entry(name: str, spec: Mapping[str, Any], file: Path) -> DatasetEntry:
    entry = DatasetEntry(
        name,
        spec["title"],
        spec["task"],
        tuple(spec["classes"]),
        tuple(spec.get("shift", ())),
        spec,
    )
    if entry.task == "multiclass" and len(entry.classes) < 2:
        raise UserError(f"{file}: data set '{name}' is multiclass and needs two classes or more.")
    if spec.get("reader") == "table":
        _check_label_columns(entry, file)
    _check_label_rules(entry, file)
    return entry


def _check_label_rules(entry: DatasetEntry, file: Path) -> None:
    """`label_map` maps one to one on to classes; `uncertain`, `apart`, `detect` name classes."""
    label_map, uncertain = entry.spec.get("label_map", {}), entry.spec.get("uncertain", {})
    named = {
        "apart": list(entry.apart),
        "detect": [name for members in entry.detect.values() for name in members],
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
        for name, members in entry.detect.items():
            if len(members) > 1:
                raise UserError(
                    f"{file}: detect of data set '{entry.name}' makes '{name}' of {len(members)} "
                    "labels; allowed for a multi-label data set is one, since their probabilities "
                    "do not add up."
                )
    if set(entry.apart) == set(entry.classes):
        raise UserError(f"{file}: apart of data set '{entry.name}' leaves none of its classes.")
    taken = [*label_map.values(), *label_map]
    twice = sorted({name for name in entry.classes if taken.count(name) > 1})
    if twice:
        raise UserError(
            f"{file}: label_map of data set '{entry.name}' must be one to one; '{twice[0]}' has "
            "more than one name."
        )


def _check_label_columns(entry: DatasetEntry, file: Path) -> None:
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
    if "labels" in columns and set(columns["labels"]) != set(entry.classes):
        odd = sorted(set(columns["labels"]) ^ set(entry.classes))
        raise UserError(f"{where}: `labels` must name each of its classes once; check {odd}.")


def _check_relations(config: Config, encoder_file: Path, dataset_specs: Mapping[str, Any]) -> None:
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
    conditions = {CLEAN, CALIBRATION} | {
        f"{kind}-{level + 1}"
        for kind, levels in config.perturbations.items()
        for level in range(len(levels))
    }
    conditions = {CLEAN, CALIBRATION, *config.degraded}
    for name, target in config.targets.items():
        if name in conditions:
            raise UserError(f"The shift target '{name}' has the name of a condition; rename it.")
        for source in config.datasets.values():
            if name in source.shift:
                _check_target(source, target)


def _check_without_images(config: Config, shown: Sequence[str]) -> None:
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
                f"lacks{nearest(name, source.classes)}; allowed: {', '.join(source.classes)}."
            )


def _select(
    names: Sequence[str], registry: Mapping[str, Any], what: str, file: Path | str
) -> list[tuple[str, Mapping[str, Any]]]:
    for name in names:
        if name not in registry:
            raise UserError(
                f"Unknown {what} '{name}'{nearest(name, registry)}; "
                f"{file} has: {', '.join(sorted(registry))}."
            )
    return [(name, registry[name]) for name in names]


def _left_out(
    settings: Mapping[str, Any],
    encoders: Mapping[str, EncoderEntry],
    datasets: Mapping[str, DatasetEntry],
) -> dict[tuple[str, str], str]:
    """The cells that `without` names by `encoder` or `encoder/dataset`."""
    cells = {}
    for name, reason in settings.get("without", {}).items():
        encoder, separator, dataset = name.partition("/")
        for part, known in ((encoder, encoders), (dataset if separator else None, datasets)):
            if part is not None and part not in known:
                raise UserError(
                    f"the config: without names '{name}', but '{part}' is not in the panel"
                    f"{nearest(part, known)}; allowed: {', '.join(known)}."
                )
        wanted = [dataset] if separator else list(datasets)
        cells |= {(encoder, each): reason for each in wanted}
    return cells


def _with_a_cell(
    encoders: Mapping[str, EncoderEntry],
    datasets: Mapping[str, DatasetEntry],
    left_out: Mapping[tuple[str, str], str],
) -> dict[str, EncoderEntry]:
    """The encoders that have a cell; all of those that nothing was left out of."""
    gone = {encoder for encoder, _ in left_out}
    kept = {
        name: entry
        for name, entry in encoders.items()
        if name not in gone
        or any((name, d) not in left_out and d not in entry.without_datasets for d in datasets)
    }
    if not kept:
        raise UserError("the config: without leaves no encoder in the panel.")
    return kept


def _without(settings: Mapping[str, Any], gone: set[str]) -> dict[str, Any]:
    """The settings whose sections with `encoders` of their own no longer name those that are gone.

    A section without any left is as absent.
    """
    kept = {}
    for key, section in settings.items():
        if isinstance(section, Mapping) and gone & set(section.get("encoders", ())):
            section = _names_dropped(section, gone)
            if not section["encoders"]:
                continue
        kept[key] = section
    return kept


def _names_dropped(content: Any, gone: set[str]) -> Any:
    if isinstance(content, Mapping):
        return {k: _names_dropped(value, gone) for k, value in content.items() if k not in gone}
    if isinstance(content, list):
        return [item for item in content if not (isinstance(item, str) and item in gone)]
    return content


def _narrowed(
    settings: Mapping[str, Any],
    encoder_specs: Mapping[str, Any],
    dataset_specs: Mapping[str, Any],
    panel: Mapping[str, EncoderEntry],
    datasets: Mapping[str, DatasetEntry],
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The settings whose sections name only what the panel has, and by section what they lost.

    So a shipped config runs with `--config encoders=[…] datasets=[…]`. A name that no registry has
    stays, and is refused later. An encoder without a cell on the data sets that are left goes with
    those that are gone; a section without any name left is as absent.
    """
    targets = {target for entry in datasets.values() for target in entry.shift}
    kept, lacking = {}, {}
    for key, section in settings.items():
        if not isinstance(section, Mapping) or not {"encoders", "datasets"} <= set(section):
            kept[key] = section
            continue
        gone = {n for n in section["encoders"] if n in encoder_specs and n not in panel}
        of_data = {n for n in section["datasets"] if n in dataset_specs and n not in datasets}
        left = set(section["datasets"]) - of_data
        if of_data:
            gone |= {
                name
                for name in set(section["encoders"]) & set(panel)
                if left <= set(panel[name].without_datasets)
            }
            conditions = section.get("conditions", "all")
            if conditions != "all":
                of_data |= {n for n in conditions if n in dataset_specs and n not in targets}
        if gone | of_data:
            named = [*section["encoders"], *section["datasets"]]
            lacking[key] = [name for name in named if name in gone | of_data]
            section = _names_dropped(section, gone | of_data)
        if section["encoders"] and section["datasets"]:
            kept[key] = section
    return kept, lacking


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


def read_closed(file: Path, home: Path, schema: str) -> Mapping[str, Any]:
    """Read a YAML file that one of our schemas closes; UserError names the file and the key."""
    try:
        entries = yaml.load(file.read_text(encoding="utf-8"), Loader=_LoaderOfUniqueKeys)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}.") from error
    _validate({} if entries is None else entries, home, schema, str(file))
    _check_names(entries or {}, file)
    return entries


class _LoaderOfUniqueKeys(yaml.SafeLoader):
    """PyYAML's safe loader keeps the last of equal keys; here they are an error."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key.value}' stands there twice", problem_mark=key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return node


def _check_names(names: Iterable[str], file: Path) -> None:
    """A name is a folder of the results: two that differ in case alone are one on some disks."""
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(name.lower(), name)
        if other != name:
            raise UserError(
                f"{file}: the names '{other}' and '{name}' differ only in upper and lower case; "
                "rename one."
            )


@cache
def _validator(file: Path) -> Draft202012Validator:
    return Draft202012Validator(yaml.safe_load(file.read_text(encoding="utf-8")))


def _validate(instance: Any, home: Path, schema: str, source: str) -> None:
    validator = _validator(home / "workflow" / "schemas" / f"{schema}.schema.yaml")
    errors = sorted(validator.iter_errors(instance), key=lambda e: (len(e.path), str(e.path)))
    if errors:
        raise UserError(f"{source}: {_explain(errors[0])}")


def _explain(error: ValidationError) -> str:
    """One sentence for one schema violation: where, the value found, what is allowed."""
    place = ".".join(str(part) for part in error.path) or "the top level"
    if "propertyNames" in error.absolute_schema_path:
        return (
            f"the name {json.dumps(error.instance, ensure_ascii=False, default=str)} is not "
            "allowed; a name is text of letters (a-z), digits, '_', '.' and '-', begins with a "
            "letter or digit and has at most 100 characters."
        )
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        unknown = sorted(set(error.instance) - set(known), key=str)
        return "; ".join(
            f"unknown key '{key}' in {place}{nearest(str(key), known)}" for key in unknown
        ) + (f" (allowed: {', '.join(sorted(known))}).")
    if error.validator == "required":
        missing = sorted(set(error.validator_value) - set(error.instance))
        return f"{place} lacks the key {', '.join(repr(key) for key in missing)}."
    if error.validator == "dependentRequired":
        needed = [key for keys in error.validator_value.values() for key in keys]
        missing = [key for key in needed if key not in error.instance]
        keys = [key for key in error.validator_value if key in error.instance]
        return f"{place} has the key '{keys[0]}' and lacks the key {', '.join(map(repr, missing))}."
    if error.validator == "not":  # keys that have no use beside the entry's others
        useless = [key for option in error.validator_value["anyOf"] for key in option["required"]]
        found = [key for key in useless if key in error.instance]
        return f"the key '{found[0]}' of {place} has no meaning beside its other keys."
    if error.validator == "oneOf":
        allowed = "hub, untrained, {file: …}, {hub: …, file: …} or {package: …, file: …}"
        return f"{place} is {json.dumps(error.instance)}; allowed is {allowed}."
    if error.validator == "enum":
        hint = nearest(str(error.instance), error.validator_value)
        allowed = ", ".join(map(str, error.validator_value))
        return f"{place} is {json.dumps(error.instance)}{hint}; allowed: {allowed}."
    return f"{place} is {json.dumps(error.instance, default=str)}: {error.message}."


def nearest(name: str, known: Mapping[str, Any] | Sequence[Any]) -> str:
    close = difflib.get_close_matches(name, [str(k) for k in known], n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""
