"""Readable but ruined pixels are put right, refused by name, or named in the audit."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageOps

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.audit import write_audit
from crsbench.data.image_checks import lacks_scans
from crsbench.data.manifest import write_manifest
from crsbench.data.scan import scan_image
from crsbench.data.splits import write_split, write_test
from crsbench.images.canonical import read_canonical
from crsbench.images.decoding import decode
from crsbench.images.scaling import Scaling

Entry = Callable[..., DatasetEntry]
LIMIT = 10**6


def film(
    seed: int, size: tuple[int, int] = (96, 80), template: float = 0.5, knots: int = 8
) -> np.ndarray:
    """(height, width) uint8: a smooth film, in part the same in all."""

    def smooth(number: int) -> np.ndarray:
        coarse = np.random.default_rng(number).integers(0, 256, (knots, knots), dtype=np.uint8)
        return np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), float)

    values = template * smooth(10**6) + (1 - template) * smooth(seed)
    values = (values - values.min()) / np.ptp(values)
    return np.round(values * 255).astype(np.uint8)


def audited(
    root: Path, images: dict[str, Image.Image | bytes | np.ndarray], entry: DatasetEntry
) -> dict[str, Any]:
    """Write the images, by name with suffix, and give the audit of the set that they make."""
    folder = root / "small"
    folder.mkdir(parents=True, exist_ok=True)
    for name, image in images.items():
        if isinstance(image, bytes):
            (folder / name).write_bytes(image)
        else:
            image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
            image.save(folder / name)
    stems = [name.partition(".")[0] for name in images]
    table = {"id": stems, "path": [*images], "label": ["ab"[k % 2] for k in range(len(images))]}
    pd.DataFrame(table).to_csv(folder / "table.csv", index=False)
    manifest, scan, test, split = (root / name for name in ("m", "i", "t", "s"))
    write_manifest(manifest, scan, entry, folder, max_pixels=LIMIT, workers=1, short_side=64)
    write_test(test, manifest, 0.2)
    write_split(split, manifest, test, 0, (50, 100), 0.125)
    write_audit(root / "audit.json", entry, manifest, scan, {0: split}, {})
    return json.loads((root / "audit.json").read_text("utf-8"))


def films(n: int = 40, **options: Any) -> dict[str, Any]:
    return {f"k{k:03d}.png": film(k, **options) for k in range(n)}


def jpeg(values: np.ndarray | Image.Image, **options: Any) -> bytes:
    content = io.BytesIO()
    image = Image.fromarray(values) if isinstance(values, np.ndarray) else values
    image.save(content, "JPEG", **({"quality": 90} | options))
    return content.getvalue()


# --- fewer bits than are stored -------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "tiff"])
@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_films_of_a_declared_depth_are_read_as_if_stored_in_8_bits(
    bits: int, suffix: str, table_entry: Entry, tmp_path: Path
) -> None:
    full = 2**bits - 1
    deep = np.arange(full + 1, dtype=np.uint16)[-4096:].reshape(-1, 64)
    deep[0, 0] = 0
    Image.fromarray(deep).save(tmp_path / f"film.{suffix}")
    grey = np.asarray(decode(tmp_path / f"film.{suffix}", LIMIT, Scaling(bits))[0])[..., 0]
    assert (grey == np.floor(deep / full * 255 + 0.5)).all()
    canonical = read_canonical(tmp_path / f"film.{suffix}", min(deep.shape), LIMIT, Scaling(bits))
    assert canonical.mode == "L"
    assert (np.asarray(canonical) == grey).all()


@pytest.mark.parametrize(("bits", "suffix"), [(8, "png"), (10, "tif"), (12, "png"), (14, "png")])
def test_a_set_of_films_of_fewer_bits_is_refused_until_the_depth_is_declared(
    bits: int, suffix: str, table_entry: Entry, tmp_path: Path
) -> None:
    images = {
        f"k{k:03d}.{suffix}": (film(k).astype(np.uint16) * ((2**bits - 1) // 255))
        for k in range(40)
    }
    with pytest.raises(UserError, match=rf"'small': 40 of its 40 .*'k000.{suffix}'.* bits: {bits}"):
        audited(tmp_path, images, table_entry())
    files = audited(tmp_path, images, table_entry(bits=bits))["files"]
    assert files["dark"]["count"] == 0
    files = audited(tmp_path, images, table_entry(bits=16))["files"]
    assert files["dark"]["count"] == 40  # accepted, and named


def test_one_film_of_fewer_bits_is_refused_by_name_whatever_the_others_are(
    table_entry: Entry, tmp_path: Path
) -> None:
    dark = {"odd.png": film(99).astype(np.uint16) * 16}
    others = {name: image.astype(np.uint16) * 257 for name, image in films().items()}
    for rest in (films(), others):
        with pytest.raises(UserError, match=r"1 of its .* 'odd.png' with at most 4080; .*bits: 12"):
            audited(tmp_path, rest | dark, table_entry())
        found = audited(tmp_path, rest | dark, table_entry(bits=16))
        assert found["files"]["dark"]["listed"] == ["odd"]


def test_a_darker_film_among_those_of_full_range_is_no_fault(
    table_entry: Entry, tmp_path: Path
) -> None:
    images = {name: image.astype(np.uint16) * 257 for name, image in films().items()}
    images |= {"half.png": film(77).astype(np.uint16) * 128}
    images |= {"quarter.png": film(78).astype(np.uint16) * 60}  # 14 bits
    assert audited(tmp_path, images, table_entry())["files"]["dark"]["listed"] == ["quarter"]


def test_values_beyond_the_declared_bits_are_refused(table_entry: Entry, tmp_path: Path) -> None:
    images = {name: image.astype(np.uint16) * 16 for name, image in films().items()}
    images["k007.png"] = images["k007.png"] + 16
    with pytest.raises(
        UserError, match=r"'k007.png' .*value is 4096; allowed with bits: 12 .*4095"
    ):
        audited(tmp_path, images, table_entry(bits=12))


def test_colours_of_16_bits_are_not_read_at_a_declared_depth(tmp_path: Path) -> None:
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 16, 16, 16, 2, 0, 0, 0)
    rows = b"".join(b"\0" + b"\x0f\xff" * 48 for _ in range(16))
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    decode(tmp_path / "deep.png", LIMIT)
    with pytest.raises(UserError, match=r"deep.png .*colours have 16 bits"):
        decode(tmp_path / "deep.png", LIMIT, Scaling(12))


# --- what is made ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (2, 9_000), (20, 30_000)])
@pytest.mark.parametrize("suffix", ["png", "tif", "jpg"])
def test_an_image_that_would_become_too_large_is_refused_by_name(
    size: tuple[int, int], suffix: str, tmp_path: Path
) -> None:
    Image.linear_gradient("L").resize(size).save(tmp_path / f"thin.{suffix}")
    for side in (64, 512):
        said = rf"thin.{suffix} has {size[0]} × {size[1]} pixels.*short_side = {side}"
        with pytest.raises(UserError, match=said):
            read_canonical(tmp_path / f"thin.{suffix}", side, 10**6)
        found = scan_image(tmp_path, f"thin.{suffix}", max_pixels=10**6, short_side=side)
        assert f"short_side = {side}" in found.error


def test_the_bound_is_the_square_on_the_long_side(tmp_path: Path) -> None:
    """Some encoders pad an image to it."""
    Image.linear_gradient("L").resize((40, 100)).save(tmp_path / "a.png")
    assert read_canonical(tmp_path / "a.png", 80, 200**2).size == (80, 200)
    with pytest.raises(UserError, match=r"40000 pixels, more than image.max_pixels = 39999"):
        read_canonical(tmp_path / "a.png", 80, 200**2 - 1)


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "tiff"])
def test_a_file_of_several_frames_is_refused(suffix: str, tmp_path: Path) -> None:
    frames = [Image.fromarray(film(k)) for k in range(3)]
    file = tmp_path / f"many.{suffix}"
    frames[0].save(file, save_all=True, append_images=frames[1:])
    with pytest.raises(UserError, match="more than one frame; allowed is one image"):
        read_canonical(file, 64, LIMIT)
    frames[0].save(file)
    assert read_canonical(file, 64, LIMIT).size == (77, 64)


def test_a_cameras_jpeg_with_its_preview_is_one_image(tmp_path: Path) -> None:
    image = Image.fromarray(film(0))
    image.save(tmp_path / "a.mpo", save_all=True, append_images=[image.resize((24, 20))])
    assert read_canonical(tmp_path / "a.mpo", 80, LIMIT).size == (96, 80)


# --- findings by content --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"quality": 30}, {"progressive": True}])
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.6])
def test_a_jpeg_cut_and_closed_is_named(
    share: float, mode: str, options: dict[str, Any], table_entry: Entry, tmp_path: Path
) -> None:
    images = {f"k{k:03d}.jpg": jpeg(film(k, (200, 160), knots=24)) for k in range(40)}
    whole = jpeg(Image.fromarray(film(999, (200, 160), knots=24)).convert(mode), **options)
    images["k005.jpg"] = whole[: int(len(whole) * share)] + b"\xff\xd9"
    files = audited(tmp_path, images, table_entry())["files"]
    assert files["missing_data"]["listed"] == ["k005"]


def test_whole_jpegs_lack_no_scan_and_those_without_the_last_scans_do() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)
    for options in ({}, {"progressive": True}, {"subsampling": 0, "progressive": True}):
        assert not lacks_scans(jpeg(noise, **options))
    whole = jpeg(noise, progressive=True)
    starts = [place for place in range(len(whole)) if whole[place : place + 2] == b"\xff\xda"]
    assert len(starts) > 5
    assert all(lacks_scans(whole[:start] + b"\xff\xd9") for start in starts)
    assert not lacks_scans(b"")
    assert not lacks_scans(b"\xff\xd8\xff")


RUINS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "a twentieth of the brightness": ("dark", lambda v: v // 20),
    "dark but for a burnt-in mark": ("dark", lambda v: np.where(v == 255, 255, v // 8)),
    "washed out": ("bright", lambda v: 195 + v // 5),
    "little contrast": ("narrow_range", lambda v: 100 + v // 10),
    "burnt out": ("saturated", lambda v: (v.astype(int) * 3).clip(0, 255).astype(np.uint8)),
    "nothing but black": ("saturated", lambda v: np.where(v > 250, v, 0).astype(np.uint8)),
    "the lower half grey": ("missing_data", lambda v: np.where(rows(v) < 40, v, 117)),
    "the last rows grey": ("missing_data", lambda v: np.where(rows(v) < 74, v, 60)),
    "the lower half black": ("constant_region", lambda v: np.where(rows(v) < 40, v, 0)),
    "the right third white": ("constant_region", lambda v: np.where(rows(v.T).T < 60, v, 255)),
    "inverted": ("unlike_the_set", lambda v: 255 - v),
    "much darker than the others": ("outliers", lambda v: v // 3),
}


def rows(values: np.ndarray) -> np.ndarray:
    return np.arange(len(values))[:, None]


@pytest.mark.parametrize("ruin", RUINS)
def test_each_ruin_is_named_and_no_other_image(
    ruin: str, table_entry: Entry, tmp_path: Path
) -> None:
    finding, ruined = RUINS[ruin]
    images = films(template=0.7)
    images["k011.png"] = ruined(film(11, template=0.7)).astype(np.uint8)
    files = audited(tmp_path, images, table_entry())["files"]
    assert files[finding] == {"count": 1, "listed": ["k011"]}
    others = {
        name
        for found in files.values()
        if isinstance(found, dict)
        for name in found.get("listed", ())
    }
    assert others == {"k011"}


def test_what_most_of_a_set_has_is_no_finding(table_entry: Entry, tmp_path: Path) -> None:
    images = {name: np.where(rows(v) < 50, v, 0) for name, v in films().items()}
    files = audited(tmp_path, images, table_entry())["files"]
    assert files["constant_region"]["count"] == 0


def test_lists_of_images_are_complete(table_entry: Entry, tmp_path: Path) -> None:
    images = {name: v // 20 if name > "k006" else v for name, v in films(60).items()}
    files = audited(tmp_path, images, table_entry())["files"]
    assert files["dark"]["count"] == len(files["dark"]["listed"]) == 54


# --- turned and inverted copies -------------------------------------------------------------------

TURNS = {
    "mirrored": Image.Transpose.FLIP_LEFT_RIGHT,
    "upside down": Image.Transpose.FLIP_TOP_BOTTOM,
    "turned by 180°": Image.Transpose.ROTATE_180,
    "turned by 90°": Image.Transpose.ROTATE_90,
    "turned by 270°": Image.Transpose.ROTATE_270,
    "turned by 90°, mirrored": Image.Transpose.TRANSPOSE,
    "turned by 270°, mirrored": Image.Transpose.TRANSVERSE,
}


@pytest.mark.parametrize(
    ("how", "inverted"), [("", True), *((how, tone) for how in TURNS for tone in (False, True))]
)
def test_a_turned_or_inverted_copy_is_named_with_its_parts(
    how: str, inverted: bool, table_entry: Entry, tmp_path: Path
) -> None:
    images = films(size=(200, 160), template=0, knots=24)
    copy = Image.fromarray(images["k003.png"])
    copy = copy.transpose(TURNS[how]) if how else copy
    copy = ImageOps.invert(copy) if inverted else copy
    images["x.jpg"] = jpeg(copy.resize((copy.width * 3 // 4, copy.height * 3 // 4)), quality=75)
    duplicates = audited(tmp_path, images, table_entry())["duplicates"]
    assert duplicates["near"]["pairs"] == 0
    said = ", ".join(filter(None, [how, "inverted" if inverted else ""]))
    assert [*duplicates["near_when_changed"]] == [said]
    found = duplicates["near_when_changed"][said]
    assert found["pairs"] == 1
    assert found["listed"][0]["images"] == ["k003", "x"]
    assert set(found["listed"][0]["parts"]) == {"0"}


def framed(values: np.ndarray, rim: int) -> np.ndarray:
    """In a black frame with some noise."""
    noise = np.random.default_rng(0).integers(0, 6, np.add(values.shape, 2 * rim), dtype=np.uint8)
    noise[rim:-rim, rim:-rim] = np.maximum(values, 30)
    return noise


@pytest.mark.parametrize("rim", [6, 20, 50])
def test_a_copy_without_its_dark_border_is_named(
    rim: int, table_entry: Entry, tmp_path: Path
) -> None:
    images = films(size=(200, 160), template=0, knots=24)
    plain = images["k003.png"]
    images["k003.png"] = framed(plain, rim)
    images["x.jpg"] = jpeg(np.maximum(plain, 30))
    duplicates = audited(tmp_path, images, table_entry())["duplicates"]
    assert duplicates["near"]["pairs"] == 0
    found = duplicates["near_when_changed"]
    assert [*found] == ["without a border"]
    assert [pair["images"] for pair in found["without a border"]["listed"]] == [["k003", "x"]]


@pytest.mark.parametrize("name", ["a", "x"])  # before and after the whole image
@pytest.mark.parametrize("kept", [0.95, 0.9, 0.875, 0.8])
def test_a_copy_cropped_to_its_centre_is_named(
    kept: float, name: str, table_entry: Entry, tmp_path: Path
) -> None:
    images = films(size=(320, 240), template=0, knots=24)
    whole = Image.fromarray(images["k003.png"])
    rims = [round(side * (1 - kept) / 2) for side in whole.size]
    copy = whole.crop((*rims, whole.width - rims[0], whole.height - rims[1]))
    images[f"{name}.jpg"] = jpeg(copy.resize((256, 192)), quality=80)
    duplicates = audited(tmp_path, images, table_entry())["duplicates"]
    assert duplicates["near"]["pairs"] == 0
    found = duplicates["near_when_changed"]
    assert [*found] == ["cropped to the centre"]
    pairs = [pair["images"] for pair in found["cropped to the centre"]["listed"]]
    assert pairs == [sorted(["k003", name])]


def test_14_bits_among_16_are_dark_at_their_brightest(table_entry: Entry, tmp_path: Path) -> None:
    deep = {f"i{k}.png": film(k).astype(np.uint16) * 257 for k in range(24)}
    deep["i5.png"] = np.where(film(5) > 60, 2**14 - 1, 0).astype(np.uint16)
    found = audited(tmp_path, deep, table_entry())["files"]
    assert found["dark"]["listed"] == ["i5"]


@pytest.mark.parametrize("factor", [1 / 255, -3.0])
def test_values_that_are_no_16_bit_numbers_are_refused_with_their_range(
    tmp_path: Path, factor: float
) -> None:
    file = tmp_path / "i.tif"
    Image.fromarray(film(0).astype(np.float32) * np.float32(factor)).save(file)
    with pytest.raises(UserError, match=r"mode F go from .* to .*; allowed are whole numbers"):
        decode(file, LIMIT)
