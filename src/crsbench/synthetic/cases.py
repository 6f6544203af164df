"""Who is in a picture: group, labels and subgroups, without a pixel drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np


@dataclass(frozen=True)
class PhantomKind:
    """What one kind of phantom offers: its classes, hospitals and subgroup columns."""

    name: str
    task: str  # "multiclass" or "multilabel"
    classes: tuple[str, ...]
    sites: tuple[str, ...]
    subgroups: tuple[str, ...]


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


def pick(random: np.random.Generator, shares: Mapping[str, float]) -> str:
    """One key, drawn with probability proportional to its share."""
    left = random.random() * sum(shares.values())
    for key, share in shares.items():
        left -= share
        if left < 0:
            return key
    return key  # rounding left nothing to subtract


_SEX = {"female": 0.5, "male": 0.5}
_AGE = {"under 40": 0.25, "40-64": 0.4, "65 and over": 0.35}

SKIN_SHARES = {"NV": 36, "MEL": 16, "BCC": 13, "BKL": 11, "AK": 7, "SCC": 6, "VASC": 6, "DF": 5}


def _describe_skin(site: str, index: int) -> Case:
    first = _opener("skin", site, index, block=4, opens=0.7)
    group = f"skin-{site}-lesion-{first:05d}"
    random = _random("skin", site, group)
    label = _deal("skin", site, first, SKIN_SHARES)
    subgroups = {
        "sex": pick(random, _SEX),
        "age": pick(random, _AGE),
        "skin_tone": pick(random, {"light": 0.55, "medium": 0.3, "dark": 0.15}),
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
    age = pick(patient, _AGE)
    first_eye = pick(patient, {"left": 0.5, "right": 0.5})
    image_id = _image_id("fundus", site, index)
    eye = first_eye
    if index != first:
        eye = {"left": "right", "right": "left"}[first_eye]
        step = int(pick(_random("fundus", site, image_id), {"0": 0.7, "-1": 0.15, "1": 0.15}))
        grade = min(max(grade + step, 0), 4)
    label = (str(grade),)
    return Case("fundus", site, image_id, group, label, label, {"eye": eye, "age": age})


_NO_FINDING = "No Finding"
DEVICES = "Support Devices"
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
    sex, age = pick(patient, _SEX), pick(patient, _AGE)
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
        signs.add(DEVICES)
    reported = set()
    for name in (*_CHEST_SHARES, DEVICES):
        error = random.random() < (_MISSED if name in signs else _OVERCALLED)[site]
        if error != (name in signs):
            reported.add(name)
    subgroups = {"sex": sex, "age": age, "view": view}
    return Case(
        "chest", site, image_id, group, _chest_labels(reported), _chest_labels(signs), subgroups
    )


def _chest_labels(findings: set[str]) -> tuple[str, ...]:
    """Labels in the order of the classes; No Finding where nothing but a device is seen."""
    named = findings if findings - {DEVICES} else findings | {_NO_FINDING}
    return tuple(name for name in KINDS["chest"].classes if name in named)


_DESCRIBERS: Mapping[str, Callable[[str, int], Case]] = {
    "skin": _describe_skin,
    "fundus": _describe_fundus,
    "chest": _describe_chest,
}
