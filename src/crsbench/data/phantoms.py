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
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from crsbench.errors import UserError
from crsbench.files import whole_or_absent
from crsbench.progress import progress

Plane = NDArray[np.float32]
"""One channel, (height, width)."""
Colour = tuple[float, float, float]
Point = tuple[float, float]

MIN_SIZE = 32


@dataclass(frozen=True)
class PhantomKind:
    """What one kind of phantom offers: its classes, hospitals and subgroup columns."""

    name: str
    task: str  # "multiclass" or "multilabel"
    classes: tuple[str, ...]
    sites: tuple[str, ...]
    subgroups: tuple[str, ...]


@dataclass(frozen=True)
class Phantom:
    """One drawn phantom; ``image`` is RGB and its short side is the size asked for."""

    image_id: str
    image: Image.Image
    labels: tuple[str, ...]
    group: str
    subgroups: dict[str, str]


KINDS: Mapping[str, PhantomKind] = MappingProxyType(
    {
        "skin": PhantomKind(
            name="skin",
            task="multiclass",
            classes=("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC"),
            sites=("home",),
            subgroups=("sex", "age", "skin_tone"),
        ),
        "fundus": PhantomKind(
            name="fundus",
            task="multiclass",
            classes=("0", "1", "2", "3", "4"),
            sites=("home",),
            subgroups=("eye", "age"),
        ),
        "chest": PhantomKind(
            name="chest",
            task="multilabel",
            classes=(
                "No Finding",
                "Enlarged Cardiomediastinum",
                "Cardiomegaly",
                "Lung Opacity",
                "Lung Lesion",
                "Edema",
                "Consolidation",
                "Pneumonia",
                "Atelectasis",
                "Pneumothorax",
                "Pleural Effusion",
                "Pleural Other",
                "Fracture",
                "Support Devices",
            ),
            sites=("home", "foreign"),
            subgroups=("sex", "age", "view"),
        ),
    }
)


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
    kill gives the same bytes.

    Raises:
        UserError: unknown kind or site, a count below 1 or a size below `MIN_SIZE`.
    """
    _check(kind, site, size)
    if count < 1:
        raise UserError(f"Phantom count is {count}; at least 1 is needed.")
    table = folder / "table.csv"
    table.unlink(missing_ok=True)  # an older table must not vouch for images being replaced
    rows = []
    for index in progress(range(count), f"{kind} phantoms ({site})", count, "image"):
        phantom = draw(kind, site, index, size)
        path = f"images/{phantom.image_id}.png"
        with whole_or_absent(folder / path) as part:
            phantom.image.save(part, format="PNG")
        label = "|".join(phantom.labels)
        rows.append([phantom.image_id, path, label, phantom.group, *phantom.subgroups.values()])
    with whole_or_absent(table) as part, part.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["image_id", "path", "label", "group", *KINDS[kind].subgroups])
        writer.writerows(sorted(rows))


def _check(kind: str, site: str, size: int) -> None:
    if kind not in KINDS:
        raise UserError(f"Unknown phantom kind '{kind}'; allowed: {', '.join(KINDS)}.")
    if site not in KINDS[kind].sites:
        allowed = ", ".join(KINDS[kind].sites)
        raise UserError(f"Unknown site '{site}' of phantom kind '{kind}'; allowed: {allowed}.")
    if size < MIN_SIZE:
        raise UserError(f"Phantom size is {size} px; at least {MIN_SIZE} px is needed.")


# --------------------------------------------------------------------------------------------
# Who is in the picture: group, labels and subgroups, without a pixel drawn


@dataclass(frozen=True)
class Case:
    """All that is known of a phantom before it is drawn."""

    kind: str
    site: str
    image_id: str
    group: str
    labels: tuple[str, ...]
    signs: tuple[str, ...]  # what is drawn; a hospital's report (labels) may err about it
    subgroups: Mapping[str, str]

    def image_random(self) -> np.random.Generator:
        """Pose, light and noise of this image."""
        return _random(self.kind, self.site, f"{self.image_id}/picture")

    def group_random(self) -> np.random.Generator:
        """What the images of one lesion or patient share."""
        return _random(self.kind, self.site, f"{self.group}/picture")


def describe(kind: str, site: str, index: int) -> Case:
    """Labels, group and subgroups of one phantom (cheap: nothing is drawn).

    Raises:
        ValueError: negative index.
    """
    if index < 0:
        raise ValueError(f"Phantom index is {index}; it counts from 0.")
    return _DESCRIBERS[kind](site, index)


def _random(kind: str, site: str, name: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{kind}|{site}|{name}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def _image_id(kind: str, site: str, index: int) -> str:
    return f"{kind}-{site}-{index:05d}"


def _opener(kind: str, site: str, index: int, block: int, opens: float) -> int:
    """Index of the first image of the group that image ``index`` belongs to.

    Inside a block of ``block`` indices an image opens a new group with probability ``opens``, so
    groups have 1 to ``block`` images and no image needs to know the others.
    """
    first = index
    while first % block and _random(kind, site, f"opens/{first}").random() >= opens:
        first -= 1
    return first


def _deal(kind: str, site: str, index: int, percent: Mapping[str, int]) -> str:
    """The class of image ``index``, dealt from a shuffled deck of 100 cards per 100 images.

    Rare classes so keep close to their share even in a few hundred images.
    """
    deck = [name for name, cards in percent.items() for _ in range(cards)]
    order = np.argsort(_random(kind, site, f"deck/{index // 100}").random(100))
    return deck[order[index % 100]]


def _pick(random: np.random.Generator, shares: Mapping[str, float]) -> str:
    """One key, drawn with probability proportional to its share."""
    left = random.random() * sum(shares.values())
    for key, share in shares.items():
        left -= share
        if left < 0:
            return key
    return key  # rounding left nothing to subtract


_SEX = {"female": 0.5, "male": 0.5}
_AGE = {"under 40": 0.25, "40-64": 0.4, "65 and over": 0.35}

_SKIN_SHARES = {"NV": 36, "MEL": 16, "BCC": 13, "BKL": 11, "AK": 7, "SCC": 6, "VASC": 6, "DF": 5}


def _describe_skin(site: str, index: int) -> Case:
    first = _opener("skin", site, index, block=4, opens=0.7)
    group = f"skin-{site}-lesion-{first:05d}"
    random = _random("skin", site, group)
    label = _deal("skin", site, first, _SKIN_SHARES)
    subgroups = {
        "sex": _pick(random, _SEX),
        "age": _pick(random, _AGE),
        "skin_tone": _pick(random, {"light": 0.55, "medium": 0.3, "dark": 0.15}),
    }
    image_id = _image_id("skin", site, index)
    return Case("skin", site, image_id, group, (label,), (label,), subgroups)


_GRADE_SHARES = {"0": 42, "1": 14, "2": 23, "3": 11, "4": 10}


def _describe_fundus(site: str, index: int) -> Case:
    """A patient has one or two eyes; the second may be a grade off the first."""
    first = _opener("fundus", site, index, block=2, opens=0.3)
    group = f"fundus-{site}-patient-{first:05d}"
    patient = _random("fundus", site, group)
    grade = int(_deal("fundus", site, first, _GRADE_SHARES))
    age = _pick(patient, _AGE)
    first_eye = _pick(patient, {"left": 0.5, "right": 0.5})
    image_id = _image_id("fundus", site, index)
    eye = first_eye
    if index != first:
        eye = {"left": "right", "right": "left"}[first_eye]
        step = int(_pick(_random("fundus", site, image_id), {"0": 0.7, "-1": 0.15, "1": 0.15}))
        grade = min(max(grade + step, 0), 4)
    label = (str(grade),)
    return Case("fundus", site, image_id, group, label, label, {"eye": eye, "age": age})


_NO_FINDING = "No Finding"
_DEVICES = "Support Devices"
_CHEST_SHARES = {  # of the images of a diseased patient; No Finding is what is left
    "Enlarged Cardiomediastinum": {"home": 0.14, "foreign": 0.10},
    "Cardiomegaly": {"home": 0.22, "foreign": 0.30},
    "Lung Opacity": {"home": 0.34, "foreign": 0.26},
    "Lung Lesion": {"home": 0.10, "foreign": 0.12},
    "Edema": {"home": 0.24, "foreign": 0.16},
    "Consolidation": {"home": 0.13, "foreign": 0.09},
    "Pneumonia": {"home": 0.13, "foreign": 0.18},
    "Atelectasis": {"home": 0.22, "foreign": 0.28},
    "Pneumothorax": {"home": 0.13, "foreign": 0.08},
    "Pleural Effusion": {"home": 0.36, "foreign": 0.28},
    "Pleural Other": {"home": 0.07, "foreign": 0.06},
    "Fracture": {"home": 0.11, "foreign": 0.08},
}
_HEALTHY_SHARE = {"home": 0.18, "foreign": 0.3}
_AP_SHARE = {"home": 0.45, "foreign": 0.6}
_MISSED = {"home": 0.0, "foreign": 0.12}  # share of the signs that the report leaves out
_OVERCALLED = {"home": 0.0, "foreign": 0.03}  # share of the absent signs that it names


def _describe_chest(site: str, index: int) -> Case:
    group = f"chest-{site}-patient-{_opener('chest', site, index, block=4, opens=0.6):05d}"
    patient = _random("chest", site, group)
    sex, age = _pick(patient, _SEX), _pick(patient, _AGE)
    healthy = patient.random() < _HEALTHY_SHARE[site]
    usual = patient.random(len(_CHEST_SHARES))
    image_id = _image_id("chest", site, index)
    random = _random("chest", site, image_id)
    view = "AP" if random.random() < _AP_SHARE[site] else "PA"
    # A finding of the patient comes back in most of the images, not in all.
    today = np.where(random.random(len(usual)) < 0.6, usual, random.random(len(usual)))
    signs = {
        name
        for name, chance in zip(_CHEST_SHARES, today, strict=True)
        if not healthy and chance < _CHEST_SHARES[name][site]
    }
    if random.random() < (0.55 if view == "AP" else 0.2):
        signs.add(_DEVICES)
    reported = set()
    for name in (*_CHEST_SHARES, _DEVICES):
        error = random.random() < (_MISSED if name in signs else _OVERCALLED)[site]
        if error != (name in signs):
            reported.add(name)
    subgroups = {"sex": sex, "age": age, "view": view}
    return Case(
        "chest", site, image_id, group, _chest_labels(reported), _chest_labels(signs), subgroups
    )


def _chest_labels(findings: set[str]) -> tuple[str, ...]:
    """Labels in the order of the classes; No Finding where nothing but a device is seen."""
    named = findings if findings - {_DEVICES} else findings | {_NO_FINDING}
    return tuple(name for name in KINDS["chest"].classes if name in named)


_DESCRIBERS: Mapping[str, Callable[[str, int], Case]] = {
    "skin": _describe_skin,
    "fundus": _describe_fundus,
    "chest": _describe_chest,
}


# --------------------------------------------------------------------------------------------
# Drawing tools: lengths are in units of the short side, the origin is the centre, y points down


def _ramp(value: Plane, low: float, high: float) -> Plane:
    """Smooth step from 0 at ``low`` to 1 at ``high`` (``low`` may be the larger)."""
    t = np.clip((value - low) * (1 / (high - low)), 0, 1)
    return t * t * (3 - 2 * t)


def _wave(turns: Plane) -> Plane:
    """A sine-like wave of period 1 in [-1, 1], made of parabolas (no libm, so no ULP doubt)."""
    t = turns - np.floor(turns) - 0.5
    return 16 * t * (np.abs(t) - 0.5)


class _Sheet:
    """The pixel grid of one picture and what can be laid on it."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width
        self.short = min(height, width)
        self.x, self.y = _grid(height, width)

    def noise(self, random: np.random.Generator, cells: int) -> Plane:
        """Smooth value noise in [-1, 1] with ``cells`` lattice cells along the short side."""
        rows, row_part = _lattice(self.height, self.short, cells)
        columns, column_part = _lattice(self.width, self.short, cells)
        side = 2 * cells + 2  # more than any picture needs, so that a size changes no later draw
        knots = random.random((side, side), dtype=np.float32) * 2 - 1
        lines = knots[rows]
        lines = lines + (knots[rows + 1] - lines) * row_part[:, None]
        left = lines[:, columns]
        return left + (lines[:, columns + 1] - left) * column_part

    def grain(self, random: np.random.Generator) -> Plane:
        """Near-Gaussian pixel noise of unit variance: the sum of four uniform bytes."""
        words = random.integers(0, 1 << 32, (self.height, self.width), dtype=np.uint32)
        total = (words & 255) + (words >> 8 & 255) + (words >> 16 & 255) + (words >> 24)
        return (total.astype(np.float32) - 510) / 147.8

    def spot(self, x: float, y: float, rx: float, ry: float, angle: float = 0.0) -> Plane:
        """Squared distance from (x, y) in units of an ellipse's half axes: 1 on its rim."""
        c, s = math.cos(angle), math.sin(angle)
        dx, dy = self.x - x, self.y - y
        a = dx * (c / rx) + dy * (s / rx)
        b = dy * (c / ry) - dx * (s / ry)
        return a * a + b * b

    def pen(self) -> _Pen:
        return _Pen(self)


