"""The audit as a person reads it: a page in Markdown, and a summary for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crsbench.core.files import atomic_write, read_json
from crsbench.core.names import CALIBRATION
from crsbench.data.splits import TEST, TRAIN

Json = Mapping[str, Any]


def write_audit_page(output: Path | str, audit_file: Path | str) -> None:
    """Write an audit's page: what to know first, then the counts and lists of the JSON."""
    audit = read_json(audit_file)
    lines = [
        f"# Audit of {audit['title']} (`{audit['dataset']}`)",
        *("", summary_of(audit), ""),
        *(_bullets(audit["notices"]) or ["No notice: every class has its images in every part."]),
        *_section("Images and groups", _counts(audit)),
        *_section("Images of each class, by part", _classes(audit)),
        *_section("What lies on two sides of a split", _crossings(audit)),
        *_section("Names that differ in spelling only", _spellings(audit)),
        *_section("Equal files", _equal_files(audit)),
        *_section("Near duplicates of different groups", _near_pairs(audit)),
        *_section("Changed copies in different groups", _changed_pairs(audit)),
        *_section("Files that are damaged or unusual", _files(audit)),
        *_section("Images without a value", _table(("column", "images"), _missing(audit))),
    ]
    with atomic_write(output) as part:
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")


def summary_of(audit: Json) -> str:
    """An audit in one sentence."""
    groups, duplicates, files = audit["groups"], audit["duplicates"], audit["files"]
    parts = [
        f"{audit['images']:,} images in {groups['count']:,} groups, "
        f"{len(audit['labels']['classes'])} classes"
    ]
    if audit["splits"]:
        parts.append(f"{sum(groups['crossing_parts'].values())} groups on two sides of a split")
    if duplicates:
        exact, clashing = duplicates["exact"]["sets"], duplicates["conflicting"]["sets"]
        parts.append(f"{exact} sets of equal files ({clashing} with other labels)")
        parts.append(f"{duplicates['near']['pairs']} near-duplicate pairs")
    if files:
        parts.append(f"{files['damaged']['count']} damaged files")
    return "; ".join(parts) + "."


def summaries(audits: Mapping[str, Path | str]) -> str:
    """For the terminal: each audit in a sentence with its notices and its page (page: JSON)."""
    lines = []
    for page, file in audits.items():
        audit = read_json(file)
        lines += [f"{audit['dataset']}: {summary_of(audit)}", f"  to read: {page}"]
        lines += [f"  notice: {notice}" for notice in audit["notices"]]
    return "\n".join(lines)


def notices(audit_files: Iterable[Path | str]) -> str:
    """The notices of those audits that there are, a line each; "" for none."""
    audits = [read_json(file) for file in audit_files if Path(file).is_file()]
    return "\n".join(
        f"{audit['dataset']}: {notice}" for audit in audits for notice in audit["notices"]
    )


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *(lines or ["None."])]


def _counts(audit: Json) -> list[str]:
    rows, groups, files = audit["rows"], audit["groups"], audit["files"]
    expected = {None: "not known", True: "as expected", False: "differs"}[rows["as_expected"]]
    facts = [
        ("images", audit["images"]),
        ("found, with those left out as damaged", rows["found"]),
        ("publisher's count", f"{rows['expected'] or ''} ({expected})"),
        *((f"left out: {reason}", count) for reason, count in rows["left_out"].items()),
        ("groups", groups["count"]),
        ("images of the largest group", groups["largest"]),
        ("groups of one image", groups["of_one_image"]),
        ("images without a patient or lesion", groups["images_of_unknown_group"]),
        ("images without any label", audit["labels"]["without_any"]),
    ]
    if files:
        facts += [
            ("short side in pixels", "{smallest} to {largest}".format(**files["short_side"])),
            ("distinct sizes", files["distinct_sizes"]),
            *((f"images of mode {mode}", count) for mode, count in files["modes"].items()),
        ]
    return _table(("what", "value"), facts)


