"""Degradations that are true to a modality: what physics says, in three severities, repeatable."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from PIL import Image

from crsbench.images.modality import MODALITY_TRUE, collimation, motion_blur
from crsbench.images.perturbations import perturb

LEVELS = {
    "sensor_noise": [0.03, 0.06, 0.12],
    "motion_blur": [8, 16, 32],
    "illumination": [0.3, 0.5, 0.7],
    "vignetting": [0.3, 0.5, 0.7],
    "quantum_noise": [4000, 1000, 250],
    "exposure": [0.08, 0.16, 0.32],
    "collimation": [0.9, 0.8, 0.65],
}
FLAT = [0, 40, 128, 220, 255]


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    """A smooth scene with edges and texture, 160 × 128."""
    y, x = np.mgrid[0:128, 0:160].astype(float)
    random = np.random.default_rng(0)
    base = 110 + 60 * np.sin(x / 17) * np.cos(y / 23) + 40 * (np.hypot(x - 80, y - 60) < 35)
    colour = np.stack([base + 20, base, base - 25], axis=-1) + random.normal(0, 6, (128, 160, 3))
    return Image.fromarray(colour.clip(0, 255).astype(np.uint8))


def flat(value: int, mode: str = "L") -> Image.Image:
    return Image.new(mode, (200, 200), value if mode == "L" else (value,) * 3)


def seen(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=float)


def random() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("kind", MODALITY_TRUE)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_severity_grows_and_size_and_mode_stay(kind: str, mode: str, picture: Image.Image) -> None:
    image = picture.convert(mode)
    before = image.tobytes()
    errors = []
    for severity in (1, 2, 3):
        each = [perturb(image, f"{kind}-{severity}", f"i{k}", LEVELS) for k in range(6)]
        assert all((one.size, one.mode) == (image.size, mode) for one in each)
        errors.append(np.mean([np.abs(seen(one) - seen(image)).mean() for one in each]))
    assert 0.5 < errors[0] < errors[1] < errors[2]
    assert image.tobytes() == before


@pytest.mark.parametrize("kind", MODALITY_TRUE)
def test_randomness_is_that_of_the_image_alone(kind: str, picture: Image.Image) -> None:
    one = perturb(picture, f"{kind}-2", "i1", LEVELS).tobytes()
    assert perturb(picture, f"{kind}-2", "i1", LEVELS).tobytes() == one
    other = perturb(picture, f"{kind}-2", "i2", LEVELS).tobytes()
    fixed = kind in ("vignetting", "exposure")
    assert (other == one) == fixed


@pytest.mark.parametrize("kind", MODALITY_TRUE)
def test_a_grey_image_stays_grey_and_is_the_same_in_either_mode(
    kind: str, picture: Image.Image
) -> None:
    grey = picture.convert("L")
    alone = seen(perturb(grey, f"{kind}-2", "i", LEVELS))
    three = seen(perturb(grey.convert("RGB"), f"{kind}-2", "i", LEVELS))
    assert (three == alone[..., None]).all()


def linear(value: np.ndarray) -> np.ndarray:
    value = value / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("value", [60, 128, 200])
def test_sensor_noise_has_the_variance_of_photons_and_reading(value: int) -> None:
    sigma = 0.05
    noisy = linear(seen(MODALITY_TRUE["sensor_noise"](flat(value), sigma, random())))
    signal = float(linear(np.array(value)))
    assert noisy.mean() == pytest.approx(signal, abs=0.002)
    wanted = sigma**2 * signal + (sigma / 4) ** 2
    assert noisy.var() == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("value", [30, 128, 200])
def test_quantum_noise_is_that_of_the_quanta_that_pass(value: int) -> None:
    noisy = seen(MODALITY_TRUE["quantum_noise"](flat(value), 4000, random()))
    quanta = 4000 / 100 ** (value / 255)
    wanted = 255 / (2 * math.log(10)) / math.sqrt(quanta)
    assert noisy.std() == pytest.approx(wanted, rel=0.05)
    assert noisy.mean() == pytest.approx(value, abs=0.2)


@pytest.mark.parametrize("value", FLAT)
def test_what_has_no_structure_cannot_blur_and_ends_are_kept(value: int) -> None:
    assert (seen(motion_blur(flat(value), 20, random())) == value).all()
    for kind, level in (("sensor_noise", 1e-6), ("illumination", 1e-9), ("vignetting", 1e-9)):
        assert (seen(MODALITY_TRUE[kind](flat(value), level, random())) == value).all()


def test_motion_blur_is_the_mean_along_a_line_of_its_length() -> None:
    points = np.zeros((512, 512), np.uint8)
    points[256, 256] = 255
    blurred = seen(motion_blur(Image.fromarray(points), 40, random()))
    y, x = np.nonzero(blurred)
    length = math.hypot(float(np.ptp(x)), float(np.ptp(y)))
    assert length == pytest.approx(40, abs=1.5)
    assert blurred.sum() == pytest.approx(255, rel=0.1)
    across = np.linalg.svd(np.stack([x - x.mean(), y - y.mean()]))[1]
    assert across[1] < 0.1 * across[0]  # a line
    half = Image.fromarray(np.repeat(np.repeat(points, 1, 0), 1, 1)).resize((256, 256))
    assert np.ptp(np.nonzero(seen(motion_blur(half, 40, random())))[0]) <= 22  # scaled with size


def test_light_falls_off_by_the_strength_in_linear_light() -> None:
    light = linear(seen(MODALITY_TRUE["vignetting"](flat(200), 0.6, random())))
    full = float(linear(np.array(200)))
    assert light[100, 100] == pytest.approx(full, abs=0.01)
    assert light[0, 0] == pytest.approx(0.4 * full, abs=0.01)
    assert light[0, 100] == pytest.approx(0.7 * full, abs=0.01)  # half the squared distance
    light = linear(seen(MODALITY_TRUE["illumination"](flat(200), 0.6, random())))
    assert light.max() == pytest.approx(full, abs=0.01)
    assert light.min() == pytest.approx(0.4 * full, abs=0.01)


def test_overexposure_saturates_at_black() -> None:
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8)[None].repeat(16, 0))
    darker = seen(MODALITY_TRUE["exposure"](ramp, 0.2, random()))[0]
    assert darker.tolist() == [max(0, value - 51) for value in range(256)]


def test_a_collimator_lets_a_rectangle_through(picture: Image.Image) -> None:
    found = seen(collimation(picture, 0.5, random()))
    inside = found.any(axis=2)
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    assert (np.ptp(rows) + 1, np.ptp(columns) + 1) == (64, 80)
    box = np.ix_(rows, columns)
    assert (found[box] == seen(picture)[box]).all()


def test_the_pixels_are_what_they_were(picture: Image.Image) -> None:
    """Exact arithmetic: pinned, so that a change of a library does not pass unseen."""
    digests = {
        kind: hashlib.sha256(perturb(picture, f"{kind}-2", "i", LEVELS).tobytes()).hexdigest()[:12]
        for kind in ("motion_blur", "exposure", "collimation")
    }
    assert digests == PINNED


PINNED = {
    "motion_blur": "f11f193e16f4",
    "exposure": "5f4e570b692a",
    "collimation": "3b23eb1e0954",
}
