"""From a config's settings to the validated, frozen configuration.

All settings of the workflow stand in three YAML files, each closed by a JSON Schema in
`workflow/schemas/`: an unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crsbench.config.checks import (
    check_label_columns,
    check_label_rules,
    check_relations,
    check_without_images,
)
from crsbench.config.model import Config, DatasetEntry, EncoderEntry
from crsbench.config.panel import left_out_cells, narrowed, select, with_a_cell, without_encoders
from crsbench.config.schema import read_closed, read_text, validate
from crsbench.core.errors import UserError


def load_config(
    settings: Mapping[str, Any], home: Path, registries: Mapping[str, str] | None = None
) -> Config:
    """Validate a run's settings and the registries that they name.

    settings: the mapping of `config/config.yaml`'s form; home: the workflow's own folder, which
    holds `workflow/schemas/` and to which the registry and scoring paths are relative (`results`,
    `data_root`, `weights_root`, `reference` and `freeze_to` are relative to the working directory);
    registries: the text of the files of encoders and data sets, where they were read before.

    Raises UserError on an unknown key, a value out of its range, an unknown name, a missing file.
    """
    home = Path(home)
    validate(settings, "config", "the config")
    encoder_file = home / settings["encoder_registry"]
    dataset_file = home / settings["dataset_registry"]
    if registries is None:
        registries = {"encoders": read_text(encoder_file), "datasets": read_text(dataset_file)}
    encoder_specs = read_closed(encoder_file, "encoders", registries["encoders"])
    dataset_specs = read_closed(dataset_file, "datasets", registries["datasets"])

    encoders = {
        name: EncoderEntry(name, spec["title"], spec["group"], spec)
        for name, spec in select(settings["encoders"], encoder_specs, "encoder", encoder_file)
    }
    datasets = {
        name: _dataset_entry(name, spec, dataset_file)
        for name, spec in select(settings["datasets"], dataset_specs, "data set", dataset_file)
    }
    target_names = sorted({target for entry in datasets.values() for target in entry.shift})
    targets = {
        name: _dataset_entry(name, spec, dataset_file)
        for name, spec in select(target_names, dataset_specs, "shift target", dataset_file)
    }
    left_out = left_out_cells(settings, encoders, datasets)
    panel = with_a_cell(encoders, datasets, left_out)
    settings = without_encoders(settings, set(encoders) - set(panel))
    settings, lacking = narrowed(settings, encoder_specs, dataset_specs, panel, datasets)
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
        registries=registries,
        dataset_specs=dataset_specs,
    )
    check_relations(config, encoder_file, dataset_specs)
    named = [settings["studies"]["baseline_encoder"]]
    named += settings.get("recalibration", {}).get("primary", [])
    select(named, encoder_specs, "encoder", encoder_file)
    shown = settings.get("report", {}).get("gallery", [])
    select(shown, datasets, "data set in report.gallery", "the panel")
    check_without_images(config, shown)
    points = settings["studies"].get("operating_points")
    if points and ("sensitivity" in points) == ("specificity" in points):
        raise UserError(
            "studies.operating_points must have either `sensitivity` or `specificity`, one of the "
            "two."
        )
    return config


def _dataset_entry(name: str, spec: Mapping[str, Any], file: Path) -> DatasetEntry:
    entry = DatasetEntry.of(name, spec)
    if entry.task == "multiclass" and len(entry.classes) < 2:
        raise UserError(f"{file}: data set '{name}' is multiclass and needs two classes or more.")
    if spec.get("reader") == "table":
        check_label_columns(entry, file)
    check_label_rules(entry, file)
    return entry
