"""Skin: dermoscopic pictures of one lesion."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crsbench.synthetic.cases import SKIN_SHARES, Case, pick
from crsbench.synthetic.painting import (
    Colour,
    Plane,
    Point,
    Sheet,
    absorb,
    between,
    curve,
    mix,
    ramp,
    to_image,
    twig,
    wave,
)


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
        sheet: Sheet,
        rgb: NDArray[np.float32],
        style: _LesionStyle,
        own: np.random.Generator,
        pose: np.random.Generator,
    ) -> None:
        self.sheet, self.rgb = sheet, rgb
        self.clarity = between(own, 0.25, 0.95)
        self.radius = between(own, 0.17, 0.34) * between(pose, 0.85, 1.15)
        self.stretch = between(own, 0.7, 1.0)
        self.angle = between(pose, 0, 2 * math.pi)
        self.centre = (between(pose, -0.12, 0.12), between(pose, -0.07, 0.07))
        c, s = math.cos(self.angle), math.sin(self.angle)
        dx, dy = sheet.x - self.centre[0], sheet.y - self.centre[1]
        self.u = (dx * c + dy * s) / self.radius
        self.v = (dy * c - dx * s) / (self.radius * self.stretch)
        self.r = np.sqrt(self.u * self.u + self.v * self.v)
        depth = self._rim(style, own, pose) - self.r
        self.inside = ramp(depth, -style.softness, style.softness)

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
            size = style.asymmetry * 2.2 / order * between(own, -1, 1)
            turn = between(own, 0, 2 * math.pi)
            rim += (size * math.cos(turn)) * cos + (size * math.sin(turn)) * sin
        rim += self.sheet.noise(pose, 9) * style.irregularity
        rim += self.sheet.noise(pose, 20) * (style.irregularity * 0.8)
        return rim

    def cover(self, mask: Plane, amount: float, colour: Colour) -> None:
        """Lay an opaque structure over the lesion, as clearly as this lesion shows its signs."""
        mix(self.rgb, np.minimum(mask * (amount * self.clarity), 1), colour)

    def stain(self, mask: Plane, amount: float, passed: Colour) -> None:
        """Filter the lesion through a pigment, as clearly as this lesion shows its signs."""
        absorb(self.rgb, np.minimum(mask * (amount * self.clarity), 1), passed)

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
            turn = between(random, 0, 2 * math.pi)
            r = math.sqrt(between(random, inner * inner, outer * outer))
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
            r = between(random, *radius)
            pen.disc(x, y, r, r * between(random, 0.75, 1.3))
        return pen.mask()

    def off_centre(self, random: np.random.Generator, reach: float, size: float) -> Plane:
        """A soft, ragged patch somewhere in the lesion."""
        ((x, y),) = self.scatter(random, 1, 0.0, reach)
        wide = self.radius * size
        distance = self.sheet.spot(x, y, wide, wide * between(random, 0.6, 1), self.angle)
        ragged = distance + self.sheet.noise(random, 12) * 0.7
        return ramp(ragged, 1.4, 0.4) * self.inside


def _network(lesion: _Lesion, random: np.random.Generator) -> None:
    """Pigment network: a brown mesh, finer or coarser, that thins out and fades unevenly."""
    sheet = lesion.sheet
    cells = lesion.radius * between(random, 20, 32)
    loose = between(random, 0.25, 0.6)
    total = sheet.noise(random, 7) * 0.7
    for turn in (0, math.pi / 3, 2 * math.pi / 3):
        along = lesion.u * (cells * math.cos(turn)) + lesion.v * (
            cells * math.sin(turn) * lesion.stretch
        )
        total += wave(along + sheet.noise(random, 11) * loose)
    mesh = ramp(total, 0.6, -1.2) * lesion.inside
    fade = ramp(lesion.r + sheet.noise(random, 5) * 0.5, 0.0, 0.8)
    lesion.stain(mesh * fade, 0.8, (0.66, 0.55, 0.47))


def _globules(lesion: _Lesion, random: np.random.Generator) -> None:
    count = int(between(random, 12, 34))
    mask = lesion.dots(random, count, 0.2, 1.0, (0.006, 0.014))
    lesion.stain(mask, 0.86, (0.5, 0.4, 0.36))


def _hub(lesion: _Lesion, random: np.random.Generator) -> None:
    """A darker centre."""
    mask = ramp(lesion.r, 0.8, 0.1) * between(random, 0.3, 0.7)
    absorb(lesion.rgb, mask, (0.66, 0.55, 0.5))


def _blotch(lesion: _Lesion, random: np.random.Generator) -> None:
    """An off-centre blue-black area."""
    mask = lesion.off_centre(random, 0.6, between(random, 0.35, 0.65))
    lesion.stain(mask, 0.98, (0.36, 0.32, 0.36))


def _veil(lesion: _Lesion, random: np.random.Generator) -> None:
    """Blue-grey veil: a whitish blue film without structure."""
    mask = lesion.off_centre(random, 0.5, between(random, 0.4, 0.7))
    lesion.cover(mask, between(random, 0.35, 0.6), (0.45, 0.5, 0.6))


def _regression(lesion: _Lesion, random: np.random.Generator) -> None:
    """Scar-like white, sometimes pink, area."""
    mask = lesion.off_centre(random, 0.8, between(random, 0.3, 0.5))
    lesion.cover(mask, 0.57, (0.86, 0.76, 0.74))


def _tree_vessels(lesion: _Lesion, random: np.random.Generator) -> None:
    """Arborising vessels: sharp red stems that split into ever thinner twigs."""
    pen = lesion.sheet.pen()
    for x, y in lesion.scatter(random, 2 + int(random.random() * 3), 0.3, 0.9):
        heading = between(random, 0, 2 * math.pi)
        twig(pen, random, (x, y), heading, 0.009, lesion.radius * 0.5, depth=4)
    lesion.cover(pen.mask(), 0.85, (0.66, 0.16, 0.17))


def _nests(lesion: _Lesion, random: np.random.Generator) -> None:
    """Blue-grey ovoid nests."""
    mask = lesion.dots(random, int(between(random, 3, 9)), 0.2, 0.95, (0.015, 0.035))
    lesion.cover(mask, 0.75, (0.4, 0.42, 0.5))


def _ulcer(lesion: _Lesion, random: np.random.Generator) -> None:
    """A crusted, red-brown, bleeding spot."""
    mask = lesion.off_centre(random, 0.5, between(random, 0.2, 0.4))
    lesion.cover(mask, 0.92, (0.42, 0.14, 0.11))


def _follicles(lesion: _Lesion, random: np.random.Generator) -> None:
    """Strawberry pattern: yellowish follicle openings in a red pseudo-network."""
    count = int(60 * lesion.radius / 0.25)
    mask = lesion.dots(random, count, 0.0, 1.1, (0.008, 0.013))
    lesion.cover(mask, 0.63, (0.9, 0.76, 0.62))


def _scale(lesion: _Lesion, random: np.random.Generator) -> None:
    """White, flaking surface scale."""
    flakes = lesion.sheet.noise(random, 26) + lesion.sheet.noise(random, 11)
    mask = ramp(flakes, 0.55, 1.0) * lesion.inside
    lesion.cover(mask, between(random, 0.5, 0.8), (0.93, 0.88, 0.82))


def _milia(lesion: _Lesion, random: np.random.Generator) -> None:
    """Milia-like cysts: small whitish-yellow discs."""
    mask = lesion.dots(random, int(between(random, 8, 22)), 0.0, 0.95, (0.005, 0.012))
    lesion.cover(mask, 0.8, (0.92, 0.85, 0.68))


def _comedones(lesion: _Lesion, random: np.random.Generator) -> None:
    """Comedo-like openings: round, dark brown plugs."""
    mask = lesion.dots(random, int(between(random, 6, 18)), 0.0, 0.9, (0.008, 0.017))
    lesion.cover(mask, 0.86, (0.2, 0.13, 0.09))


def _fissures(lesion: _Lesion, random: np.random.Generator) -> None:
    """Brain-like grooves: thin dark level lines of a smooth field."""
    field = np.abs(lesion.sheet.noise(random, 11))
    mask = ramp(field, 0.13, 0.03) * lesion.inside
    lesion.stain(mask, 0.8, (0.6, 0.5, 0.42))


def _scar(lesion: _Lesion, random: np.random.Generator) -> None:
    """A white, scar-like patch in the very centre."""
    core = lesion.r + lesion.sheet.noise(random, 10) * 0.15
    mask = ramp(core, between(random, 0.5, 0.7), 0.15)
    lesion.cover(mask, between(random, 0.5, 0.8), (0.92, 0.84, 0.8))


def _lacunae(lesion: _Lesion, random: np.random.Generator) -> None:
    """Lagoons: crowded, well-bounded, red to purple clods."""
    for colour in ((0.62, 0.1, 0.14), (0.42, 0.1, 0.24), (0.3, 0.1, 0.22)):
        mask = lesion.dots(random, int(between(random, 4, 10)), 0.0, 0.8, (0.018, 0.045))
        lesion.cover(mask, 0.8, colour)


def _keratin(lesion: _Lesion, random: np.random.Generator) -> None:
    """A yellowish-white horny mass, roughly central."""
    mask = lesion.off_centre(random, 0.3, between(random, 0.45, 0.75))
    grit = 1 + lesion.sheet.noise(random, 30) * 0.35
    lesion.cover(mask * grit, 0.9, (0.9, 0.8, 0.6))


def _dotted_vessels(lesion: _Lesion, random: np.random.Generator) -> None:
    """Dotted and hairpin vessels at the periphery."""
    pen = lesion.sheet.pen()
    for x, y in lesion.scatter(random, int(between(random, 20, 45)), 0.55, 1.05):
        if random.random() < 0.5:
            pen.disc(x, y, 0.005, 0.005)
        else:
            turn = between(random, 0, 2 * math.pi)
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


def paint_skin(case: Case, size: int) -> Image.Image:
    own, pose = case.group_random(), case.image_random()
    sheet = Sheet(size, round(size * 4 / 3))
    rgb = _bare_skin(sheet, _SKIN_TONES[case.subgroups["skin_tone"]], own, pose)
    style = _style(case.signs[0], own)
    lesion = _Lesion(sheet, rgb, style, own, pose)
    strength = lesion.inside * between(own, 0.65, 1.0)
    strength = strength * (1 + sheet.noise(pose, 6) * (style.patchiness * 0.6))
    tint = tuple(value * between(own, 0.88, 1.1) for value in style.tint)
    absorb(rgb, strength, (tint[0], tint[1], tint[2]))
    for name, paint in _SKIN_SIGNS.items():
        chance = style.signs.get(name, 0.08 if name in _STRAY_SIGNS else 0.0)
        if own.random() < chance:
            paint(lesion, own)
    _hairs(sheet, rgb, pose)
    return _photograph(sheet, rgb, pose)


def _style(label: str, random: np.random.Generator) -> _LesionStyle:
    """The look of one lesion: its class's, drawn towards that of another class."""
    style = _LESION_STYLES[label]
    other = _LESION_STYLES[pick(random, SKIN_SHARES)]
    share = between(random, 0.0, 0.7)

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
    sheet: Sheet, tone: Colour, own: np.random.Generator, pose: np.random.Generator
) -> NDArray[np.float32]:
    warmth = between(own, -0.04, 0.04)
    base = (tone[0] + warmth, tone[1], tone[2] - warmth)
    mottle = sheet.noise(pose, 5) * 0.04 + sheet.noise(pose, 30) * 0.025
    rgb = np.empty((3, sheet.height, sheet.width), dtype=np.float32)
    for channel, value, share in zip(rgb, base, (0.6, 1.0, 1.0), strict=True):
        channel[:] = value + mottle * share
    return rgb