@lru_cache(maxsize=8)
def _grid(height: int, width: int) -> tuple[Plane, Plane]:
    short = min(height, width)
    x = (np.arange(width, dtype=np.float32) + (0.5 - width / 2)) / short
    y = (np.arange(height, dtype=np.float32) + (0.5 - height / 2)) / short
    return x[None, :], y[:, None]


@lru_cache(maxsize=128)
def _lattice(length: int, short: int, cells: int) -> tuple[NDArray[np.intp], Plane]:
    """Index of the lattice cell of each pixel along a side, and its smoothed place inside."""
    place = (np.arange(length, dtype=np.float32) + 0.5) * (cells / short)
    index = np.floor(place)
    part = place - index
    return index.astype(np.intp), part * part * (3 - 2 * part)


class _Pen:
    """Strokes and discs on an empty mask, antialiased by drawing three times finer."""

    FINER = 3

    def __init__(self, sheet: _Sheet) -> None:
        self._scale = sheet.short * self.FINER
        self._image = Image.new("L", (sheet.width * self.FINER, sheet.height * self.FINER))
        self._draw = ImageDraw.Draw(self._image)

    def _pixel(self, point: Point) -> Point:
        return (
            point[0] * self._scale + self._image.width / 2,
            point[1] * self._scale + self._image.height / 2,
        )

    def line(self, points: Sequence[Point], width: float, value: float = 1.0) -> None:
        """A polyline; one thinner than the finest pixel is drawn fainter instead."""
        wide = width * self._scale
        ink = round(255 * value * min(wide, 1.0))
        self._draw.line([self._pixel(p) for p in points], fill=ink, width=max(round(wide), 1))

    def disc(self, x: float, y: float, rx: float, ry: float, value: float = 1.0) -> None:
        (left, top), (right, bottom) = self._pixel((x - rx, y - ry)), self._pixel((x + rx, y + ry))
        self._draw.ellipse((left, top, right, bottom), fill=round(255 * value))

    def mask(self) -> Plane:
        """What was drawn, in [0, 1]."""
        small = self._image.reduce(self.FINER)
        return np.asarray(small, dtype=np.float32) / 255


def _curve(start: Point, bend: Point, end: Point, steps: int = 12) -> list[Point]:
    """Points of a quadratic Bézier curve."""
    points = []
    for step in range(steps + 1):
        t = step / steps
        a, b, c = (1 - t) * (1 - t), 2 * t * (1 - t), t * t
        x, y = (a * p + b * q + c * r for p, q, r in zip(start, bend, end, strict=True))
        points.append((x, y))
    return points


def _between(random: np.random.Generator, low: float, high: float) -> float:
    return low + (high - low) * random.random()


def _mix(rgb: NDArray[np.float32], mask: Plane, colour: Colour) -> None:
    """Lay an opaque colour over the picture (3, height, width), in place."""
    for channel, value in zip(rgb, colour, strict=True):
        channel += mask * (value - channel)


def _absorb(rgb: NDArray[np.float32], mask: Plane, passed: Colour) -> None:
    """Filter the picture through a pigment that lets ``passed`` of each channel through."""
    for channel, value in zip(rgb, passed, strict=True):
        channel *= 1 - mask * (1 - value)


