"""The panel: what the config takes from the registries, without the cells that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crsbench.config.model import DatasetEntry, EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.names import nearest


def select(
    names: Sequence[str], registry: Mapping[str, Any], what: str, file: Path | str
) -> list[tuple[str, Mapping[str, Any]]]:
    for name in names:
        if name not in registry:
            raise UserError(
                f"Unknown {what} '{name}'{nearest(name, registry)}; "
                f"{file} has: {', '.join(sorted(registry))}."
            )
    return [(name, registry[name]) for name in names]


def left_out_cells(
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


def with_a_cell(
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


def without_encoders(settings: Mapping[str, Any], gone: set[str]) -> dict[str, Any]:
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


def narrowed(
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
