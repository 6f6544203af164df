"""The validated, frozen configuration as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from crsbench.core.names import degraded_conditions

Task = Literal["multiclass", "multilabel"]


FEATURE_KEYS = (
    *("library", "model", "architecture", "checkpoint", "prefix", "feature", "cut_to_blocks"),
    *("weights", "embeddings", "base_model", "preprocessing"),
)
"""The keys of an encoder's registry entry that its features depend on."""


BESIDE_WEIGHTS = ("sha256", "md5", "source")
"""The keys of an encoder's weights that do not decide what is loaded."""


BESIDE_MANIFEST = (
    "title",
    "licence",
    "excluded_classes",
    "positive_classes",
    "shift",
    "expected_images",
)
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
        """Whether the encoder is a floor: shown separately, never part of a reference panel."""
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

        Not where to get a file, nor the digest that it must have: to state these of the file
        that was used changes nothing.
        """
        spec = {key: self.spec[key] for key in FEATURE_KEYS if key in self.spec}
        if isinstance(spec.get("weights"), Mapping):
            spec["weights"] = {k: v for k, v in spec["weights"].items() if k not in BESIDE_WEIGHTS}
        return spec


@dataclass(frozen=True)
class DatasetEntry:
    """One data set of the registry; `spec` is its entry as written."""

    name: str
    title: str
    task: Task
    classes: tuple[str, ...]
    shift: tuple[str, ...]
    spec: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, name: str, spec: Mapping[str, Any]) -> Self:
        classes, shift = tuple(spec["classes"]), tuple(spec.get("shift", ()))
        return cls(name, spec["title"], spec["task"], classes, shift, spec)

    @property
    def manifest_spec(self) -> dict[str, Any]:
        """The part of the entry that its manifest depends on."""
        return {key: self.spec[key] for key in self.spec if key not in BESIDE_MANIFEST}

    @property
    def excluded_classes(self) -> tuple[str, ...]:
        """The classes that a second macro-AUROC leaves out."""
        return tuple(self.spec.get("excluded_classes", ()))

    @property
    def positive_classes(self) -> dict[str, tuple[str, ...]]:
        """What an operating point is to find: by name the classes that make it; default, each."""
        named = self.spec.get("positive_classes", {name: [name] for name in self.classes})
        return {name: tuple(classes) for name, classes in named.items()}

    @property
    def without_images(self) -> bool:
        """Whether there are only labels, for encoders that bring embeddings of their own."""
        return bool(self.spec.get("without_images", False))

    @property
    def synthetic(self) -> bool:
        return self.spec.get("reader") == "phantom"


@dataclass(frozen=True)
class Config:
    """A run of the benchmark.

    `encoders` and `datasets` are the panel in the order of the config; `targets` are the external
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
    registries: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The text of the files of `encoders` and `datasets` as they were read."""
    dataset_specs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """Every entry of the data sets' registry, those outside the panel too."""

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
    def lacking_note(self) -> str:
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
        """The perturbed conditions."""
        return degraded_conditions(self.perturbations)

    def dataset(self, name: str) -> DatasetEntry:
        """The panel data set or shift target called `name`."""
        return self.datasets[name] if name in self.datasets else self.targets[name]