def _hairs(sheet: Sheet, rgb: NDArray[np.float32], random: np.random.Generator) -> None:
    """Dark hairs across a third of the pictures, whatever the class."""
    if random.random() > 0.35:
        return
    pen = sheet.pen()
    lie = between(random, 0, math.pi)
    for _ in range(int(between(random, 4, 22))):
        x, y = between(random, -0.7, 0.7), between(random, -0.5, 0.5)
        turn = lie + between(random, -0.5, 0.5)
        dx, dy = math.cos(turn) * 0.25, math.sin(turn) * 0.25
        bend = (x + between(random, -0.1, 0.1), y + between(random, -0.1, 0.1))
        pen.line(curve((x - dx, y - dy), bend, (x + dx, y + dy)), between(random, 0.003, 0.007))
    mix(rgb, pen.mask() * between(random, 0.5, 0.85), (0.16, 0.11, 0.09))


def _photograph(sheet: Sheet, rgb: NDArray[np.float32], random: np.random.Generator) -> Image.Image:
    """Light, colour cast, vignette and sensor noise of one exposure."""
    gain = between(random, 0.85, 1.12)
    slope = (between(random, -0.15, 0.15), between(random, -0.15, 0.15))
    light = gain + sheet.x * slope[0] + sheet.y * slope[1]
    far = sheet.x * sheet.x + sheet.y * sheet.y
    light = light * (1 - far * between(random, 0.0, 0.5))
    if random.random() < 0.25:
        rim = between(random, 0.52, 0.68)
        light = light * ramp(far, (rim + 0.02) ** 2, (rim - 0.02) ** 2)
    cast = [between(random, 0.94, 1.06) for _ in rgb]
    for channel, gain in zip(rgb, cast, strict=True):
        channel *= light * gain
        channel += sheet.grain(random) * 0.012
    return to_image(rgb)
