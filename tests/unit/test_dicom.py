"""DICOM radiographs, as data sets ship them that are read with the extra `dicom`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from crsbench.core.errors import UserError
from crsbench.data.scan import scan_images
from crsbench.images.canonical import read_canonical
from crsbench.images.checks import MissingExtraError
from crsbench.images.decoding import decode
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
