"""DICOM radiographs, as data sets ship them that are read with the extra `dicom`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crsbench.core.errors import UserError
from crsbench.data.scan import scan_images
from crsbench.images.canonical import read_canonical
from crsbench.images.checks import MissingExtraError
from crsbench.images.decoding import decode
from crsbench.images.scaling import Scaling
from worlds.dicom import RAMP, write_dicom


def grey_of(file: Path) -> np.ndarray:
    return np.asarray(decode(file, 10**6)[0])[..., 0]


def test_values_are_scaled_from_their_own_minimum_and_maximum(tmp_path: Path) -> None:
    image, mode = decode(write_dicom(tmp_path / "a.dicom", RAMP + 100), 10**6)
    assert (image.mode, image.size, mode) == ("RGB", (32, 24), "MONOCHROME2")
    wanted = np.floor(RAMP / RAMP.max() * 255 + 0.5)
    assert (np.asarray(image) == wanted[..., None]).all()


def test_monochrome1_is_inverted(tmp_path: Path) -> None:
    plain = grey_of(write_dicom(tmp_path / "a.dcm"))
    inverted = write_dicom(tmp_path / "b.dcm", PhotometricInterpretation="MONOCHROME1")
    assert (grey_of(inverted) == plain[::-1, ::-1]).all()
    assert decode(inverted, 10**6)[1] == "MONOCHROME1"


@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
def test_the_files_first_window_is_applied(kind: str, tmp_path: Path) -> None:
    """A linear window of centre c and width w ends at c - 0.5 ± (w - 1) / 2 (PS3.3 C.11.2.1.2)."""
    windows = {"WindowCenter": [300.5, 500.5], "WindowWidth": [101, 11]}
    file = write_dicom(tmp_path / "a.dcm", PhotometricInterpretation=kind, **windows)
    wanted = np.floor((np.clip(RAMP, 250, 350) - 250) / 100 * 255 + 0.5)
    wanted = 255 - wanted if kind == "MONOCHROME1" else wanted
    assert np.abs(grey_of(file).astype(int) - wanted).max() <= 1  # halves round to the other side
    assert grey_of(file)[0, 0] == wanted[0, 0]
    assert grey_of(file)[-1, -1] == wanted[-1, -1]


def test_the_modality_transform_comes_before_the_window(tmp_path: Path) -> None:
    rescale = {"RescaleSlope": 2, "RescaleIntercept": -1000}
    window = {"WindowCenter": -399.5, "WindowWidth": 201}  # -500 to -300, stored 250 to 350
    file = write_dicom(tmp_path / "a.dcm", **rescale, **window)
    plain = write_dicom(tmp_path / "b.dcm", WindowCenter=300.5, WindowWidth=101)
    assert np.abs(grey_of(file).astype(int) - grey_of(plain)).max() <= 1


WINDOW = {"WindowCenter": 300.5, "WindowWidth": 101}


def as_pydicom_shows(file: Path) -> np.ndarray:
    """Modality, VOI and presentation transforms by pydicom, on the scale of 0 to 255."""
    pydicom = pytest.importorskip("pydicom")
    from pydicom.pixels import apply_modality_lut, apply_presentation_lut, apply_voi_lut

    dataset = pydicom.dcmread(file)
    values = apply_modality_lut(dataset.pixel_array.astype(np.int32), dataset)
    shown = apply_presentation_lut(apply_voi_lut(values, dataset), dataset).astype(float)
    return (shown - shown.min()) / np.ptp(shown) * 255


def table_item(entries: np.ndarray, first: int, bits: int, **tags: Any) -> Any:
    pydicom = pytest.importorskip("pydicom")
    item = pydicom.Dataset()
    item.add_new("LUTDescriptor", "SS" if first < 0 else "US", [len(entries), first, bits])
    item.add_new("LUTData", "US", entries.tolist())
    for name, value in tags.items():
        setattr(item, name, value)
    return [item]


ROOTS = np.round(np.sqrt(np.arange(768) / 767) * 4095).astype(int)


@pytest.mark.parametrize("shape", [None, "IDENTITY", "INVERSE"])
@pytest.mark.parametrize(
    "tags",
    [
        {},
        WINDOW,
        WINDOW | {"VOILUTFunction": "LINEAR_EXACT"},
        {"WindowCenter": 380, "WindowWidth": 90, "VOILUTFunction": "SIGMOID"},
        {"RescaleSlope": 0.5, "RescaleIntercept": -100} | {"WindowCenter": 50, "WindowWidth": 41},
        {"VOILUTSequence": (ROOTS, 0, 12)},
        {"VOILUTSequence": (ROOTS[::-1], 0, 12)},
        {"VOILUTSequence": (ROOTS[:512], 100, 16)},
        {"VOILUTSequence": (ROOTS, 0, 12)} | WINDOW,
        {"ModalityLUTSequence": (ROOTS, 0, 16)},
        {"ModalityLUTSequence": (ROOTS, 0, 16), "WindowCenter": 2000, "WindowWidth": 1000},
    ],
)
def test_what_is_shown_is_what_pydicoms_own_functions_give(
    tags: dict[str, Any], shape: str | None, tmp_path: Path
) -> None:
    tags = {k: table_item(*v) if isinstance(v, tuple) else v for k, v in tags.items()}
    if "ModalityLUTSequence" in tags:
        tags["ModalityLUTSequence"][0].ModalityLUTType = "US"
    if shape:
        tags["PresentationLUTShape"] = shape
    file = write_dicom(tmp_path / "a.dcm", **tags)
    grey = grey_of(file).astype(float)
    assert np.ptp(grey) > 200
    assert np.abs(grey - as_pydicom_shows(file)).max() <= 1


@pytest.mark.parametrize("shape", [None, "INVERSE"])
def test_monochrome1_and_an_inverse_shape_say_the_same_and_invert_once(
    shape: str | None, tmp_path: Path
) -> None:
    tags = {"PresentationLUTShape": shape} if shape else {}
    first = write_dicom(tmp_path / "a.dcm", PhotometricInterpretation="MONOCHROME1", **tags)
    other = write_dicom(tmp_path / "b.dcm", PresentationLUTShape="INVERSE")
    assert (grey_of(first) == grey_of(other)).all()
    assert grey_of(first)[0, 0] == 255


def test_entries_of_8_bits_in_a_long_table_and_of_12_bits_are_read(tmp_path: Path) -> None:
    """pydicom by itself keeps the index in 8 bits, or finds no such type."""
    plain = grey_of(write_dicom(tmp_path / "a.dcm")).astype(int)
    eighths = (np.arange(768) * 255 // 767).astype(int)
    file = write_dicom(tmp_path / "b.dcm", VOILUTSequence=table_item(eighths, 0, 8))
    assert np.abs(grey_of(file) - plain).max() <= 1
    item = table_item(np.arange(768) * 4095 // 767, 0, 12, ModalityLUTType="US")
    file = write_dicom(tmp_path / "c.dcm", ModalityLUTSequence=item)
    assert np.abs(grey_of(file) - plain).max() <= 1


def test_a_window_is_one_scale_for_all_images(tmp_path: Path) -> None:
    """What fills the window in part only is not stretched to all of it."""
    window = {"WindowCenter": 383.5 + 0.5, "WindowWidth": 768}  # 0 to 767
    half = np.minimum(RAMP, 383)
    whole, part = (
        grey_of(write_dicom(tmp_path / f"{k}.dcm", pixels, **window))
        for k, pixels in enumerate([RAMP, half])
    )
    assert (part == np.minimum(whole, whole.ravel()[383])).all()


def with_rim(value: int) -> np.ndarray:
    pixels = RAMP + 1000
    pixels[:3] = value
    return pixels


@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize(
    ("rim", "tags"),
    [
        (0, {"PixelPaddingValue": 0}),
        (4095, {"PixelPaddingValue": 4095}),
        (4000, {"PixelPaddingValue": 3900, "PixelPaddingRangeLimit": 4095}),
        (20, {"PixelPaddingValue": 50, "PixelPaddingRangeLimit": 0}),
    ],
)
def test_padding_is_black_and_does_not_spoil_the_scale(
    kind: str, rim: int, tags: dict[str, int], tmp_path: Path
) -> None:
    tags |= {"PhotometricInterpretation": kind}
    grey = grey_of(write_dicom(tmp_path / "a.dcm", with_rim(rim), **tags))
    alone = grey_of(
        write_dicom(tmp_path / "b.dcm", RAMP[3:] + 1000, PhotometricInterpretation=kind)
    )
    assert (grey[:3] == 0).all()
    assert (grey[3:] == alone).all()


def test_signed_padding_is_padding(tmp_path: Path) -> None:
    pixels = with_rim(0).astype(np.int16)
    pixels[:3] = -2000
    signed = {"PixelRepresentation": 1, "BitsStored": 16, "HighBit": 15}
    file = write_dicom(tmp_path / "a.dcm", pixels, PixelPaddingValue=-2000, **signed)
    grey = grey_of(file)
    assert (grey[:3] == 0).all()
    assert grey[-1, -1] == 255
    assert 0 <= grey[3, 0] < 5


def test_nothing_but_padding_is_black(tmp_path: Path) -> None:
    file = write_dicom(tmp_path / "a.dcm", np.full((24, 32), 9), PixelPaddingValue=9)
    assert (grey_of(file) == 0).all()


def test_percentiles_hold_against_hot_and_dead_pixels(tmp_path: Path) -> None:
    hot = RAMP + 1000
    hot[5, 5], hot[9, 9] = 4095, 0
    file = write_dicom(tmp_path / "a.dcm", hot)
    assert np.ptp(grey_of(file)[10:]) < 60  # the default: the range of all values
    robust = decode(file, 10**6, Scaling(percentiles=(1, 99)))[0]
    low, high = np.percentile(hot, (1, 99))
    wanted = np.floor(((hot - low) / (high - low)).clip(0, 1) * 255 + 0.5)
    assert (np.asarray(robust)[..., 0] == wanted).all()
    windowed = write_dicom(tmp_path / "b.dcm", hot, WindowCenter=1384, WindowWidth=768)
    one, other = (decode(windowed, 10**6, Scaling(percentiles=p))[0] for p in [(0, 100), (5, 95)])
    assert (np.asarray(one) == np.asarray(other)).all()  # the file's own window goes first


def test_other_presentation_tables_are_refused(tmp_path: Path) -> None:
    file = write_dicom(tmp_path / "a.dcm", PresentationLUTShape="LIN OD")
    with pytest.raises(UserError, match="it has a presentation table; allowed are the shapes"):
        decode(file, 10**6)


def test_a_constant_image_is_black(tmp_path: Path) -> None:
    assert (grey_of(write_dicom(tmp_path / "a.dcm", np.full((24, 32), 7))) == 0).all()


def test_the_canonical_image_of_a_dicom_file(tmp_path: Path) -> None:
    assert read_canonical(write_dicom(tmp_path / "a.dcm"), 48, 10**6).size == (64, 48)


def test_what_is_no_grey_image_is_reported(tmp_path: Path) -> None:
    file = write_dicom(tmp_path / "a.dcm", PhotometricInterpretation="PALETTE COLOR")
    with pytest.raises(UserError, match=r"a\.dcm cannot be decoded: it is PALETTE COLOR of shape"):
        decode(file, 10**6)
    frames = write_dicom(
        tmp_path / "c.dcm", np.concatenate([RAMP, RAMP]), Rows=24, NumberOfFrames=2
    )
    with pytest.raises(UserError, match=r"c\.dcm cannot be decoded: it has 2 frames"):
        decode(frames, 10**6)


def test_damaged_and_huge_files_are_reported(tmp_path: Path) -> None:
    whole = write_dicom(tmp_path / "a.dcm")
    with pytest.raises(UserError, match=r"32 × 24 pixels, more than image\.max_pixels = 100"):
        decode(whole, 100)
    cut = tmp_path / "cut.dcm"
    cut.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cut\.dcm cannot be decoded"):
        decode(cut, 10**6)
    other = tmp_path / "other.dcm"
    other.write_bytes(b"no image at all" * 50)
    with pytest.raises(UserError, match=r"other\.dcm cannot be decoded: it is no DICOM file"):
        decode(other, 10**6)


def test_a_missing_decoder_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jpeg_2000 = "1.2.840.10008.1.2.4.90"
    data = b"\xfe\xff\x00\xe0\0\0\0\0" + b"\xfe\xff\x00\xe0\x02\0\0\0\xff\x4f"
    data += b"\xfe\xff\xdd\xe0\0\0\0\0"  # an offset table, a fragment, the end
    file = write_dicom(tmp_path / "a.dcm", syntax=jpeg_2000, PixelData=data)
    monkeypatch.setattr("pydicom.pixels.get_decoder", lambda _: SimpleNamespace(is_available=False))
    with pytest.raises(MissingExtraError, match="is compressed as JPEG 2000"):
        decode(file, 10**6)


def test_without_the_extra_a_scan_ends_and_remembers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.dicom").write_bytes(b"\0" * 128 + b"DICM")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    options = {"label": "x", "max_pixels": 10**6, "workers": 1}
    cache = tmp_path / "cache.jsonl"
    with pytest.raises(UserError, match=r"a.dicom is DICOM, which .* pip install 'crsbench\[dicom"):
        scan_images(tmp_path, ["a.dicom"], cache_file=cache, **options)
    assert cache.read_text() == ""
