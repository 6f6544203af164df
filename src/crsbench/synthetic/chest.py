"""Chest: frontal radiographs (white is dense)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image

from crsbench.synthetic.cases import DEVICES, Case
from crsbench.synthetic.painting import (
    Pen,
    Plane,
    Point,
    Sheet,
    between,
    curve,
    ramp,
    to_image,
    twig,
    wave,
)


class _Thorax:
    """One patient's chest on a sheet: where lungs, heart and diaphragm are, and its picture.

    Coordinates are the patient's own: the spine is x = 0, the picture's left (the patient's right)
    is negative. ``film`` is the growing picture, in [0, 1] before the exposure.
    """

    def __init__(self, sheet: Sheet, case: Case) -> None:
        own, pose = case.group_random(), case.image_random()
        self.sheet, self.own, self.pose = sheet, own, pose
        self.signs = frozenset(case.signs)
        self.from_front = case.subgroups["view"] == "AP"
        self.female = case.subgroups["sex"] == "female"
        self.old = case.subgroups["age"] == "65 and over"
        self.shift = (between(pose, -0.03, 0.03), between(pose, -0.02, 0.03))
        self.x = sheet.x - self.shift[0]
        self.y = sheet.y - self.shift[1]
        self.wide = between(own, 0.37, 0.41) * (0.96 if self.female else 1.0)
        self.top = -between(own, 0.36, 0.41) + (0.03 if self.from_front else 0.0)
        self.base = between(own, 0.27, 0.32) - (0.04 if self.from_front else 0.0)
        self.weak_side = -1 if pose.random() < 0.5 else 1  # where one-sided findings go
        self.cage = self._cage()
        self.heart, self.middle, self.dome = self._heart(), self._mediastinum(), self._diaphragm()
        below_wall = ramp(self.y - self.dome, 0.012, -0.012)
        self.lung = ramp(self.cage, 1.02, 0.94) * below_wall
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
        y = between(self.pose, low, high)
        inner = 0.14 if side < 0 else 0.17
        return side * between(self.pose, inner, self.half_width(y) - 0.05), y, side

    def _cage(self) -> Plane:
        """Distance from each lung's axis: 1 on the chest wall, an arch above, upright below."""
        across = (np.abs(self.x) - 0.18) / (self.wide - 0.18)
        up = np.maximum((0.08 - self.y) / (0.08 - self.top), 0)
        return np.sqrt(across * across + up * up)

    def _heart(self) -> Plane:
        size = between(self.own, 0.12, 0.145) * (1.1 if self.from_front else 1.0)
        if "Cardiomegaly" in self.signs:
            size *= between(self.pose, 1.15, 1.45)
        ventricle = self.spot(
            0.055 + (size - 0.13) * 0.4, self.base - 0.09, size, size * 0.78, 0.55
        )
        atrium = self.spot(-0.03, self.base - 0.1, size * 0.58, size * 0.85)
        return ramp(np.minimum(ventricle, atrium), 1.15, 0.85)

    def _mediastinum(self) -> Plane:
        half = between(self.own, 0.045, 0.06) * (1.1 if self.from_front else 1.0)
        if "Enlarged Cardiomediastinum" in self.signs:
            half *= between(self.pose, 1.2, 1.7)
        knob = ramp(self.spot(half * 0.9, -0.14, 0.036, 0.05), 1.2, 0.7)
        edge = np.abs(self.x) - half - self.y * 0.05
        edge = edge + self.sheet.noise(self.own, 5) * 0.012
        return np.maximum(ramp(edge, 0.015, -0.015), knob)

    def _diaphragm(self) -> Plane:
        """Height of the diaphragm at each x; the right dome (left in the picture) is higher."""
        domes = []
        for side, lift in ((-1, 0.025), (1, 0.0)):
            if "Atelectasis" in self.signs and side == self.weak_side:
                lift += between(self.pose, 0.03, 0.07)  # the lost volume draws the dome up
            across = (self.x - side * 0.19) / 0.2
            domes.append((self.base - lift) + across * across * 0.08)
        return np.where(self.x < 0, domes[0], domes[1])

    def _film(self) -> Plane:
        """Soft tissue, spine and organs, without lung markings, bones or findings."""
        off = np.abs(self.x)
        slope = -0.42 + np.maximum(off - 0.13, 0) * 0.5
        body = ramp(self.y - slope, -0.03, 0.04) * ramp(off, 0.56, 0.47)
        body = np.maximum(body, ramp(off, 0.17, 0.12))
        film = 0.03 + body * 0.42
        under = ramp(self.y - self.dome, -0.012, 0.012)
        film = film + under * body * 0.17
        # A stomach bubble may sit under the left dome (right in the picture).
        bubble = ramp(self.spot(0.17, self.base + 0.09, 0.07, 0.045), 1.1, 0.3) * under
        film = film - bubble * between(self.own, 0.0, 0.12)
        film = film - self.air * between(self.own, 0.24, 0.3)
        film = film + np.maximum(self.heart * 0.15, self.middle * 0.12) * self.lung
        vertebrae = 1 + wave(self.y * 13) * 0.35
        film = film + ramp(off, 0.042, 0.028) * vertebrae * 0.07
        trachea = ramp(off, 0.026, 0.012) * ramp(self.y, -0.13, -0.2)
        film = film - trachea * 0.11
        for side in (-1, 1):
            film = film + ramp(self.spot(side * 0.08, -0.01, 0.06, 0.09), 1.2, 0.0) * 0.06
            if self.female:
                breast = ramp(self.spot(side * 0.22, 0.17, 0.16, 0.14), 1.05, 0.75)
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
            pen.line(curve(inner, self.place(side * 0.2, low), outer), 0.026)
        self.add(pen.mask(), 0.1 if self.old else 0.13)
        self.add(callus.mask(), 0.18)

    def _rib(self, pen: Pen, callus: Pen, side: int, number: int, broken: bool) -> None:
        """One rib, its back part distinct; a broken one is displaced, with bright callus ends."""
        top = self.top + 0.03 + number * 0.068
        reach = self.half_width(top + 0.06) + 0.005
        back = curve(
            self.place(side * 0.03, top + 0.01),
            self.place(side * reach * 0.7, top - 0.035),
            self.place(side * reach, top + 0.09),
            16,
        )
        front = curve(
            self.place(side * reach, top + 0.09),
            self.place(side * reach * 0.85, top + 0.19),
            self.place(side * 0.13, top + 0.21),
        )
        pen.line(front, 0.018, 0.3)
        if not broken:
            pen.line(back, 0.022, 0.75)
            return
        cut = 8 + int(self.pose.random() * 4)
        drop = between(self.pose, 0.02, 0.035)
        outer = [(x, y + drop) for x, y in back[cut:]]
        pen.line(back[:cut], 0.022, 0.75)
        pen.line(outer, 0.022, 0.75)
        for x, y in (back[cut - 1], outer[0]):
            callus.disc(x, y, 0.016, 0.016)

    def lung_vessels(self) -> None:
        """Branching markings from each hilum, stouter in oedema."""
        pen = self.sheet.pen()
        stout = between(self.pose, 1.0, 1.5) if "Edema" in self.signs else 1.0
        for side in (-1, 1):
            hilum = self.place(side * 0.07, between(self.own, -0.03, 0.01))
            for number in range(6):
                heading = (-1.15 + number * 0.45) + between(self.own, -0.2, 0.2)
                if side < 0:
                    heading = math.pi - heading
                twig(pen, self.own, hilum, heading, 0.014 * stout, 0.1, depth=4)
        self.add(pen.mask() * self.air, 0.1 * stout)


def paint_chest(case: Case, size: int) -> Image.Image:
    sheet = Sheet(size, size)
    thorax = _Thorax(sheet, case)
    thorax.lung_vessels()
    for name, paint in _CHEST_SIGNS.items():
        if name in thorax.signs:
            paint(thorax)
    thorax.bones()
    if DEVICES in thorax.signs:
        _devices(thorax)
    return _expose(thorax, case.site)


def _lung_opacity(thorax: _Thorax) -> None:
    """Ground-glass haze over part of a lung."""
    pose = thorax.pose
    x, y, _ = thorax.in_lung(-0.2, 0.15)
    haze = thorax.spot(x, y, between(pose, 0.1, 0.16), between(pose, 0.12, 0.2))
    haze = haze + thorax.sheet.noise(pose, 10) * 0.5
    thorax.add(ramp(haze, 1.4, 0.1) * thorax.air, between(pose, 0.1, 0.2))


def _lung_lesion(thorax: _Thorax) -> None:
    """One to four round, sharply bounded nodules."""
    for _ in range(1 + int(thorax.pose.random() * 4)):
        x, y, _side = thorax.in_lung(-0.22, 0.15)
        r = between(thorax.pose, 0.025, 0.05)
        thorax.add(ramp(thorax.spot(x, y, r, r), 1.1, 0.7) * thorax.air, 0.22)


def _edema(thorax: _Thorax) -> None:
    """Bat-wing haze around both hila and short horizontal septal lines at the bases."""
    pose = thorax.pose
    amount = between(pose, 0.04, 0.12)
    pen = thorax.sheet.pen()
    for side in (-1, 1):
        wing = thorax.spot(side * 0.13, 0.02, 0.14, 0.2)
        wing = wing + thorax.sheet.noise(pose, 14) * 0.4
        thorax.add(ramp(wing, 1.5, 0.0) * thorax.air, amount)
        for number in range(6):
            x, y = side * (thorax.wide - 0.02), 0.05 + number * 0.025
            pen.line([thorax.place(x, y), thorax.place(x - side * 0.05, y + 0.004)], 0.005)
    thorax.add(pen.mask() * thorax.air, 0.12)


def _consolidation(thorax: _Thorax) -> None:
    """A dense lobe with dark air bronchograms."""
    pose = thorax.pose
    x, y, side = thorax.in_lung(-0.15, 0.15)
    lobe = thorax.spot(x, y, between(pose, 0.08, 0.12), between(pose, 0.07, 0.11), pose.random())
    lobe = lobe + thorax.sheet.noise(pose, 12) * 0.35
    mask = ramp(lobe, 1.25, 0.6) * thorax.air
    thorax.add(mask, between(pose, 0.2, 0.27))
    pen = thorax.sheet.pen()
    heading = 0.0 if side > 0 else math.pi
    twig(pen, pose, thorax.place(x - side * 0.07, y), heading, 0.014, 0.09, depth=3)
    thorax.add(pen.mask() * mask, -0.12)


def _pneumonia(thorax: _Thorax) -> None:
    """Several fluffy, ill-defined patches in one lower zone."""
    pose = thorax.pose
    x0, y0, _ = thorax.in_lung(0.0, 0.12)
    for _ in range(int(between(pose, 6, 12))):
        x, y = x0 + between(pose, -0.09, 0.09), y0 + between(pose, -0.1, 0.1)
        r = between(pose, 0.025, 0.045)
        thorax.add(ramp(thorax.spot(x, y, r, r), 1.4, 0.0) * thorax.air, 0.16)


def _atelectasis(thorax: _Thorax) -> None:
    """Plate-like bands above the raised dome."""
    pose, side = thorax.pose, thorax.weak_side
    pen = thorax.sheet.pen()
    for number in range(2 + int(pose.random() * 2)):
        y = thorax.base - 0.11 - number * 0.035
        tilt = between(pose, -0.03, 0.03)
        start, end = thorax.place(side * 0.14, y), thorax.place(side * 0.32, y + tilt)
        pen.line([start, end], between(pose, 0.008, 0.016))
    thorax.add(pen.mask() * thorax.air, 0.2)


def _pneumothorax(thorax: _Thorax) -> None:
    """A black, markless crescent beyond a thin white pleural line."""
    pose, side = thorax.pose, thorax.weak_side
    gap = between(pose, 0.12, 0.4)
    # The collapsed lung leaves the wall: most at the apex, not at all near the base.
    rim = thorax.cage + ramp(thorax.y, 0.22, -0.25) * gap
    here = (thorax.x * side > 0) * ramp(thorax.y, 0.24, 0.1) * thorax.air
    outside = ramp(rim, 0.97, 0.99) * here
    thorax.film += outside * (0.12 - thorax.film)
    thorax.add(ramp(np.abs(rim - 0.96), 0.03, 0.01) * here, 0.16)


def _pleural_effusion(thorax: _Thorax) -> None:
    """A white base with a meniscus that climbs the chest wall."""
    pose = thorax.pose
    sides = (-1, 1) if pose.random() < 0.35 else (thorax.weak_side,)
    for side in sides:
        level = thorax.base - between(pose, -0.06, 0.08)
        out = np.clip(thorax.x * (side / thorax.wide), 0, 1)
        surface = level + 0.05 - out * out * out * 0.17
        mask = ramp(thorax.y - surface, -0.015, 0.02) * ramp(out, 0.12, 0.3) * thorax.air
        thorax.add(mask, between(pose, 0.22, 0.36))


def _pleural_other(thorax: _Thorax) -> None:
    """Thickened pleura: a white rind along the wall, with calcified plaques."""
    pose, side = thorax.pose, thorax.weak_side
    ragged = thorax.cage + thorax.sheet.noise(pose, 14) * 0.06
    here = (thorax.x * side > 0.15) * ramp(thorax.y, -0.24, -0.12) * thorax.air
    thorax.add(ramp(ragged, 0.76, 0.86) * here, between(pose, 0.14, 0.2))
    pen = thorax.sheet.pen()
    for _ in range(int(between(pose, 3, 8))):
        y = between(pose, -0.1, 0.2)
        place = thorax.place(side * (thorax.half_width(y) - 0.035), y)
        pen.disc(*place, between(pose, 0.006, 0.014), between(pose, 0.01, 0.022))
    thorax.add(pen.mask() * thorax.air, 0.2)


def _devices(thorax: _Thorax) -> None:
    """One or more of: central line, tracheal tube, pacemaker with its lead, monitor leads."""
    pose = thorax.pose
    pen = thorax.sheet.pen()
    side = thorax.weak_side
    line, tube, pacemaker, leads = pose.random(4) < (0.6, 0.35, 0.25, 0.4)
    if line or not (tube or pacemaker or leads):
        start, bend = thorax.place(side * 0.25, -0.34), thorax.place(side * 0.01, -0.3)
        pen.line(curve(start, bend, thorax.place(-0.035, 0.04)), 0.008, 0.8)
    if tube:
        pen.line([thorax.place(0.0, -0.5), thorax.place(0.004, -0.15)], 0.012, 0.8)
    if pacemaker:
        box = thorax.place(-side * 0.27, -0.2)
        pen.disc(*box, 0.045, 0.035)
        pen.line(curve(box, thorax.place(0.0, -0.25), thorax.place(0.06, 0.2)), 0.007)
    if leads:
        for half in (-1, 1):
            x, y = half * between(pose, 0.18, 0.3), between(pose, -0.15, 0.1)
            pen.disc(*thorax.place(x, y), 0.014, 0.014)
            bend, end = thorax.place(x * 1.3, 0.3), thorax.place(x * 0.7, 0.5)
            pen.line(curve(thorax.place(x, y), bend, end), 0.005)
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
    """Exposure, scatter noise; at the other hospital another contrast curve and collimator."""
    sheet, pose = thorax.sheet, thorax.pose
    contrast, middle = between(pose, 0.95, 1.25), between(pose, 0.42, 0.52)
    noise, window = between(pose, 0.015, 0.03), None
    if site == "foreign":
        contrast, middle, noise = contrast * between(pose, 0.6, 0.8), middle + 0.06, noise * 1.1
        left, right, top, bottom = (between(pose, 0.42, 0.5) for _ in range(4))
        window = (sheet.x > -left) & (sheet.x < right) & (sheet.y > -top) & (sheet.y < bottom)
    film = (thorax.film - 0.4) * contrast + middle + sheet.grain(pose) * noise
    if window is not None:
        film = np.where(window, film, 0.02)
    return to_image(film)