def _to_image(planes: NDArray[np.float32]) -> Image.Image:
    """(3, height, width) or (height, width) in [0, 1] to an 8-bit RGB image."""
    pixels = (np.clip(planes, 0, 1) * 255 + 0.5).astype(np.uint8)
    if pixels.ndim == 2:
        return Image.fromarray(pixels).convert("RGB")
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


# --------------------------------------------------------------------------------------------
# Skin: dermoscopy


@dataclass(frozen=True)
class _LesionStyle:
    """How the lesions of one class tend to look; the signs are given with their probability."""

    tint: Colour  # what the lesion lets through of the skin's colour
    asymmetry: float
    irregularity: float
    softness: float
    patchiness: float
    signs: Mapping[str, float]


_LESION_STYLES: Mapping[str, _LesionStyle] = {
    "NV": _LesionStyle(
        (0.66, 0.54, 0.46), 0.07, 0.06, 0.16, 0.25,
        {"network": 0.65, "globules": 0.35, "hub": 0.4, "blotch": 0.08},
    ),
    "MEL": _LesionStyle(
        (0.54, 0.42, 0.40), 0.20, 0.16, 0.12, 0.6,
        {"network": 0.5, "globules": 0.5, "blotch": 0.75, "veil": 0.6, "regression": 0.45},
    ),
    "BCC": _LesionStyle(
        (0.94, 0.74, 0.74), 0.10, 0.08, 0.25, 0.3,
        {"tree_vessels": 0.85, "nests": 0.6, "ulcer": 0.4},
    ),
    "AK": _LesionStyle(
        (0.92, 0.64, 0.60), 0.12, 0.12, 0.55, 0.5,
        {"follicles": 0.8, "scale": 0.6},
    ),
    "BKL": _LesionStyle(
        (0.72, 0.60, 0.48), 0.10, 0.09, 0.06, 0.3,
        {"milia": 0.75, "comedones": 0.7, "fissures": 0.5, "network": 0.1},
    ),
    "DF": _LesionStyle(
        (0.84, 0.68, 0.60), 0.06, 0.05, 0.45, 0.2,
        {"scar": 0.85, "network": 0.7},
    ),
    "VASC": _LesionStyle(
        (0.74, 0.36, 0.40), 0.08, 0.06, 0.10, 0.3,
        {"lacunae": 0.9, "blotch": 0.1},
    ),
    "SCC": _LesionStyle(
        (0.90, 0.60, 0.56), 0.13, 0.12, 0.22, 0.45,
        {"keratin": 0.75, "dotted_vessels": 0.7, "ulcer": 0.35, "scale": 0.3},
    ),
}  # fmt: skip

_STRAY_SIGNS = ("network", "globules", "milia", "dotted_vessels", "scale", "regression")
_SKIN_TONES = {"light": (0.86, 0.69, 0.61), "medium": (0.73, 0.54, 0.43), "dark": (0.5, 0.35, 0.28)}


class _Lesion:
    """One lesion posed on a sheet: its own coordinates (rim near radius 1) and its picture."""

    def __init__(
        self,
        sheet: _Sheet,
        rgb: NDArray[np.float32],
        style: _LesionStyle,
        own: np.random.Generator,
        pose: np.random.Generator,
    ) -> None:
        self.sheet, self.rgb = sheet, rgb
        self.clarity = _between(own, 0.25, 0.95)
        self.radius = _between(own, 0.17, 0.34) * _between(pose, 0.85, 1.15)
        self.stretch = _between(own, 0.7, 1.0)
        self.angle = _between(pose, 0, 2 * math.pi)
        self.centre = (_between(pose, -0.12, 0.12), _between(pose, -0.07, 0.07))
        c, s = math.cos(self.angle), math.sin(self.angle)
        dx, dy = sheet.x - self.centre[0], sheet.y - self.centre[1]
        self.u = (dx * c + dy * s) / self.radius
        self.v = (dy * c - dx * s) / (self.radius * self.stretch)
        self.r = np.sqrt(self.u * self.u + self.v * self.v)
        depth = self._rim(style, own, pose) - self.r
        self.inside = _ramp(depth, -style.softness, style.softness)

    def _rim(
        self, style: _LesionStyle, own: np.random.Generator, pose: np.random.Generator
    ) -> Plane:
        """Distance of the rim in each direction: low harmonics bend it, noise frays it."""
        inverse = 1 / np.maximum(self.r, 1e-3)
        cos1, sin1 = self.u * inverse, self.v * inverse
        cos, sin = cos1, sin1
        rim = np.ones_like(self.r)
        for order in range(2, 7):
            cos, sin = cos * cos1 - sin * sin1, sin * cos1 + cos * sin1
            size = style.asymmetry * 2.2 / order * _between(own, -1, 1)
            turn = _between(own, 0, 2 * math.pi)
            rim += (size * math.cos(turn)) * cos + (size * math.sin(turn)) * sin
        rim += self.sheet.noise(pose, 9) * style.irregularity
        rim += self.sheet.noise(pose, 20) * (style.irregularity * 0.8)
        return rim

    def cover(self, mask: Plane, amount: float, colour: Colour) -> None:
        """Lay an opaque structure over the lesion, as clearly as this lesion shows its signs."""
        _mix(self.rgb, np.minimum(mask * (amount * self.clarity), 1), colour)

    def stain(self, mask: Plane, amount: float, passed: Colour) -> None:
        """Filter the lesion through a pigment, as clearly as this lesion shows its signs."""
        _absorb(self.rgb, np.minimum(mask * (amount * self.clarity), 1), passed)

    def place(self, u: float, v: float) -> Point:
        """From lesion coordinates to the sheet."""
        c, s = math.cos(self.angle), math.sin(self.angle)
        a, b = u * self.radius, v * self.radius * self.stretch
        return self.centre[0] + a * c - b * s, self.centre[1] + a * s + b * c

    def scatter(
        self, random: np.random.Generator, count: int, inner: float, outer: float
    ) -> list[Point]:
        """Points of the sheet spread over a ring of the lesion."""
        points = []
        for _ in range(count):
            turn = _between(random, 0, 2 * math.pi)
            r = math.sqrt(_between(random, inner * inner, outer * outer))
            points.append(self.place(r * math.cos(turn), r * math.sin(turn)))
        return points

    def dots(
        self,
        random: np.random.Generator,
        count: int,
        inner: float,
        outer: float,
        radius: tuple[float, float],
    ) -> Plane:
        """Mask of discs spread over a ring of the lesion; ``radius`` in sheet units."""
        pen = self.sheet.pen()
        for x, y in self.scatter(random, count, inner, outer):
            r = _between(random, *radius)
            pen.disc(x, y, r, r * _between(random, 0.75, 1.3))
        return pen.mask()

    def off_centre(self, random: np.random.Generator, reach: float, size: float) -> Plane:
        """A soft, ragged patch somewhere in the lesion."""
        ((x, y),) = self.scatter(random, 1, 0.0, reach)
        wide = self.radius * size
        distance = self.sheet.spot(x, y, wide, wide * _between(random, 0.6, 1), self.angle)
        ragged = distance + self.sheet.noise(random, 12) * 0.7
        return _ramp(ragged, 1.4, 0.4) * self.inside


def _network(lesion: _Lesion, random: np.random.Generator) -> None:
    """Pigment network: a brown mesh, finer or coarser, that thins out and fades unevenly."""
    sheet = lesion.sheet
    cells = lesion.radius * _between(random, 20, 32)
    loose = _between(random, 0.25, 0.6)
    total = sheet.noise(random, 7) * 0.7
    for turn in (0, math.pi / 3, 2 * math.pi / 3):
        along = lesion.u * (cells * math.cos(turn)) + lesion.v * (
            cells * math.sin(turn) * lesion.stretch
        )
        total += _wave(along + sheet.noise(random, 11) * loose)
    mesh = _ramp(total, 0.6, -1.2) * lesion.inside
    fade = _ramp(lesion.r + sheet.noise(random, 5) * 0.5, 0.0, 0.8)
    lesion.stain(mesh * fade, 0.8, (0.66, 0.55, 0.47))


def _globules(lesion: _Lesion, random: np.random.Generator) -> None:
    count = int(_between(random, 12, 34))
    mask = lesion.dots(random, count, 0.2, 1.0, (0.006, 0.014))
    lesion.stain(mask, 0.86, (0.5, 0.4, 0.36))


