"""Who is one patient: names that differ in spelling only, names that say nothing, giant groups."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

import pandas as pd

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError

INVISIBLE = (
    r"\x00-\x08\x0e-\x1f\x7f\u00ad\u061c\u180e\u200b-\u200f"
    + r"\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff"
)
"""Characters without width, controls too, as a class of a regular expression; U+FEFF is the byte
order mark."""

DASHES = r"[\u2010-\u2015\u2212]"
"""What text processors write in place of a hyphen, and the minus sign."""

MISSING = frozenset(
    {
        *("nan", "na", "nat", "none", "null", "nil", "unknown", "unk", "notknown", "notapplicable"),
        *("unspecified", "notspecified", "undefined", "missing", "notavailable", "unavailable"),
        *("notrecorded", "notstated", "anonymous", "anonymized", "anonymised", "anon", "tbd"),
        *("redacted", "removed", "hidden", "dummy", "empty", "blank", "noid", "patient", "false"),
        *("unknownpatient", "patientunknown", "unknownid", "idunknown", "novalue", "nodata"),
        *("unbekannt", "inconnu", "desconocido", "desconhecido", "sconosciuto", "onbekend"),
    }
)
"""The letters and digits of texts that stand for a name that is not known."""

SPREADSHEET_ERROR = re.compile(r"#[a-z0-9/]+[!?]|\\n|x{3,}")
"""Further such texts: #REF!, #DIV/0!, a database's \\N, XXX."""

MISSING_NUMBER = re.compile(r"(-?0+|-[1-9]|-?9{2,})(\.0*)?")
"""Numbers that may stand for it: 0, -1, -9, 99, 999, …"""

ROUNDED = re.compile(r"\d([.,]\d+)?e\+\d+", re.IGNORECASE)
"""A long number after a spreadsheet has rounded it: 1.23E+12."""

NUMBER = re.compile(r"[-+]?\d+([.]\d*)?")

HOW = "case, spaces, dashes, marks around, leading zeros, a final .0 or the form of a number"
"""What `folded` takes away, for a sentence."""

OUTSTANDING = 2
"""A number stands for "not known" where it has more than so many times the next group's images."""

GIANT_TIMES = 5
"""A giant group has more than so many times the images of the median group."""

LARGEST_GROUP = 0.2
"""And more than this share of all images, unless the entry's `largest_group` says another."""


def folded(name: str) -> str:
    """A name without what people vary by mistake: case, spaces, leading zeros, a final `.0`.

    So are the form of a dash, quotation marks about a name, and how a number is written (`1e3`,
    `1,000`, `+7`). Space between two digits stays one space (`1 12` is not `11 2`), zeros behind a
    point stay (`1.05` is not `1.5`). Full-width and ligature forms fold by Unicode's NFKC, digits
    of other scripts to 0-9, and the Turkish i's to one.
    """
    plain = unicodedata.normalize("NFKC", re.sub(f"[{INVISIBLE}]", "", name)).casefold()
    plain = plain.replace("i\u0307", "i").replace("\u0131", "i")
    plain = "".join(str(unicodedata.decimal(char, char)) for char in plain)
    plain = re.sub(DASHES, "-", plain).strip(AROUND_NAMES)
    plain = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", plain)
    if re.fullmatch(r"\d{1,3}(,\d{3})+", plain):
        plain = plain.replace(",", "")
    if re.fullmatch(r"\d+(\.\d+)?e\+?\d{1,2}", plain):
        plain = format(Decimal(plain), "f")
    plain = re.sub(r"(?<![\d.])0+(?=\d)", "", re.sub(r"^\+(?=\d)", "", plain))
    return re.sub(r"^([^.,]*\d)[.,]0+$", r"\1", plain)


AROUND_NAMES = " \t\r\n'\"=;,:`\u2018\u2019\u201c\u201d\u201e"
"""What stands about a name in exports: quotation marks, a spreadsheet's = and ', separators."""


def spelled_alike(names: Iterable[str]) -> list[list[str]]:
    """The sets of different names that fold to one, each sorted."""
    by_fold: dict[str, list[str]] = {}
    for name in sorted(set(names) - {""}):
        by_fold.setdefault(folded(name), []).append(name)
    return [alike for alike in by_fold.values() if len(alike) > 1]


def says_missing(name: str) -> bool:
    """Whether a text stands for a name that is not known, whatever marks stand in it."""
    plain = name.casefold()
    word = "".join(filter(str.isalnum, plain))
    return not word or word in MISSING or bool(SPREADSHEET_ERROR.fullmatch(plain))


def placeholders(groups: pd.Series) -> dict[str, int]:
    """The group names (n,) that say "not known", each with its number of images.

    A text that says so always counts. A number such as 0 or 999 counts where the other names are
    no numbers, where it alone is negative, or where it has more than twice the images of every
    other group: a numbering may begin with 0.
    """
    sizes = groups[groups != ""].value_counts()
    texts = [name for name in sizes.index if says_missing(name)]
    others = sizes.drop(texts)
    numeric = all(NUMBER.fullmatch(name) for name in others.index)
    numbers = []
    for name in filter(MISSING_NUMBER.fullmatch, others.index):
        next_size = others.drop(name).to_numpy().max(initial=0)
        alone = name.startswith("-") and not any(others.drop(name).index.str.startswith("-"))
        if not numeric or alone or others[name] > OUTSTANDING * next_size:
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
            f"{file}: the {what} {' and '.join(map(quoted, alike[0]))} differ only in {HOW} "
            f"({len(alike)} such cases); write one name in one way, or set similar_names: keep in "
            f"the entry of data set '{entry.name}' if they are different."
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
    """A name in quotation marks, with escapes for what can't be seen, such as a separate accent."""
    seen = name.isprintable() and unicodedata.is_normalized("NFC", name)
    return f"'{name}'" if seen else ascii(name)
