"""The canonical image is what the protocol says, and each perturbation does what its name says."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image, ImageCms
from scipy.ndimage import correlate1d, gaussian_filter
from scipy.stats import norm, rice

from crsbench.core.errors import UserError
from crsbench.images.canonical import read_canonical, resize_short_side
from crsbench.images.decoding import to_rgb
from crsbench.images.perturbations import (
    PERTURBATIONS,
    VALUES_AT_ONCE,
    gaussian_weights,
    normal_quantiles,
    perturb,
)

LIMIT = 10_000_000


@pytest.fixture(scope="module")
def levels(home: Path) -> dict[str, list[float]]:
    return yaml.safe_load((home / "config/config.yaml").read_text("utf-8"))["perturbations"]


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    """A smooth scene with edges and texture, 160 × 128."""
    y, x = np.mgrid[0:128, 0:160].astype(float)
    random = np.random.default_rng(0)
    base = 110 + 60 * np.sin(x / 17) * np.cos(y / 23) + 40 * (np.hypot(x - 80, y - 60) < 35)
    colour = np.stack([base + 20, base, base - 25], axis=-1) + random.normal(0, 6, (128, 160, 3))
    return Image.fromarray(colour.clip(0, 255).astype(np.uint8))


def saved(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


def error_to(clean: Image.Image, other: Image.Image) -> float:
    """Mean absolute pixel error."""
    return float(np.abs(np.asarray(clean, float) - np.asarray(other, float)).mean())


# --- decoding -----------------------------------------------------------------------------------


def test_the_short_side_is_resized_and_the_aspect_kept(tmp_path: Path) -> None:
    for size, wanted in (((300, 200), (96, 64)), ((200, 300), (64, 96)), ((32, 32), (64, 64))):
        file = saved(Image.new("RGB", size), tmp_path / "i.png")
        assert read_canonical(file, 64, LIMIT).size == wanted


def test_an_image_of_the_right_size_is_not_resampled(picture: Image.Image) -> None:
    assert resize_short_side(picture, 128) is picture


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :20] = 255  # left half white
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees clockwise: the left half comes to the top
    file = saved(Image.fromarray(pixels), tmp_path / "i.png", exif=exif)
    image = np.asarray(read_canonical(file, 20, LIMIT))
    assert image.shape == (40, 20)  # grey: all channels are the same
    assert (image[:20] == 255).all()
    assert (image[20:] == 0).all()


def test_16_bit_grey_is_scaled_over_its_full_range(tmp_path: Path) -> None:
    values = np.array([[0, 128, 257], [32768, 65535, 65279]], np.uint16)
    file = saved(Image.fromarray(values), tmp_path / "i.png")
    with Image.open(file) as image:
        grey = np.asarray(to_rgb(image))
    expected = np.round(values / 65535 * 255)
    assert (grey == expected[..., None]).all()


def test_transparency_lies_on_black_also_in_palettes(tmp_path: Path) -> None:
    pixels = np.full((16, 16, 4), 200, np.uint8)
    pixels[:8, :, 3] = 0
    pixels[8:, :, 3] = 255
    rgba = Image.fromarray(pixels)
    palette = Image.new("P", (16, 16), 1)
    palette.putpalette([0, 0, 0, 200, 200, 200])
    palette.paste(0, (0, 0, 16, 8))
    for file in (
        saved(rgba, tmp_path / "rgba.png"),
        saved(palette, tmp_path / "p.png", transparency=0),
        saved(rgba.convert("LA"), tmp_path / "la.png"),
    ):
        image = np.asarray(read_canonical(file, 16, LIMIT))
        assert (image[:8] == 0).all(), file
        assert (image[8:] == 200).all(), file


@pytest.mark.parametrize("mode", ["1", "L", "CMYK", "YCbCr", "HSV", "LAB", "RGBX"])
def test_other_modes_become_rgb(mode: str) -> None:
    if mode == "LAB":
        profile = ImageCms.createProfile("LAB")
        assert profile is not None
    image = Image.new(mode, (8, 8))
    assert to_rgb(image).mode == "RGB"


def test_cmyk_black_and_white_keep_their_meaning(tmp_path: Path) -> None:
    black_and_white = Image.new("CMYK", (32, 16), (0, 0, 0, 255))
    black_and_white.paste((0, 0, 0, 0), (16, 0, 32, 16))
    file = saved(black_and_white, tmp_path / "i.jpg", quality=95)
    image = np.asarray(read_canonical(file, 16, LIMIT)).astype(int)
    assert image[:, :14].max() < 10
    assert image[:, 18:].min() > 245


def test_damaged_and_oversized_images_are_reported_by_name(tmp_path: Path) -> None:
    whole = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(whole, "JPEG")
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    empty = tmp_path / "empty.png"
    empty.touch()
    text = tmp_path / "text.png"
    text.write_text("not an image")
    for file in (cut, empty, text, tmp_path / "gone.png"):
        with pytest.raises(UserError, match=f"The image .*{file.name} cannot be decoded"):
            read_canonical(file, 64, LIMIT)
    large = saved(Image.new("L", (101, 100)), tmp_path / "large.png")
    with pytest.raises(UserError, match=r"large.png has 101 × 100 pixels, more than .* 10000"):
        read_canonical(large, 64, 10_000)


# --- perturbations ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PERTURBATIONS)
def test_error_grows_with_severity(
    kind: str, picture: Image.Image, levels: dict[str, list[float]]
) -> None:
    names = [f"image{index}" for index in range(12)]
    errors = [
        np.mean(
            [error_to(picture, perturb(picture, f"{kind}-{s}", name, levels)) for name in names]
        )
        for s in (1, 2, 3)
    ]
    assert 0 < errors[0] < errors[1] < errors[2]


@pytest.mark.parametrize("kind", PERTURBATIONS)
def test_size_and_mode_are_kept(
    kind: str, picture: Image.Image, levels: dict[str, list[float]]
) -> None:
    for severity in (1, 2, 3):
        degraded = perturb(picture, f"{kind}-{severity}", "i", levels)
        assert (degraded.size, degraded.mode) == (picture.size, "RGB")


def test_randomness_comes_from_the_id_the_kind_and_the_severity_alone(
    picture: Image.Image, levels: dict[str, list[float]]
) -> None:
    def pixels(image_id: str, condition: str, severities: dict[str, list[float]]) -> bytes:
        return perturb(picture, condition, image_id, severities).tobytes()

    first = pixels("a", "rician_noise-2", levels)
    pixels("b", "rician_noise-2", levels)
    assert pixels("a", "rician_noise-2", levels) == first
    assert pixels("b", "rician_noise-2", levels) != first
    same_level = {**levels, "rician_noise": [0.08, 0.08, 0.08]}
    assert pixels("a", "rician_noise-1", same_level) != first


GOLDEN = {
    "contrast-2": "7c6bf7f1d873cd01",
    "fov_crop-2": "59c70530011c10ab",
    "gaussian_blur-1": "303356956f5c8b93",
    "gaussian_blur-2": "d60c9a3763b307fc",
    "gaussian_blur-3": "57b31bf3902ab5dd",
    "jpeg-2": "cb62d2c9144ae28f",
    "rician_noise-1": "543874bff2229907",
    "rician_noise-2": "238a8e17b9391e91",
}
GREY_GOLDEN = {
    "fov_crop-2": "8340978cef44de82",
    "gaussian_blur-2": "aa118cda79ec0074",
    "jpeg-2": "469e1b7067fc5a62",
    "rician_noise-2": "43e20391cbfd5895",
}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@pytest.mark.parametrize(("grey", "golden"), [(False, GOLDEN), (True, GREY_GOLDEN)])
def test_degraded_pixels_are_the_same_on_every_machine(
    grey: bool, golden: dict[str, str], levels: dict[str, list[float]]
) -> None:
    y, x = np.mgrid[0:512, 0:528]
    values = np.stack([(x * 3 + y) % 256, (x * y) % 256, (x + y * 2) % 256], -1).astype(np.uint8)
    image = Image.fromarray(values[..., 0] if grey else values)
    found = {
        condition: digest(perturb(image, condition, "golden", levels).tobytes())
        for condition in golden
    }
    assert found == golden
    assert digest(normal_quantiles().astype("<f4").tobytes()) == "1cfbba1e07e34386"


@pytest.mark.parametrize("kind", ["gaussian_blur", "jpeg", "contrast", "fov_crop"])
def test_a_grey_image_is_degraded_as_its_three_equal_channels_would_be(
    kind: str, picture: Image.Image, levels: dict[str, list[float]]
) -> None:
    grey = picture.convert("L")
    for severity in (1, 2, 3):
        one, three = (
            np.asarray(perturb(image, f"{kind}-{severity}", "i", levels))
            for image in (grey, grey.convert("RGB"))
        )
        assert (three == one[..., None]).all()


def test_equal_channels_make_a_grey_image_however_it_is_stored(
    picture: Image.Image, tmp_path: Path
) -> None:
    grey = picture.convert("L")
    found = [
        read_canonical(saved(image, tmp_path / f"{index}.png"), 100, LIMIT)
        for index, image in enumerate([grey, grey.convert("RGB"), grey.convert("LA")])
    ]
    assert {image.mode for image in found} == {"L"}
    assert len({image.tobytes() for image in found}) == 1
    touched = np.array(grey.convert("RGB"))
    touched[77, 3, 2] ^= 128
    file = saved(Image.fromarray(touched), tmp_path / "touched.png")
    assert read_canonical(file, 128, LIMIT).mode == "RGB"
    keyed = saved(grey, tmp_path / "keyed.png", transparency=int(np.asarray(grey)[0, 0]))
    assert np.asarray(read_canonical(keyed, 128, LIMIT))[0, 0] == 0  # what is transparent is black


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1, 1.7, 4, 6])
def test_blur_weights_are_the_integral_of_the_gaussian(sigma: float) -> None:
    weights = gaussian_weights(sigma).astype(int)
    cumulated = weights[0] / 2 + np.concatenate([[0], np.cumsum(weights[1:])])
    exact = 256 * (norm.cdf(np.arange(len(weights)) + 0.5, scale=sigma) - 0.5)
    assert weights[0] + 2 * weights[1:].sum() == 256
    assert np.abs(cumulated - exact).max() <= 0.5 + 1e-9
    if sigma >= 0.5:  # that of the Gaussian and of the pixel's own width
        variance = 2 * (weights * np.arange(len(weights)) ** 2).sum() / 256
        assert variance == pytest.approx(sigma**2 + 1 / 12, rel=0.05)


@pytest.mark.parametrize("shape", [(33, 1, 3), (1, 40, 3), (2, 2, 3), (65, 31), (40, 70, 3)])
def test_blur_is_the_plain_filter_with_those_weights_and_repeated_borders(
    shape: tuple[int, ...],
) -> None:
    """Against a direct convolution in floating point, rounded half up after each direction."""
    values = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    sigma = 2.3
    weights = gaussian_weights(sigma).astype(float)
    taps = np.concatenate([weights[:0:-1], weights]) / 256
    wanted = values.astype(float)
    for axis in (0, 1):
        wanted = np.floor(correlate1d(wanted, taps, axis, mode="nearest") + 0.5 + 1e-9)
    blurred = PERTURBATIONS["gaussian_blur"](
        Image.fromarray(values), sigma * 512 / min(shape[:2]), np.random.default_rng()
    )
    assert (np.asarray(blurred) == wanted).all()


def test_a_wide_blur_is_several_after_each_other() -> None:
    impulse = np.zeros((256, 256), np.uint8)
    impulse[128, 128:] = 255
    image = Image.fromarray(np.repeat(impulse[128:129], 256, axis=0))  # an edge
    blurred = PERTURBATIONS["gaussian_blur"](image, 40, np.random.default_rng())  # 20 px at 256
    wanted = 255 * norm.cdf((np.arange(256) - 127.5) / 20)
    assert np.abs(np.asarray(blurred, float)[128] - wanted).max() < 3


@pytest.mark.parametrize("sigma", [1, 2, 4])
def test_blur_is_a_gaussian_of_sigma_pixels_at_512(sigma: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (512, 640, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    blurred = PERTURBATIONS["gaussian_blur"](image, sigma, np.random.default_rng())
    reference = gaussian_filter(noise.astype(float), (sigma, sigma, 0), mode="nearest")
    # Filtering in 8 bit is within a grey level or so of the exact Gaussian, other widths are not.
    off = np.abs(np.asarray(blurred, float) - reference).mean()
    wrong = [gaussian_filter(noise.astype(float), (s, s, 0)) for s in (0.8 * sigma, 1.25 * sigma)]
    assert off < 1.5
    assert all(np.abs(np.asarray(blurred, float) - w).mean() > 1.2 * off for w in wrong)


def test_blur_scales_with_the_short_side() -> None:
    impulse = np.zeros((128, 128, 3), np.uint8)
    impulse[64, 64] = 255
    blurred = PERTURBATIONS["gaussian_blur"](Image.fromarray(impulse), 8, np.random.default_rng())
    reference = gaussian_filter(impulse.astype(float), (2, 2, 0))  # 8 px at 512 are 2 px at 128
    assert np.abs(np.asarray(blurred, float) - reference).max() < 2


def test_contrast_pulls_towards_the_mean_of_the_image(picture: Image.Image) -> None:
    values = np.asarray(picture, float)
    for factor in (0.7, 0.5, 0.3):
        reduced = PERTURBATIONS["contrast"](picture, factor, np.random.default_rng())
        wanted = values.mean() + factor * (values - values.mean())
        assert np.abs(np.asarray(reduced, float) - wanted).max() <= 0.5 + 1e-9


def test_rician_noise_has_the_moments_of_the_rice_distribution() -> None:
    sigma = 0.08
    scale = 255 * sigma
    for value in (0, 30, 128):
        image = Image.new("RGB", (512, 512), (value, value, value))
        noisy = np.asarray(
            PERTURBATIONS["rician_noise"](image, sigma, np.random.default_rng(1)), float
        )
        assert (noisy**2).mean() == pytest.approx(value**2 + 2 * scale**2, rel=0.01)
    black = np.asarray(
        PERTURBATIONS["rician_noise"](Image.new("RGB", (512, 512)), sigma, np.random.default_rng(1))
    )
    assert black.mean() == pytest.approx(scale * np.sqrt(np.pi / 2), rel=0.01)  # Rayleigh


def test_a_grey_image_stays_grey_and_a_colour_image_gets_noise_by_channel() -> None:
    noise = PERTURBATIONS["rician_noise"]
    grey = noise(Image.new("L", (64, 64), 90), 0.1, np.random.Generator(np.random.SFC64(0)))
    assert grey.mode == "L"
    image = Image.new("RGB", (64, 64), (90, 90, 91))
    colour = np.asarray(noise(image, 0.1, np.random.Generator(np.random.SFC64(0))), float)
    assert abs(np.corrcoef(colour[..., 0].ravel(), colour[..., 1].ravel())[0, 1]) < 0.1


def test_normal_quantiles_are_those_of_scipy() -> None:
    shares = (np.arange(65536) + 0.5) / 65536
    found = normal_quantiles()
    assert found == pytest.approx(norm.ppf(shares), rel=1e-6, abs=1e-9)
    assert (np.diff(found) > 0).all()
    assert found.dtype == np.float32


def test_noise_is_rice_distributed_and_white() -> None:
    """Grey levels against the exact distribution of the rounded, capped magnitude."""
    sigma, value = 0.12, 70
    image = Image.new("L", (600, 500), value)
    noisy = np.asarray(PERTURBATIONS["rician_noise"](image, sigma, np.random.default_rng(3)))
    scale = 255 * sigma
    edges = rice.cdf(np.arange(256) + 0.5, value / scale, scale=scale)
    edges[255] = 1  # what is brighter is white
    found = np.cumsum(np.bincount(noisy.ravel(), minlength=256)) / noisy.size
    assert np.abs(found - edges).max() < 1.63 / np.sqrt(noisy.size)  # Kolmogorov-Smirnov at 1 %
    centred = noisy - noisy.mean()
    for shift in ((0, 1), (1, 0), (1, 1), (0, 2)):
        neighbour = np.roll(centred, shift, axis=(0, 1))
        assert abs((centred * neighbour).mean() / centred.var()) < 4 / np.sqrt(noisy.size)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3, 3), (211, 311), (150, 150, 3), (7, 1)])
def test_noise_is_the_formula_written_plainly(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8)
    drawn = np.random.Generator(np.random.SFC64(9)).bit_generator.random_raw(values.size)
    draws = drawn.astype("<u8").view("<u2")
    parts = [[], []]
    for start in range(0, values.size, VALUES_AT_ONCE):  # a block's real parts, then its imaginary
        count = min(VALUES_AT_ONCE, values.size - start)
        for part, first in zip(parts, (2 * start, 2 * start + count), strict=True):
            part.append(draws[first : first + count])
    real, imaginary = (255 * 0.1 * norm.ppf((np.concatenate(part) + 0.5) / 65536) for part in parts)
    wanted = np.hypot(values.ravel() + real, imaginary).clip(0, 255).reshape(shape)
    generator = np.random.Generator(np.random.SFC64(9))
    found = np.asarray(PERTURBATIONS["rician_noise"](Image.fromarray(values), 0.1, generator))
    assert np.abs(found - wanted).max() <= 0.5 + 1e-3


def test_jpeg_is_the_round_trip_at_that_quality(picture: Image.Image) -> None:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=10, subsampling=2)
    wanted = Image.open(buffer).convert("RGB")
    compressed = PERTURBATIONS["jpeg"](picture, 10, np.random.default_rng())
    assert compressed.tobytes() == wanted.tobytes()


def test_field_of_view_is_a_magnified_part_at_an_offset_of_its_own() -> None:
    x = np.tile(np.arange(200, dtype=np.uint8), (100, 1))
    image = Image.fromarray(np.stack([x, x, x], -1))
    offsets = set()
    for seed in range(20):
        crop = np.asarray(
            PERTURBATIONS["fov_crop"](image, 0.65, np.random.default_rng(seed)), float
        )
        row = crop[50, :, 0]
        slope = (row[150] - row[50]) / 100
        assert slope == pytest.approx(0.65, abs=0.02)  # 65 % of the side over the full width
        offsets.add(int(row[0]))
    assert len(offsets) > 8
    assert min(offsets) >= 0
    assert max(offsets) <= 71