def _hub(lesion: _Lesion, random: np.random.Generator) -> None:
    """A darker centre."""
    mask = _ramp(lesion.r, 0.8, 0.1) * _between(random, 0.3, 0.7)
    _absorb(lesion.rgb, mask, (0.66, 0.55, 0.5))


def _blotch(lesion: _Lesion, random: np.random.Generator) -> None:
    """An off-centre blue-black area."""
    mask = lesion.off_centre(random, 0.6, _between(random, 0.35, 0.65))
    lesion.stain(mask, 0.98, (0.36, 0.32, 0.36))


def _veil(lesion: _Lesion, random: np.random.Generator) -> None:
    """Blue-grey veil: a whitish blue film without structure."""
    mask = lesion.off_centre(random, 0.5, _between(random, 0.4, 0.7))
    lesion.cover(mask, _between(random, 0.35, 0.6), (0.45, 0.5, 0.6))


def _regression(lesion: _Lesion, random: np.random.Generator) -> None:
    """Scar-like white, sometimes pink, area."""
    mask = lesion.off_centre(random, 0.8, _between(random, 0.3, 0.5))
    lesion.cover(mask, 0.57, (0.86, 0.76, 0.74))


def _tree_vessels(lesion: _Lesion, random: np.random.Generator) -> None:
    """Arborising vessels: sharp red stems that split into ever thinner twigs."""
    pen = lesion.sheet.pen()
    for x, y in lesion.scatter(random, 2 + int(random.random() * 3), 0.3, 0.9):
        heading = _between(random, 0, 2 * math.pi)
        _twig(pen, random, (x, y), heading, 0.009, lesion.radius * 0.5, depth=4)
    lesion.cover(pen.mask(), 0.85, (0.66, 0.16, 0.17))


def _twig(
    pen: _Pen,
    random: np.random.Generator,
    start: Point,
    heading: float,
    width: float,
    length: float,
    depth: int,
) -> None:
    points = [start]
    for _ in range(4):
        heading += _between(random, -0.45, 0.45)
        x, y = points[-1]
        points.append((x + length / 4 * math.cos(heading), y + length / 4 * math.sin(heading)))
    pen.line(points, width)
    if depth > 1:
        for side in (-1, 1):
            turned = heading + side * _between(random, 0.3, 0.9)
            _twig(pen, random, points[-1], turned, width * 0.65, length * 0.65, depth - 1)


def _nests(lesion: _Lesion, random: np.random.Generator) -> None:
    """Blue-grey ovoid nests."""
    mask = lesion.dots(random, int(_between(random, 3, 9)), 0.2, 0.95, (0.015, 0.035))
    lesion.cover(mask, 0.75, (0.4, 0.42, 0.5))


def _ulcer(lesion: _Lesion, random: np.random.Generator) -> None:
    """A crusted, red-brown, bleeding spot."""
    mask = lesion.off_centre(random, 0.5, _between(random, 0.2, 0.4))
    lesion.cover(mask, 0.92, (0.42, 0.14, 0.11))


def _follicles(lesion: _Lesion, random: np.random.Generator) -> None:
    """Strawberry pattern: yellowish follicle openings in a red pseudo-network."""
    count = int(60 * lesion.radius / 0.25)
    mask = lesion.dots(random, count, 0.0, 1.1, (0.008, 0.013))
    lesion.cover(mask, 0.63, (0.9, 0.76, 0.62))


def _scale(lesion: _Lesion, random: np.random.Generator) -> None:
    """White, flaking surface scale."""
    flakes = lesion.sheet.noise(random, 26) + lesion.sheet.noise(random, 11)
    mask = _ramp(flakes, 0.55, 1.0) * lesion.inside
    lesion.cover(mask, _between(random, 0.5, 0.8), (0.93, 0.88, 0.82))


def _milia(lesion: _Lesion, random: np.random.Generator) -> None:
    """Milia-like cysts: small whitish-yellow discs."""
    mask = lesion.dots(random, int(_between(random, 8, 22)), 0.0, 0.95, (0.005, 0.012))
    lesion.cover(mask, 0.8, (0.92, 0.85, 0.68))


def _comedones(lesion: _Lesion, random: np.random.Generator) -> None:
    """Comedo-like openings: round, dark brown plugs."""
    mask = lesion.dots(random, int(_between(random, 6, 18)), 0.0, 0.9, (0.008, 0.017))
    lesion.cover(mask, 0.86, (0.2, 0.13, 0.09))


def _fissures(lesion: _Lesion, random: np.random.Generator) -> None:
    """Brain-like grooves: thin dark level lines of a smooth field."""
    field = np.abs(lesion.sheet.noise(random, 11))
    mask = _ramp(field, 0.13, 0.03) * lesion.inside
    lesion.stain(mask, 0.8, (0.6, 0.5, 0.42))


def _scar(lesion: _Lesion, random: np.random.Generator) -> None:
    """A white, scar-like patch in the very centre."""
    core = lesion.r + lesion.sheet.noise(random, 10) * 0.15
    mask = _ramp(core, _between(random, 0.5, 0.7), 0.15)
    lesion.cover(mask, _between(random, 0.5, 0.8), (0.92, 0.84, 0.8))


def _lacunae(lesion: _Lesion, random: np.random.Generator) -> None:
    """Lagoons: crowded, well-bounded, red to purple clods."""
    for colour in ((0.62, 0.1, 0.14), (0.42, 0.1, 0.24), (0.3, 0.1, 0.22)):
        mask = lesion.dots(random, int(_between(random, 4, 10)), 0.0, 0.8, (0.018, 0.045))
        lesion.cover(mask, 0.8, colour)


def _keratin(lesion: _Lesion, random: np.random.Generator) -> None:
    """A yellowish-white horny mass, roughly central."""
    mask = lesion.off_centre(random, 0.3, _between(random, 0.45, 0.75))
    grit = 1 + lesion.sheet.noise(random, 30) * 0.35
    lesion.cover(mask * grit, 0.9, (0.9, 0.8, 0.6))


def _dotted_vessels(lesion: _Lesion, random: np.random.Generator) -> None:
    """Dotted and hairpin vessels at the periphery."""
    pen = lesion.sheet.pen()
    for x, y in lesion.scatter(random, int(_between(random, 20, 45)), 0.55, 1.05):
        if random.random() < 0.5:
            pen.disc(x, y, 0.005, 0.005)
        else:
            turn = _between(random, 0, 2 * math.pi)
            dx, dy = 0.014 * math.cos(turn), 0.014 * math.sin(turn)
            pen.line(
                [(x - dx - dy / 3, y - dy), (x + dx, y + dy), (x - dx + dy / 3, y - dy)], 0.004
            )
    lesion.cover(pen.mask(), 0.85, (0.62, 0.12, 0.13))


_SKIN_SIGNS: Mapping[str, Callable[[_Lesion, np.random.Generator], None]] = {
    "hub": _hub,
    "veil": _veil,
    "blotch": _blotch,
    "regression": _regression,
    "scar": _scar,
    "lacunae": _lacunae,
    "nests": _nests,
    "ulcer": _ulcer,
    "fissures": _fissures,
    "network": _network,
    "globules": _globules,
    "follicles": _follicles,
    "tree_vessels": _tree_vessels,
    "dotted_vessels": _dotted_vessels,
    "keratin": _keratin,
    "comedones": _comedones,
    "milia": _milia,
    "scale": _scale,
}


def _paint_skin(case: Case, size: int) -> Image.Image:
    own, pose = case.group_random(), case.image_random()
    sheet = _Sheet(size, round(size * 4 / 3))
    rgb = _bare_skin(sheet, _SKIN_TONES[case.subgroups["skin_tone"]], own, pose)
    style = _style(case.signs[0], own)
    lesion = _Lesion(sheet, rgb, style, own, pose)
    strength = lesion.inside * _between(own, 0.65, 1.0)
    strength = strength * (1 + sheet.noise(pose, 6) * (style.patchiness * 0.6))
    tint = tuple(value * _between(own, 0.88, 1.1) for value in style.tint)
    _absorb(rgb, strength, (tint[0], tint[1], tint[2]))
    for name, paint in _SKIN_SIGNS.items():
        chance = style.signs.get(name, 0.08 if name in _STRAY_SIGNS else 0.0)
        if own.random() < chance:
            paint(lesion, own)
    _hairs(sheet, rgb, pose)
    return _photograph(sheet, rgb, pose)


