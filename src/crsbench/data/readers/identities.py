"""Who is one patient: names that differ in spelling only, names that say nothing, giant groups."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError

INVISIBLE = "\u00ad\u200b-\u200f\u2060\ufeff"
"""Characters without width, as a class of a regular expression; U+FEFF is the byte order mark."""

MISSING = frozenset(
    {
        *("nan", "na", "n/a", "n.a.", "#n/a", "<na>", "nat", "none", "null", "nil", "(null)"),
        *("unknown", "unk", "not known", "unspecified", "not specified", "undefined", "missing"),
        *("not available", "unavailable", "anonymous", "anonymized", "anonymised", "anon", "tbd"),
        *("empty", "blank", "-", "--", "---", "\u2013", "\u2014", ".", "..", "?", "??", "_", "*"),
        *("/", "\\n", "#ref!", "#value!", "no id", "noid", "patient"),
    }
)
"""Folded texts that stand for a name that is not known."""

MISSING_NUMBER = re.compile(r"-?0+|-1|-?9{2,}")
"""Numbers that may stand for it: 0, -1, 99, 999, …"""

ROUNDED = re.compile(r"\d([.,]\d+)?e\+\d+", re.IGNORECASE)
"""A long number after a spreadsheet has rounded it: 1.23E+12."""

NUMBER = re.compile(r"[-+]?\d+([.]\d*)?")

OUTSTANDING = 2
"""A number stands for "not known" where it has more than so many times the next group's images."""

GIANT_TIMES = 5
"""A giant group has more than so many times the images of the median group."""

LARGEST_GROUP = 0.2
"""And more than this share of all images, unless the entry's `largest_group` says another."""


def folded(name: str) -> str:
    """A name without what people vary by mistake: case, spaces, leading zeros, a final `.0`.

    Space between two digits stays one space (`1 12` is not `11 2`), zeros behind a point stay
    (`1.05` is not `1.5`). Full-width and ligature forms fold by Unicode's NFKC.
    """
    plain = re.sub(f"[{INVISIBLE}]", "", unicodedata.normalize("NFKC", name)).casefold().strip()
    plain = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", plain)
    plain = re.sub(r"(?<![\d.])0+(?=\d)", "", plain)
    return re.sub(r"^([^.]*\d)\.0+$", r"\1", plain)


def spelled_alike(names: Iterable[str]) -> list[list[str]]:
    """The sets of different names that fold to one, each sorted."""
    by_fold: dict[str, list[str]] = {}
    for name in sorted(set(names) - {""}):
        by_fold.setdefault(folded(name), []).append(name)
    return [alike for alike in by_fold.values() if len(alike) > 1]


def placeholders(groups: pd.Series) -> dict[str, int]:
    """The group names (n,) that say "not known", each with its number of images.

    A text that says so always counts. A number such as 0 or 999 counts where the other names are
    no numbers, or where it has more than twice the images of every other group: a numbering may
    begin with 0.
    """
    sizes = groups[groups != ""].value_counts()
    texts = [name for name in sizes.index if " ".join(name.casefold().split()) in MISSING]
    others = sizes.drop(texts)
    numeric = all(NUMBER.fullmatch(name) for name in others.index)
    numbers = []
    for name in filter(MISSING_NUMBER.fullmatch, others.index):
        next_size = others.drop(name).to_numpy().max(initial=0)
        if not numeric or others[name] > OUTSTANDING * next_size:
            numbers.append(name)
    return {name: int(sizes[name]) for name in sorted([*texts, *numbers])}


def giant_groups(groups: pd.Series, share: float) -> dict[str, int]:
    """The groups (n,) that are more than a share of the images, and far larger than the usual one.

    Of a handful of groups each is a large share: one is giant only with more than five times the
    images of the median group.
    """
    sizes = groups.value_counts()
    giant = sizes[(sizes > share * len(groups)) & (sizes > GIANT_TIMES * sizes.median())]
    return {name: int(giant[name]) for name in sorted(giant.index)}


def check_spelling(entry: DatasetEntry, names: pd.Series, what: str, file: Path) -> None:
    """Raise UserError naming names that differ in spelling only, or that a spreadsheet rounded.

    The entry's `similar_names: keep` says that they are different.
    """
    if entry.spec.get("similar_names", "stop") == "keep":
        return
    alike = spelled_alike(names)
    if alike:
        raise UserError(
            f"{file}: the {what} {' and '.join(map(quoted, alike[0]))} differ only in case, "
            f"spaces, leading zeros or a final .0 ({len(alike)} such cases); write one name in one "
            f"way, or set similar_names: keep in the entry of data set '{entry.name}' if they are "
            "different."
        )
    rounded = sorted(name for name in set(names) if ROUNDED.fullmatch(name))
    if rounded:
        raise UserError(
            f"{file}: the {what} {quoted(rounded[0])} is a number that a spreadsheet has rounded "
            f"({len(rounded)} such names), so that several may have become one; export the column "
            f"as text, or set similar_names: keep in the entry of data set '{entry.name}'."
        )


def known_groups(entry: DatasetEntry, groups: pd.Series, file: Path) -> pd.Series:
    """The group names (n,), empty where unknown, by the entry's `placeholder_groups`.

    `stop` (default) raises a UserError naming what stands for "not known", `missing` empties those
    cells, `keep` leaves them as the names of groups.
    """
    policy = entry.spec.get("placeholder_groups", "stop")
    found = placeholders(groups) if policy != "keep" else {}
    if found and policy == "stop":
        named = ", ".join(f"{quoted(name)} ({count} images)" for name, count in found.items())
        raise UserError(
            f"{file}: the group {named} of data set '{entry.name}' looks like a patient or lesion "
            "that is not known; leave such cells empty, or set placeholder_groups to missing (each "
            "image is a group of its own) or keep (it is the name of one)."
        )
    return groups.where(~groups.isin([*found]), "")


def check_giant_groups(entry: DatasetEntry, groups: pd.Series) -> None:
    """Raise UserError naming a group that is too large to be a patient or lesion."""
    share = entry.spec.get("largest_group", LARGEST_GROUP)
    for name, count in giant_groups(groups, share).items():
        raise UserError(
            f"Data set '{entry.name}': the group {quoted(name.partition(':')[2])} has {count} of "
            f"{len(groups)} images, more than a share of {share:g} and more than {GIANT_TIMES} "
            "times the usual group, and can't be divided among train and test; check the group "
            "column, or set largest_group in its entry to a larger share."
        )


def quoted(name: str) -> str:
    """A name in quotation marks, with escapes for what can't be seen."""
    return f"'{name}'" if name.isprintable() else ascii(name)