def _classes(audit: Json) -> list[str]:
    """Per class the images in all, and by seed those of train / calibration / test."""
    parts = (TRAIN, CALIBRATION, TEST)
    rows = []
    for name, total in audit["labels"]["classes"].items():
        counts = [
            [split["parts"].get(part, {}).get("classes", {}).get(name, 0) for part in parts]
            for split in audit["splits"].values()
        ]
        rows.append((_code(name), total, *(" / ".join(map(str, part)) for part in counts)))
    heads = [f"seed {seed}: {' / '.join(parts)}" for seed in audit["splits"]]
    return _table(("class", "images", *heads), rows)


def _crossings(audit: Json) -> list[str]:
    duplicates = audit["duplicates"]
    rows = []
    for seed in audit["splits"]:
        near = duplicates["near"]["crossing_parts"][seed] if duplicates else "not known"
        rows.append((seed, audit["groups"]["crossing_parts"][seed], near))
    lines = _table(("seed", "groups", "near-duplicate pairs, one of them in the test set"), rows)
    for name, target in audit["shift_targets"].items():
        if target["also_in_source"] is None:
            lines += ["", f"Target {_code(name)}: equal files are not known without images."]
        else:
            fitted = ", ".join(f"{n} (seed {s})" for s, n in target["also_fitted_on"].items())
            lines += [
                "",
                f"Target {_code(name)}: {target['also_in_source']['count']} of "
                f"{target['images']} images are images of this set too; fitted on: {fitted}.",
            ]
    return lines


def _spellings(audit: Json) -> list[str]:
    return _bullets(
        f"{_code(column)}: {', '.join(map(_code, alike))}"
        for column, sets in audit["spelled_alike"].items()
        for alike in sets
    )


def _equal_files(audit: Json) -> list[str]:
    duplicates = audit["duplicates"]
    return duplicates and _bullets(
        ", ".join(map(_code, members)) for members in duplicates["exact"]["listed"]
    )


def _near_pairs(audit: Json) -> list[str]:
    return _pairs(audit, audit["duplicates"]["near"]["listed"] if audit["duplicates"] else [])


def _changed_pairs(audit: Json) -> list[str]:
    """Copies that were turned, inverted or cropped, a table for each change."""
    changed = audit["duplicates"]["near_when_changed"] if audit["duplicates"] else {}
    lines: list[str] = []
    for how, found in changed.items():
        lines += [f"{how.replace('_', ' ').capitalize()}: {found['pairs']}", ""]
        lines += [*_pairs(audit, found["listed"]), ""]
    return lines[:-1]


def _pairs(audit: Json, pairs: Sequence[Json]) -> list[str]:
    rows = [
        (*map(_code, pair["images"]), pair["bits"], *map(" / ".join, pair["parts"].values()))
        for pair in pairs
    ]
    heads = ("one", "other", "differing bits", *(f"seed {seed}" for seed in audit["splits"]))
    return _table(heads, rows)


def _files(audit: Json) -> list[str]:
    """Every finding of the files that names images."""
    lines = []
    for finding, found in (audit["files"] or {}).items():
        if isinstance(found, Mapping) and found.get("count"):
            lines += [f"{finding.replace('_', ' ').capitalize()}: {found['count']}", ""]
            lines += [*_bullets(map(_named, found["listed"])), ""]
    return lines[:-1]


def _named(example: str | Json) -> str:
    if isinstance(example, str):
        return _code(example)
    image, *rest = example.values()
    return f"{_code(image)}: {', '.join(map(str, rest))}"


def _missing(audit: Json) -> list[tuple[str, int]]:
    return [(_code(name), count) for name, count in audit["missing_metadata"].items()]


def _bullets(items: Iterable[str]) -> list[str]:
    return [f"- {item}" for item in items]


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    if not rows:
        return []
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(map(str, cells))} |" for cells in lines]


def _code(name: str) -> str:
    """A name as it stands, safe within a table; escapes for what can't be seen."""
    shown = name if name.isprintable() else ascii(name)[1:-1]
    return f"`{shown}`".replace("|", "\\|")