def _style(label: str, random: np.random.Generator) -> _LesionStyle:
    """The look of one lesion: its class's, drawn towards that of another class."""
    style = _LESION_STYLES[label]
    other = _LESION_STYLES[_pick(random, _SKIN_SHARES)]
    share = _between(random, 0.0, 0.7)

    def blend(a: float, b: float) -> float:
        return a + (b - a) * share

    red, green, blue = (blend(a, b) for a, b in zip(style.tint, other.tint, strict=True))
    return _LesionStyle(
        tint=(red, green, blue),
        asymmetry=blend(style.asymmetry, other.asymmetry),
        irregularity=blend(style.irregularity, other.irregularity),
        softness=blend(style.softness, other.softness),
        patchiness=blend(style.patchiness, other.patchiness),
        signs=style.signs,
    )


def _bare_skin(
    sheet: _Sheet, tone: Colour, own: np.random.Generator, pose: np.random.Generator
) -> NDArray[np.float32]:
    warmth = _between(own, -0.04, 0.04)
    base = (tone[0] + warmth, tone[1], tone[2] - warmth)
    mottle = sheet.noise(pose, 5) * 0.04 + sheet.noise(pose, 30) * 0.025
    rgb = np.empty((3, sheet.height, sheet.width), dtype=np.float32)
    for channel, value, share in zip(rgb, base, (0.6, 1.0, 1.0), strict=True):
        channel[:] = value + mottle * share
    return rgb


def _hairs(sheet: _Sheet, rgb: NDArray[np.float32], random: np.random.Generator) -> None:
    """Dark hairs across a third of the pictures, whatever the class."""
    if random.random() > 0.35:
        return
    pen = sheet.pen()
    lie = _between(random, 0, math.pi)
    for _ in range(int(_between(random, 4, 22))):
        x, y = _between(random, -0.7, 0.7), _between(random, -0.5, 0.5)
        turn = lie + _between(random, -0.5, 0.5)
        dx, dy = math.cos(turn) * 0.25, math.sin(turn) * 0.25
        bend = (x + _between(random, -0.1, 0.1), y + _between(random, -0.1, 0.1))
        pen.line(_curve((x - dx, y - dy), bend, (x + dx, y + dy)), _between(random, 0.003, 0.007))
    _mix(rgb, pen.mask() * _between(random, 0.5, 0.85), (0.16, 0.11, 0.09))


def _photograph(
    sheet: _Sheet, rgb: NDArray[np.float32], random: np.random.Generator
) -> Image.Image:
    """Light, colour cast, vignette and sensor noise of one exposure."""
    gain = _between(random, 0.85, 1.12)
    slope = (_between(random, -0.15, 0.15), _between(random, -0.15, 0.15))
    light = gain + sheet.x * slope[0] + sheet.y * slope[1]
    far = sheet.x * sheet.x + sheet.y * sheet.y
    light = light * (1 - far * _between(random, 0.0, 0.5))
    if random.random() < 0.25:
        rim = _between(random, 0.52, 0.68)
        light = light * _ramp(far, (rim + 0.02) ** 2, (rim - 0.02) ** 2)
    cast = [_between(random, 0.94, 1.06) for _ in rgb]
    for channel, gain in zip(rgb, cast, strict=True):
        channel *= light * gain
        channel += sheet.grain(random) * 0.012
    return _to_image(rgb)


# --------------------------------------------------------------------------------------------
# Fundus: retinal photographs


def _paint_fundus(case: Case, size: int) -> Image.Image:
    own, pose = case.group_random(), case.image_random()
    sheet = _Sheet(size, round(size * 4 / 3))
    side = 1.0 if case.subgroups["eye"] == "right" else -1.0  # the disc is nasal
    disc = (side * _between(pose, 0.24, 0.31), _between(pose, -0.05, 0.03))
    fovea = (disc[0] - side * _between(pose, 0.27, 0.3), disc[1] + 0.03)
    rgb = _retina(sheet, own, pose, disc, fovea, case.subgroups["age"])
    arteries, veins = _vessels(sheet, own, disc, side)
    _absorb(rgb, veins * 0.75, (0.68, 0.38, 0.4))
    _absorb(rgb, arteries * 0.6, (0.86, 0.5, 0.45))
    _retinopathy(sheet, rgb, pose, int(case.signs[0]), disc, fovea)
    return _flash(sheet, rgb, pose)


def _retina(
    sheet: _Sheet,
    own: np.random.Generator,
    pose: np.random.Generator,
    disc: Point,
    fovea: Point,
    age: str,
) -> NDArray[np.float32]:
    """Background with choroid texture, macula and optic disc."""
    red, green = _between(own, 0.62, 0.85), _between(own, 0.30, 0.42)
    base = (red, green, _between(own, 0.10, 0.2))
    choroid = sheet.noise(pose, 4) * 0.06 + sheet.noise(pose, 14) * _between(own, 0.02, 0.06)
    rgb = np.empty((3, sheet.height, sheet.width), dtype=np.float32)
    for channel, value in zip(rgb, base, strict=True):
        channel[:] = value * (1 + choroid)
    macula = _ramp(sheet.spot(*fovea, 0.14, 0.12), 1.0, 0.0)
    _absorb(rgb, macula * _between(own, 0.5, 0.9), (0.72, 0.66, 0.7))
    radius = _between(own, 0.058, 0.072)
    halo = _ramp(sheet.spot(*disc, radius * 1.9, radius * 2), 1.0, 0.2)
    _mix(rgb, halo * 0.25, (0.95, 0.62, 0.3))
    rim = _ramp(sheet.spot(*disc, radius, radius * 1.12), 1.15, 0.8)
    _mix(rgb, rim * 0.85, (0.98, 0.78, 0.45))
    cup = radius * _between(own, 0.35, 0.6) * (1.15 if age == "65 and over" else 1.0)
    _mix(rgb, _ramp(sheet.spot(*disc, cup, cup), 1.3, 0.5) * 0.7, (1.0, 0.94, 0.75))
    return rgb


def _vessels(
    sheet: _Sheet, own: np.random.Generator, disc: Point, side: float
) -> tuple[Plane, Plane]:
    """Masks of the arteries and of the veins: four arcades each that leave the disc."""
    masks = []
    for width in (0.009, 0.013):
        pen = sheet.pen()
        for up in (-1.0, 1.0):
            # Temporal arcades bend around the macula, nasal ones run straight away from it.
            start = math.atan2(up, -side * _between(own, 0.1, 0.5))
            _vessel(pen, own, disc, start, side * up * _between(own, 1.7, 2.6), width, 0)
            start = math.atan2(up, side * _between(own, 0.5, 1.1))
            _vessel(pen, own, disc, start, _between(own, -0.8, 0.8), width * 0.8, 0)
        masks.append(pen.mask())
    return masks[0], masks[1]


def _vessel(
    pen: _Pen,
    random: np.random.Generator,
    start: Point,
    heading: float,
    bend: float,
    width: float,
    depth: int,
) -> None:
    """Walk along one vessel (``bend`` in radians per unit length) and leave branches."""
    step = 0.035
    points = [start]
    for number in range(26 if depth == 0 else 12):
        heading += bend * step + _between(random, -0.16, 0.16)
        x, y = points[-1]
        points.append((x + step * math.cos(heading), y + step * math.sin(heading)))
        pen.line(points[-2:], width)
        width *= 0.955
        if depth < 2 and number > 1 and random.random() < 0.22:
            turn = heading + (1 if random.random() < 0.5 else -1) * _between(random, 0.4, 0.9)
            _vessel(pen, random, points[-1], turn, _between(random, -1, 1), width * 0.6, depth + 1)
        if points[-1][0] ** 2 + points[-1][1] ** 2 > 0.4:
            break


_RETINA_SIGNS: Mapping[str, tuple[tuple[int, int], ...]] = {  # lowest and highest count per grade
    "microaneurysms": ((0, 0), (1, 7), (4, 14), (8, 24), (6, 24)),
    "haemorrhages": ((0, 0), (0, 0), (0, 5), (7, 18), (3, 16)),
    "exudates": ((0, 0), (0, 0), (0, 16), (0, 24), (0, 24)),
    "cotton_wool": ((0, 0), (0, 0), (0, 1), (0, 4), (0, 3)),
    "tufts": ((0, 0), (0, 0), (0, 0), (0, 0), (1, 2)),
    "drusen": ((0, 8), (0, 8), (0, 8), (0, 8), (0, 8)),  # unrelated to the grade
    "dust": ((0, 3), (0, 3), (0, 3), (0, 3), (0, 3)),  # specks on the lens, unrelated too
}


