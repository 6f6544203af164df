"""Resizing in integers against Pillow's own, byte for byte; what is compiled; memory that stays."""

import random
import subprocess
import sys

import numba.core.caching
import numpy as np
import pytest
from PIL import Image

from crsbench.images.filtering import FILTERS, channels_of, compiled, image_of, pixels_of, resized


def noise_image(mode: str, width: int, height: int, seed: int) -> Image.Image:
    """Noise, or noise of black and white alone, where weights overshoot both ends."""
    shape = (height, width) if mode == "L" else (height, width, 3)
    values = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(values if seed % 3 else np.where(values > 127, 255, 0).astype(np.uint8))


def part_of(width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
    left, top = rng.randrange(width), rng.randrange(height)
    return left, top, rng.randint(left + 1, width), rng.randint(top + 1, height)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("name", FILTERS)
def test_resize_gives_the_bytes_of_pillow(name: str, mode: str) -> None:
    rng = random.Random(f"{name} {mode}")
    sides = [1, 2, 3, 7, 64, 100, 257, 600]
    for seed in range(80):
        image = noise_image(mode, rng.choice(sides), rng.choice(sides), seed)
        size = rng.randint(1, 300), rng.randint(1, 300)
        box = part_of(*image.size, rng) if rng.random() < 0.5 else None
        window = part_of(*size, rng) if rng.random() < 0.5 else None
        wanted = image.resize(size, Image.Resampling[name.upper()], box=box)
        wanted = wanted.crop(window) if window else wanted
        found = image_of(resized(pixels_of(image), size, name, box=box, window=window))
        assert (found.mode, found.size) == (mode, wanted.size)
        assert found.tobytes() == wanted.tobytes(), (image.size, size, box, window)


@pytest.mark.parametrize("size", [(20, 61), (20, 60), (20, 59), (26, 30), (40, 30), (19, 100)])
def test_the_axis_that_goes_first_is_pillow_s(size: tuple[int, int]) -> None:
    """A tall image at both sides of the bound: 20 pixels less across, 40 less down."""
    image = noise_image("L", 40, 100, 1)
    found = image_of(resized(pixels_of(image), size, "bicubic"))
    assert found.tobytes() == image.resize(size, Image.Resampling.BICUBIC).tobytes()


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_pixels_come_back_as_they_were(mode: str) -> None:
    image = noise_image(mode, 31, 17, 1)
    assert image_of(pixels_of(image)).tobytes() == image.tobytes()
    assert (channels_of(pixels_of(image)) == np.asarray(image)).all()
    turned = image_of(pixels_of(image).T)
    assert (np.asarray(turned) == np.asarray(image).swapaxes(0, 1)).all()


def test_compiles_without_a_folder_to_keep_the_code_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])

    def doubled(value: int) -> int:
        return 2 * value

    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(doubled)
    assert compiled(doubled)(21) == 42


RESIDENT = """
import ctypes, gc, sys
import numpy as np
from crsbench.core.memory import keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

if sys.argv[1] == "keep":
    keep_freed_memory()
before = resident()
values = np.ones(2**23)
del values
gc.collect()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is tuned")
@pytest.mark.parametrize(("how", "kept"), [("keep", True), ("not", False)])
def test_freed_memory_stays_with_the_process(how: str, kept: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", RESIDENT, how], check=True, capture_output=True, text=True
    )
    assert (float(ended.stdout) > 60) == kept  # of 64 MB
