"""Synthetic phantoms: three small labelled image sets that need no download.

Each kind imitates one domain of the benchmark (dermoscopy, fundus photography, frontal chest
radiography) with its classes, imbalance, groups and subgroups, so that the whole workflow can be
shown and tested on any machine. A phantom is a cartoon of its class: it carries visible signs that
a frozen encoder can read, and no clinical truth. Nothing measured on phantoms says anything about
patients, and the image ids say what they are (``skin-home-00017``).

Every random number comes from a Philox generator keyed by the SHA-256 of kind, site and the id of
the image or of its group, so a phantom depends on nothing but its own name and size. Pixels are
made of elementwise IEEE arithmetic (+ − × ÷ √) in float32 and PIL's integer drawing; sums whose
order could change the last bit, and SIMD-dependent transcendentals over arrays, are avoided.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from crsbench.core.errors import UserError
from crsbench.core.files import atomic_write, read_json, write_json
from crsbench.core.hashing import sha256_of_file
from crsbench.core.progress import progress
from crsbench.synthetic.cases import KINDS, Case, PhantomKind, describe
from crsbench.synthetic.chest import paint_chest
from crsbench.synthetic.fundus import paint_fundus
from crsbench.synthetic.skin import paint_skin

__all__ = [
    "KINDS",
    "MIN_SIZE",
    "Case",
    "Phantom",
    "PhantomKind",
    "check_phantoms",
    "describe",
    "draw",
    "write_phantoms",
]

MIN_SIZE = 32

DIGESTS = "digests.json"
"""Beside the table: the SHA-256 of every file of a set."""


@dataclass(frozen=True)
class Phantom:
    """One drawn phantom; ``image`` is RGB and its short side is the size asked for."""

    image_id: str
    image: Image.Image
    labels: tuple[str, ...]
    group: str
    subgroups: dict[str, str]


_PAINTERS: Mapping[str, Callable[[Case, int], Image.Image]] = {
    "skin": paint_skin,
    "fundus": paint_fundus,
    "chest": paint_chest,
}


def draw(kind: str, site: str, index: int, size: int) -> Phantom:
    """Draw phantom number ``index`` (from 0) of one kind and site.

    Args:
        kind: one of `KINDS`.
        site: one of the kind's ``sites``.
        index: number of the image within the site; any order gives the same pictures.
        size: short side of the image in pixels.

    Raises:
        UserError: unknown kind or site, or a size below `MIN_SIZE`.
        ValueError: negative index.
    """
    _check(kind, site, size)
    case = describe(kind, site, index)
    image = _PAINTERS[kind](case, size)
    return Phantom(case.image_id, image, case.labels, case.group, dict(case.subgroups))


def write_phantoms(folder: Path, kind: str, site: str, count: int, size: int) -> None:
    """Write phantoms 0 … count−1 to ``folder/images/*.png``, then ``folder/table.csv``.

    The table has the columns image_id, path (relative to ``folder``), label (labels joined by
    ``|``), group and the kind's subgroups, sorted by image_id. It appears only when every image is
    complete; each file is written under a temporary name, synced and renamed, so a rerun after a
    kill gives the same bytes. ``folder/digests.json`` has the SHA-256 of them all.

    Raises:
        UserError: unknown kind or site, a count below 1 or a size below `MIN_SIZE`.
    """
    _check(kind, site, size)
    if count < 1:
        raise UserError(f"Phantom count is {count}; at least 1 is needed.")
    table = folder / "table.csv"
    table.unlink(missing_ok=True)  # an older table must not vouch for images being replaced
    rows, digests = [], {}
    for index in progress(range(count), f"{kind} phantoms ({site})", count, "image"):
        phantom = draw(kind, site, index, size)
        path = f"images/{phantom.image_id}.png"
        with atomic_write(folder / path) as part:
            phantom.image.save(part, format="PNG")
            digests[path] = sha256_of_file(part)
        label = "|".join(phantom.labels)
        rows.append([phantom.image_id, path, label, phantom.group, *phantom.subgroups.values()])
    with atomic_write(table) as part, part.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["image_id", "path", "label", "group", *KINDS[kind].subgroups])
        writer.writerows(sorted(rows))
        stream.flush()
        write_json(folder / DIGESTS, {**digests, table.name: sha256_of_file(part)})


def check_phantoms(folder: Path) -> None:
    """Raises UserError naming a file of `write_phantoms` that is not as it was written."""
    try:
        file = folder / DIGESTS
        for name, digest in read_json(file).items():
            file = folder / name
            if sha256_of_file(file) != digest:
                raise ValueError
    except (OSError, ValueError, UserError) as error:
        table = folder / "table.csv"  # what the workflow draws the whole set for
        raise UserError(f"{file} is not as it was drawn; delete {table} and rerun.") from error


def _check(kind: str, site: str, size: int) -> None:
    if kind not in KINDS:
        raise UserError(f"Unknown phantom kind '{kind}'; allowed: {', '.join(KINDS)}.")
    if site not in KINDS[kind].sites:
        allowed = ", ".join(KINDS[kind].sites)
        raise UserError(f"Unknown site '{site}' of phantom kind '{kind}'; allowed: {allowed}.")
    if size < MIN_SIZE:
        raise UserError(f"Phantom size is {size} px; at least {MIN_SIZE} px is needed.")