def _retinopathy(
    sheet: _Sheet,
    rgb: NDArray[np.float32],
    random: np.random.Generator,
    grade: int,
    disc: Point,
    fovea: Point,
) -> None:
    count = {
        name: low + int(random.random() * (high - low + 1))
        for name, ranges in _RETINA_SIGNS.items()
        for low, high in [ranges[grade]]
    }
    _fluffy_spots(sheet, rgb, random, count["cotton_wool"])
    spots = [_near(random, fovea, 0.15) for _ in range(count["drusen"])]
    _spots(sheet, rgb, random, spots, (0.005, 0.013), (0.96, 0.74, 0.4), 0.5)
    _spots(sheet, rgb, random, _clusters(random, count["exudates"]), (0.004, 0.01), (1, 0.9, 0.5))
    spots = [_somewhere(random) for _ in range(count["microaneurysms"])]
    _spots(sheet, rgb, random, spots, (0.004, 0.007), (0.36, 0.07, 0.05))
    _blots(sheet, rgb, random, count["haemorrhages"])
    _new_vessels(sheet, rgb, random, count["tufts"], disc)
    if grade == 4 and random.random() < 0.4:
        _preretinal_haemorrhage(sheet, rgb, random)
    spots = [_somewhere(random) for _ in range(count["dust"])]
    _spots(sheet, rgb, random, spots, (0.004, 0.012), (0.25, 0.14, 0.08), 0.6)


def _somewhere(random: np.random.Generator) -> Point:
    """A point of the retina, outside the outermost rim."""
    turn, r = _between(random, 0, 2 * math.pi), 0.46 * math.sqrt(_between(random, 0.01, 1))
    return r * math.cos(turn), r * math.sin(turn)


def _near(random: np.random.Generator, centre: Point, reach: float) -> Point:
    dx, dy = _between(random, -reach, reach), _between(random, -reach, reach)
    return centre[0] + dx, centre[1] + dy


def _clusters(random: np.random.Generator, count: int) -> list[Point]:
    """Points that gather around a few centres."""
    centre, points = _somewhere(random), []
    for _ in range(count):
        if random.random() < 0.15:
            centre = _somewhere(random)
        points.append(_near(random, centre, 0.05))
    return points


def _spots(
    sheet: _Sheet,
    rgb: NDArray[np.float32],
    random: np.random.Generator,
    centres: Sequence[Point],
    radius: tuple[float, float],
    colour: Colour,
    clearest: float = 0.9,
) -> None:
    """Small roundish spots, all equally clear within one picture."""
    pen = sheet.pen()
    for x, y in centres:
        r = _between(random, *radius)
        pen.disc(x, y, r, r * _between(random, 0.7, 1.2))
    _mix(rgb, pen.mask() * (clearest * _between(random, 0.35, 1)), colour)


def _blots(
    sheet: _Sheet, rgb: NDArray[np.float32], random: np.random.Generator, count: int
) -> None:
    """Blot haemorrhages: ragged dark red spots of several sizes."""
    pen = sheet.pen()
    for _ in range(count):
        centre, big = _somewhere(random), _between(random, 0.5, 1.1)
        for _ in range(4):
            x, y = _near(random, centre, 0.013 * big)
            r = _between(random, 0.006, 0.014) * big
            pen.disc(x, y, r, r * _between(random, 0.5, 1))
    _absorb(rgb, pen.mask() * _between(random, 0.45, 0.95), (0.55, 0.28, 0.3))


def _fluffy_spots(
    sheet: _Sheet, rgb: NDArray[np.float32], random: np.random.Generator, count: int
) -> None:
    """Cotton-wool spots: pale, feathery patches."""
    for _ in range(count):
        x, y = _somewhere(random)
        r = _between(random, 0.02, 0.04)
        spot = sheet.spot(x, y, r, r * 0.7, _between(random, 0, math.pi))
        spot = spot + sheet.noise(random, 40) * 0.3
        mask = _ramp(spot, 1.2, 0.0) * _between(random, 0.3, 0.65)
        _mix(rgb, mask, (0.95, 0.85, 0.68))


def _new_vessels(
    sheet: _Sheet, rgb: NDArray[np.float32], random: np.random.Generator, count: int, disc: Point
) -> None:
    """Neovascular tufts: tangles of fine loops on the disc or elsewhere."""
    pen = sheet.pen()
    for number in range(count):
        centre = disc if number == 0 and random.random() < 0.5 else _somewhere(random)
        for _ in range(int(_between(random, 10, 20))):
            start = _near(random, centre, 0.045)
            bend, end = _near(random, start, 0.07), _near(random, start, 0.045)
            pen.line(_curve(start, bend, end, 6), 0.004)
    _absorb(rgb, pen.mask() * _between(random, 0.4, 0.85), (0.78, 0.3, 0.3))


def _preretinal_haemorrhage(
    sheet: _Sheet, rgb: NDArray[np.float32], random: np.random.Generator
) -> None:
    """A boat of blood: flat above, round below."""
    x, y = _between(random, -0.25, 0.25), _between(random, 0.05, 0.3)
    wide = _between(random, 0.04, 0.1)
    ragged = sheet.spot(x, y, wide, wide * 0.7) + sheet.noise(random, 25) * 0.25
    mask = _ramp(ragged, 1.2, 0.8) * _ramp(sheet.y, y - 0.006, y + 0.006)
    _absorb(rgb, mask * _between(random, 0.6, 0.9), (0.5, 0.18, 0.2))


def _flash(sheet: _Sheet, rgb: NDArray[np.float32], random: np.random.Generator) -> Image.Image:
    """Uneven flash, the round aperture, colour cast and sensor noise."""
    off = (_between(random, -0.2, 0.2), _between(random, -0.2, 0.2))
    far = sheet.spot(off[0], off[1], 1.0, 1.0)
    light = _between(random, 0.8, 1.2) * (1 - far * _between(random, 0.7, 1.5))
    radius = _between(random, 0.49, 0.56)
    aperture = _ramp(sheet.spot(0, 0, radius, radius), 1.01, 0.98)
    cast = [_between(random, 0.9, 1.1) for _ in rgb]
    for channel, gain in zip(rgb, cast, strict=True):
        channel *= light * gain
        channel += sheet.grain(random) * 0.012
        channel *= aperture
        channel += 0.015
    return _to_image(rgb)


# --------------------------------------------------------------------------------------------
# Chest: frontal radiographs (white is dense)


