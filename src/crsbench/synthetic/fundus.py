"""Fundus: retinal photographs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crsbench.synthetic.cases import Case
from crsbench.synthetic.painting import (
    Colour,
    Pen,
    Plane,
    Point,
    Sheet,
    absorb,
    between,
    curve,
    mix,
    ramp,
    to_image,
)


def paint_fundus(case: Case, size: int) -> Image.Image:
    own, pose = case.group_random(), case.image_random()
    sheet = Sheet(size, round(size * 4 / 3))
    side = 1.0 if case.subgroups["eye"] == "right" else -1.0  # the disc is nasal
    disc = (side * between(pose, 0.24, 0.31), between(pose, -0.05, 0.03))
    fovea = (disc[0] - side * between(pose, 0.27, 0.3), disc[1] + 0.03)
    rgb = _retina(sheet, own, pose, disc, fovea, case.subgroups["age"])
    arteries, veins = _vessels(sheet, own, disc, side)
    absorb(rgb, veins * 0.75, (0.68, 0.38, 0.4))
    absorb(rgb, arteries * 0.6, (0.86, 0.5, 0.45))
    _retinopathy(sheet, rgb, pose, int(case.signs[0]), disc, fovea)
    return _flash(sheet, rgb, pose)


def _retina(
    sheet: Sheet,
    own: np.random.Generator,
    pose: np.random.Generator,
    disc: Point,
    fovea: Point,
    age: str,
) -> NDArray[np.float32]:
    """Background with choroid texture, macula and optic disc."""
    red, green = between(own, 0.62, 0.85), between(own, 0.30, 0.42)
    base = (red, green, between(own, 0.10, 0.2))
    choroid = sheet.noise(pose, 4) * 0.06 + sheet.noise(pose, 14) * between(own, 0.02, 0.06)
    rgb = np.empty((3, sheet.height, sheet.width), dtype=np.float32)
    for channel, value in zip(rgb, base, strict=True):
        channel[:] = value * (1 + choroid)
    macula = ramp(sheet.spot(*fovea, 0.14, 0.12), 1.0, 0.0)
    absorb(rgb, macula * between(own, 0.5, 0.9), (0.72, 0.66, 0.7))
    radius = between(own, 0.058, 0.072)
    halo = ramp(sheet.spot(*disc, radius * 1.9, radius * 2), 1.0, 0.2)
    mix(rgb, halo * 0.25, (0.95, 0.62, 0.3))
    rim = ramp(sheet.spot(*disc, radius, radius * 1.12), 1.15, 0.8)
    mix(rgb, rim * 0.85, (0.98, 0.78, 0.45))
    cup = radius * between(own, 0.35, 0.6) * (1.15 if age == "65 and over" else 1.0)
    mix(rgb, ramp(sheet.spot(*disc, cup, cup), 1.3, 0.5) * 0.7, (1.0, 0.94, 0.75))
    return rgb


def _vessels(
    sheet: Sheet, own: np.random.Generator, disc: Point, side: float
) -> tuple[Plane, Plane]:
    """Masks of the arteries and of the veins: four arcades each that leave the disc."""
    masks = []
    for width in (0.009, 0.013):
        pen = sheet.pen()
        for up in (-1.0, 1.0):
            # Temporal arcades bend around the macula, nasal ones run straight away from it.
            start = math.atan2(up, -side * between(own, 0.1, 0.5))
            _vessel(pen, own, disc, start, side * up * between(own, 1.7, 2.6), width, 0)
            start = math.atan2(up, side * between(own, 0.5, 1.1))
            _vessel(pen, own, disc, start, between(own, -0.8, 0.8), width * 0.8, 0)
        masks.append(pen.mask())
    return masks[0], masks[1]


def _vessel(
    pen: Pen,
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
        heading += bend * step + between(random, -0.16, 0.16)
        x, y = points[-1]
        points.append((x + step * math.cos(heading), y + step * math.sin(heading)))
        pen.line(points[-2:], width)
        width *= 0.955
        if depth < 2 and number > 1 and random.random() < 0.22:
            turn = heading + (1 if random.random() < 0.5 else -1) * between(random, 0.4, 0.9)
            _vessel(pen, random, points[-1], turn, between(random, -1, 1), width * 0.6, depth + 1)
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
    sheet: Sheet,
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
    turn, r = between(random, 0, 2 * math.pi), 0.46 * math.sqrt(between(random, 0.01, 1))
    return r * math.cos(turn), r * math.sin(turn)


def _near(random: np.random.Generator, centre: Point, reach: float) -> Point:
    dx, dy = between(random, -reach, reach), between(random, -reach, reach)
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
    sheet: Sheet,
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
        r = between(random, *radius)
        pen.disc(x, y, r, r * between(random, 0.7, 1.2))
    mix(rgb, pen.mask() * (clearest * between(random, 0.35, 1)), colour)


def _blots(sheet: Sheet, rgb: NDArray[np.float32], random: np.random.Generator, count: int) -> None:
    """Blot haemorrhages: ragged dark red spots of several sizes."""
    pen = sheet.pen()
    for _ in range(count):
        centre, big = _somewhere(random), between(random, 0.5, 1.1)
        for _ in range(4):
            x, y = _near(random, centre, 0.013 * big)
            r = between(random, 0.006, 0.014) * big
            pen.disc(x, y, r, r * between(random, 0.5, 1))
    absorb(rgb, pen.mask() * between(random, 0.45, 0.95), (0.55, 0.28, 0.3))


def _fluffy_spots(
    sheet: Sheet, rgb: NDArray[np.float32], random: np.random.Generator, count: int
) -> None:
    """Cotton-wool spots: pale, feathery patches."""
    for _ in range(count):
        x, y = _somewhere(random)
        r = between(random, 0.02, 0.04)
        spot = sheet.spot(x, y, r, r * 0.7, between(random, 0, math.pi))
        spot = spot + sheet.noise(random, 40) * 0.3
        mask = ramp(spot, 1.2, 0.0) * between(random, 0.3, 0.65)
        mix(rgb, mask, (0.95, 0.85, 0.68))


def _new_vessels(
    sheet: Sheet, rgb: NDArray[np.float32], random: np.random.Generator, count: int, disc: Point
) -> None:
    """Neovascular tufts: tangles of fine loops on the disc or elsewhere."""
    pen = sheet.pen()
    for number in range(count):
        centre = disc if number == 0 and random.random() < 0.5 else _somewhere(random)
        for _ in range(int(between(random, 10, 20))):
            start = _near(random, centre, 0.045)
            bend, end = _near(random, start, 0.07), _near(random, start, 0.045)
            pen.line(curve(start, bend, end, 6), 0.004)
    absorb(rgb, pen.mask() * between(random, 0.4, 0.85), (0.78, 0.3, 0.3))


def _preretinal_haemorrhage(
    sheet: Sheet, rgb: NDArray[np.float32], random: np.random.Generator
) -> None:
    """A boat of blood: flat above, round below."""
    x, y = between(random, -0.25, 0.25), between(random, 0.05, 0.3)
    wide = between(random, 0.04, 0.1)
    ragged = sheet.spot(x, y, wide, wide * 0.7) + sheet.noise(random, 25) * 0.25
    mask = ramp(ragged, 1.2, 0.8) * ramp(sheet.y, y - 0.006, y + 0.006)
    absorb(rgb, mask * between(random, 0.6, 0.9), (0.5, 0.18, 0.2))


def _flash(sheet: Sheet, rgb: NDArray[np.float32], random: np.random.Generator) -> Image.Image:
    """Uneven flash, the round aperture, colour cast and sensor noise."""
    off = (between(random, -0.2, 0.2), between(random, -0.2, 0.2))
    far = sheet.spot(off[0], off[1], 1.0, 1.0)
    light = between(random, 0.8, 1.2) * (1 - far * between(random, 0.7, 1.5))
    radius = between(random, 0.49, 0.56)
    aperture = ramp(sheet.spot(0, 0, radius, radius), 1.01, 0.98)
    cast = [between(random, 0.9, 1.1) for _ in rgb]
    for channel, gain in zip(rgb, cast, strict=True):
        channel *= light * gain
        channel += sheet.grain(random) * 0.012
        channel *= aperture
        channel += 0.015
    return to_image(rgb)