class _Thorax:
    """One patient's chest on a sheet: where lungs, heart and diaphragm are, and its picture.

    Coordinates are the patient's own: the spine is x = 0, the picture's left (the patient's right)
    is negative. ``film`` is the growing picture, in [0, 1] before the exposure.
    """

    def __init__(self, sheet: _Sheet, case: Case) -> None:
        own, pose = case.group_random(), case.image_random()
        self.sheet, self.own, self.pose = sheet, own, pose
        self.signs = frozenset(case.signs)
        self.from_front = case.subgroups["view"] == "AP"
        self.female = case.subgroups["sex"] == "female"
        self.old = case.subgroups["age"] == "65 and over"
        self.shift = (_between(pose, -0.03, 0.03), _between(pose, -0.02, 0.03))
        self.x = sheet.x - self.shift[0]
        self.y = sheet.y - self.shift[1]
        self.wide = _between(own, 0.37, 0.41) * (0.96 if self.female else 1.0)
        self.top = -_between(own, 0.36, 0.41) + (0.03 if self.from_front else 0.0)
        self.base = _between(own, 0.27, 0.32) - (0.04 if self.from_front else 0.0)
        self.weak_side = -1 if pose.random() < 0.5 else 1  # where one-sided findings go
        self.cage = self._cage()
        self.heart, self.middle, self.dome = self._heart(), self._mediastinum(), self._diaphragm()
        below_wall = _ramp(self.y - self.dome, 0.012, -0.012)
        self.lung = _ramp(self.cage, 1.02, 0.94) * below_wall
        self.air = self.lung * (1 - np.maximum(self.heart, self.middle))
        self.film = self._film()

    def place(self, x: float, y: float) -> Point:
        return x + self.shift[0], y + self.shift[1]

    def spot(self, x: float, y: float, rx: float, ry: float, angle: float = 0.0) -> Plane:
        return self.sheet.spot(*self.place(x, y), rx, ry, angle)

    def add(self, mask: Plane, amount: float) -> None:
        """Make the film whiter (or darker, for a negative amount) under a mask."""
        self.film += mask * amount

    def half_width(self, y: float) -> float:
        """Distance of the chest wall from the spine at a height."""
        up = max((0.08 - y) / (0.08 - self.top), 0.0)
        return 0.18 + (self.wide - 0.18) * math.sqrt(max(1 - up * up, 0.0))

    def in_lung(self, low: float, high: float) -> tuple[float, float, int]:
        """A point of one lung at a height between two bounds, and the lung's side (±1)."""
        side = -1 if self.pose.random() < 0.5 else 1
        y = _between(self.pose, low, high)
        inner = 0.14 if side < 0 else 0.17
        return side * _between(self.pose, inner, self.half_width(y) - 0.05), y, side

    def _cage(self) -> Plane:
        """Distance from each lung's axis: 1 on the chest wall, an arch above, upright below."""
        across = (np.abs(self.x) - 0.18) / (self.wide - 0.18)
        up = np.maximum((0.08 - self.y) / (0.08 - self.top), 0)
        return np.sqrt(across * across + up * up)

    def _heart(self) -> Plane:
        size = _between(self.own, 0.12, 0.145) * (1.1 if self.from_front else 1.0)
        if "Cardiomegaly" in self.signs:
            size *= _between(self.pose, 1.15, 1.45)
        ventricle = self.spot(
            0.055 + (size - 0.13) * 0.4, self.base - 0.09, size, size * 0.78, 0.55
        )
        atrium = self.spot(-0.03, self.base - 0.1, size * 0.58, size * 0.85)
        return _ramp(np.minimum(ventricle, atrium), 1.15, 0.85)

    def _mediastinum(self) -> Plane:
        half = _between(self.own, 0.045, 0.06) * (1.1 if self.from_front else 1.0)
        if "Enlarged Cardiomediastinum" in self.signs:
            half *= _between(self.pose, 1.2, 1.7)
        knob = _ramp(self.spot(half * 0.9, -0.14, 0.036, 0.05), 1.2, 0.7)
        edge = np.abs(self.x) - half - self.y * 0.05
        edge = edge + self.sheet.noise(self.own, 5) * 0.012
        return np.maximum(_ramp(edge, 0.015, -0.015), knob)

    def _diaphragm(self) -> Plane:
        """Height of the diaphragm at each x; the right dome (left in the picture) is higher."""
        domes = []
        for side, lift in ((-1, 0.025), (1, 0.0)):
            if "Atelectasis" in self.signs and side == self.weak_side:
                lift += _between(self.pose, 0.03, 0.07)  # the lost volume draws the dome up
            across = (self.x - side * 0.19) / 0.2
            domes.append((self.base - lift) + across * across * 0.08)
        return np.where(self.x < 0, domes[0], domes[1])

    def _film(self) -> Plane:
        """Soft tissue, spine and organs, without lung markings, bones or findings."""
        off = np.abs(self.x)
        slope = -0.42 + np.maximum(off - 0.13, 0) * 0.5
        body = _ramp(self.y - slope, -0.03, 0.04) * _ramp(off, 0.56, 0.47)
        body = np.maximum(body, _ramp(off, 0.17, 0.12))
        film = 0.03 + body * 0.42
        under = _ramp(self.y - self.dome, -0.012, 0.012)
        film = film + under * body * 0.17
        # A stomach bubble may sit under the left dome (right in the picture).
        bubble = _ramp(self.spot(0.17, self.base + 0.09, 0.07, 0.045), 1.1, 0.3) * under
        film = film - bubble * _between(self.own, 0.0, 0.12)
        film = film - self.air * _between(self.own, 0.24, 0.3)
        film = film + np.maximum(self.heart * 0.15, self.middle * 0.12) * self.lung
        vertebrae = 1 + _wave(self.y * 13) * 0.35
        film = film + _ramp(off, 0.042, 0.028) * vertebrae * 0.07
        trachea = _ramp(off, 0.026, 0.012) * _ramp(self.y, -0.13, -0.2)
        film = film - trachea * 0.11
        for side in (-1, 1):
            film = film + _ramp(self.spot(side * 0.08, -0.01, 0.06, 0.09), 1.2, 0.0) * 0.06
            if self.female:
                breast = _ramp(self.spot(side * 0.22, 0.17, 0.16, 0.14), 1.05, 0.75)
                film = film + breast * 0.045
        return film + (self.sheet.noise(self.own, 4) + self.sheet.noise(self.own, 9)) * 0.018

    def bones(self) -> None:
        """Ribs (some broken in a fracture) and clavicles."""
        pen, callus = self.sheet.pen(), self.sheet.pen()
        first = 2 + int(self.pose.random() * 3)
        count = 2 + int(self.pose.random() * 3) if "Fracture" in self.signs else 0
        for side in (-1, 1):
            for number in range(9):
                broken = side == self.weak_side and first <= number < first + count
                self._rib(pen, callus, side, number, broken)
            low = self.top + 0.12
            inner, outer = self.place(side * 0.035, low), self.place(side * 0.4, low - 0.09)
            pen.line(_curve(inner, self.place(side * 0.2, low), outer), 0.026)
        self.add(pen.mask(), 0.1 if self.old else 0.13)
        self.add(callus.mask(), 0.18)

    def _rib(self, pen: _Pen, callus: _Pen, side: int, number: int, broken: bool) -> None:
        """One rib, its back part distinct; a broken one is displaced, with bright callus ends."""
        top = self.top + 0.03 + number * 0.068
        reach = self.half_width(top + 0.06) + 0.005
        back = _curve(
            self.place(side * 0.03, top + 0.01),
            self.place(side * reach * 0.7, top - 0.035),
            self.place(side * reach, top + 0.09),
            16,
        )
        front = _curve(
            self.place(side * reach, top + 0.09),
            self.place(side * reach * 0.85, top + 0.19),
            self.place(side * 0.13, top + 0.21),
        )
        pen.line(front, 0.018, 0.3)
        if not broken:
            pen.line(back, 0.022, 0.75)
            return
        cut = 8 + int(self.pose.random() * 4)
        drop = _between(self.pose, 0.02, 0.035)
        outer = [(x, y + drop) for x, y in back[cut:]]
        pen.line(back[:cut], 0.022, 0.75)
        pen.line(outer, 0.022, 0.75)
        for x, y in (back[cut - 1], outer[0]):
            callus.disc(x, y, 0.016, 0.016)

    def lung_vessels(self) -> None:
        """Branching markings from each hilum, stouter in oedema."""
        pen = self.sheet.pen()
        stout = _between(self.pose, 1.0, 1.5) if "Edema" in self.signs else 1.0
        for side in (-1, 1):
            hilum = self.place(side * 0.07, _between(self.own, -0.03, 0.01))
            for number in range(6):
                heading = (-1.15 + number * 0.45) + _between(self.own, -0.2, 0.2)
                if side < 0:
                    heading = math.pi - heading
                _twig(pen, self.own, hilum, heading, 0.014 * stout, 0.1, depth=4)
        self.add(pen.mask() * self.air, 0.1 * stout)


def _paint_chest(case: Case, size: int) -> Image.Image:
    sheet = _Sheet(size, size)
    thorax = _Thorax(sheet, case)
    thorax.lung_vessels()
    for name, paint in _CHEST_SIGNS.items():
        if name in thorax.signs:
            paint(thorax)
    thorax.bones()
    if _DEVICES in thorax.signs:
        _devices(thorax)
    return _expose(thorax, case.site)


def _lung_opacity(thorax: _Thorax) -> None:
    """Ground-glass haze over part of a lung."""
    pose = thorax.pose
    x, y, _ = thorax.in_lung(-0.2, 0.15)
    haze = thorax.spot(x, y, _between(pose, 0.1, 0.16), _between(pose, 0.12, 0.2))
    haze = haze + thorax.sheet.noise(pose, 10) * 0.5
    thorax.add(_ramp(haze, 1.4, 0.1) * thorax.air, _between(pose, 0.1, 0.2))


def _lung_lesion(thorax: _Thorax) -> None:
    """One to four round, sharply bounded nodules."""
    for _ in range(1 + int(thorax.pose.random() * 4)):
        x, y, _side = thorax.in_lung(-0.22, 0.15)
        r = _between(thorax.pose, 0.025, 0.05)
        thorax.add(_ramp(thorax.spot(x, y, r, r), 1.1, 0.7) * thorax.air, 0.22)


def _edema(thorax: _Thorax) -> None:
    """Bat-wing haze around both hila and short horizontal septal lines at the bases."""
    pose = thorax.pose
    amount = _between(pose, 0.04, 0.12)
    pen = thorax.sheet.pen()
    for side in (-1, 1):
        wing = thorax.spot(side * 0.13, 0.02, 0.14, 0.2)
        wing = wing + thorax.sheet.noise(pose, 14) * 0.4
        thorax.add(_ramp(wing, 1.5, 0.0) * thorax.air, amount)
        for number in range(6):
            x, y = side * (thorax.wide - 0.02), 0.05 + number * 0.025
            pen.line([thorax.place(x, y), thorax.place(x - side * 0.05, y + 0.004)], 0.005)
    thorax.add(pen.mask() * thorax.air, 0.12)


def _consolidation(thorax: _Thorax) -> None:
    """A dense lobe with dark air bronchograms."""
    pose = thorax.pose
    x, y, side = thorax.in_lung(-0.15, 0.15)
    lobe = thorax.spot(x, y, _between(pose, 0.08, 0.12), _between(pose, 0.07, 0.11), pose.random())
    lobe = lobe + thorax.sheet.noise(pose, 12) * 0.35
    mask = _ramp(lobe, 1.25, 0.6) * thorax.air
    thorax.add(mask, _between(pose, 0.2, 0.27))
    pen = thorax.sheet.pen()
    heading = 0.0 if side > 0 else math.pi
    _twig(pen, pose, thorax.place(x - side * 0.07, y), heading, 0.014, 0.09, depth=3)
    thorax.add(pen.mask() * mask, -0.12)


def _pneumonia(thorax: _Thorax) -> None:
    """Several fluffy, ill-defined patches in one lower zone."""
    pose = thorax.pose
    x0, y0, _ = thorax.in_lung(0.0, 0.12)
    for _ in range(int(_between(pose, 6, 12))):
        x, y = x0 + _between(pose, -0.09, 0.09), y0 + _between(pose, -0.1, 0.1)
        r = _between(pose, 0.025, 0.045)
        thorax.add(_ramp(thorax.spot(x, y, r, r), 1.4, 0.0) * thorax.air, 0.16)


def _atelectasis(thorax: _Thorax) -> None:
    """Plate-like bands above the raised dome."""
    pose, side = thorax.pose, thorax.weak_side
    pen = thorax.sheet.pen()
    for number in range(2 + int(pose.random() * 2)):
        y = thorax.base - 0.11 - number * 0.035
        tilt = _between(pose, -0.03, 0.03)
        start, end = thorax.place(side * 0.14, y), thorax.place(side * 0.32, y + tilt)
        pen.line([start, end], _between(pose, 0.008, 0.016))
    thorax.add(pen.mask() * thorax.air, 0.2)


def _pneumothorax(thorax: _Thorax) -> None:
    """A black, markless crescent beyond a thin white pleural line."""
    pose, side = thorax.pose, thorax.weak_side
    gap = _between(pose, 0.12, 0.4)
    # The collapsed lung leaves the wall: most at the apex, not at all near the base.
    rim = thorax.cage + _ramp(thorax.y, 0.22, -0.25) * gap
    here = (thorax.x * side > 0) * _ramp(thorax.y, 0.24, 0.1) * thorax.air
    outside = _ramp(rim, 0.97, 0.99) * here
    thorax.film += outside * (0.12 - thorax.film)
    thorax.add(_ramp(np.abs(rim - 0.96), 0.03, 0.01) * here, 0.16)


def _pleural_effusion(thorax: _Thorax) -> None:
    """A white base with a meniscus that climbs the chest wall."""
    pose = thorax.pose
    sides = (-1, 1) if pose.random() < 0.35 else (thorax.weak_side,)
    for side in sides:
        level = thorax.base - _between(pose, -0.06, 0.08)
        out = np.clip(thorax.x * (side / thorax.wide), 0, 1)
        surface = level + 0.05 - out * out * out * 0.17
        mask = _ramp(thorax.y - surface, -0.015, 0.02) * _ramp(out, 0.12, 0.3) * thorax.air
        thorax.add(mask, _between(pose, 0.22, 0.36))


def _pleural_other(thorax: _Thorax) -> None:
    """Thickened pleura: a white rind along the wall, with calcified plaques."""
    pose, side = thorax.pose, thorax.weak_side
    ragged = thorax.cage + thorax.sheet.noise(pose, 14) * 0.06
    here = (thorax.x * side > 0.15) * _ramp(thorax.y, -0.24, -0.12) * thorax.air
    thorax.add(_ramp(ragged, 0.76, 0.86) * here, _between(pose, 0.14, 0.2))
    pen = thorax.sheet.pen()
    for _ in range(int(_between(pose, 3, 8))):
        y = _between(pose, -0.1, 0.2)
        place = thorax.place(side * (thorax.half_width(y) - 0.035), y)
        pen.disc(*place, _between(pose, 0.006, 0.014), _between(pose, 0.01, 0.022))
    thorax.add(pen.mask() * thorax.air, 0.2)


def _devices(thorax: _Thorax) -> None:
    """One or more of: central line, tracheal tube, pacemaker with its lead, monitor leads."""
    pose = thorax.pose
    pen = thorax.sheet.pen()
    side = thorax.weak_side
    line, tube, pacemaker, leads = pose.random(4) < (0.6, 0.35, 0.25, 0.4)
    if line or not (tube or pacemaker or leads):
        start, bend = thorax.place(side * 0.25, -0.34), thorax.place(side * 0.01, -0.3)
        pen.line(_curve(start, bend, thorax.place(-0.035, 0.04)), 0.008, 0.8)
    if tube:
        pen.line([thorax.place(0.0, -0.5), thorax.place(0.004, -0.15)], 0.012, 0.8)
    if pacemaker:
        box = thorax.place(-side * 0.27, -0.2)
        pen.disc(*box, 0.045, 0.035)
        pen.line(_curve(box, thorax.place(0.0, -0.25), thorax.place(0.06, 0.2)), 0.007)
    if leads:
        for half in (-1, 1):
            x, y = half * _between(pose, 0.18, 0.3), _between(pose, -0.15, 0.1)
            pen.disc(*thorax.place(x, y), 0.014, 0.014)
            bend, end = thorax.place(x * 1.3, 0.3), thorax.place(x * 0.7, 0.5)
            pen.line(_curve(thorax.place(x, y), bend, end), 0.005)
    thorax.add(pen.mask(), 0.28)


_CHEST_SIGNS: Mapping[str, Callable[[_Thorax], None]] = {
    "Lung Opacity": _lung_opacity,
    "Lung Lesion": _lung_lesion,
    "Edema": _edema,
    "Consolidation": _consolidation,
    "Pneumonia": _pneumonia,
    "Atelectasis": _atelectasis,
    "Pneumothorax": _pneumothorax,
    "Pleural Effusion": _pleural_effusion,
    "Pleural Other": _pleural_other,
}


def _expose(thorax: _Thorax, site: str) -> Image.Image:
    """Exposure, scatter noise and, abroad, another contrast curve and collimator borders."""
    sheet, pose = thorax.sheet, thorax.pose
    contrast, middle = _between(pose, 0.95, 1.25), _between(pose, 0.42, 0.52)
    noise, window = _between(pose, 0.015, 0.03), None
    if site == "foreign":
        contrast, middle, noise = contrast * _between(pose, 0.6, 0.8), middle + 0.06, noise * 1.1
        left, right, top, bottom = (_between(pose, 0.42, 0.5) for _ in range(4))
        window = (sheet.x > -left) & (sheet.x < right) & (sheet.y > -top) & (sheet.y < bottom)
    film = (thorax.film - 0.4) * contrast + middle + sheet.grain(pose) * noise
    if window is not None:
        film = np.where(window, film, 0.02)
    return _to_image(film)


_PAINTERS: Mapping[str, Callable[[Case, int], Image.Image]] = {
    "skin": _paint_skin,
    "fundus": _paint_fundus,
    "chest": _paint_chest,
}
