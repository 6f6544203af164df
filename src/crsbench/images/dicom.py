"""DICOM radiographs, by pydicom: the optional extra `dicom`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from crsbench.core.errors import UserError
from crsbench.images.checks import MissingExtraError, check_size

if TYPE_CHECKING:
    from pydicom import Dataset

UNREADABLE = (
    *(OSError, EOFError, ValueError, AttributeError, KeyError, RuntimeError),
    *(TypeError, IndexError, OverflowError),
)
"""What pydicom raises of a file that it can't make pixels of."""


def decode_dicom(
    file: Path, max_pixels: int, percentiles: tuple[float, float]
) -> tuple[Image.Image, str]:
    """Decode one grey DICOM image to 8 bit; also returns its photometric interpretation.

    The file's modality transform and its first VOI table or window are applied, where it has them
    (PS3.3 C.11.1, C.11.2). What a window or table gives is scaled from the ends of its own range to
    0 and 255, so that one window is one scale for all images; without either, the `percentiles` of
    the image's own values become 0 and 255. MONOCHROME1, or a presentation shape INVERSE, is
    inverted once, so that bright is dense. Padding (PS3.3 C.7.5.1.1.2) is black and takes no part
    in the scale; a constant image is black. Raises UserError naming the file for anything else, and
    MissingExtraError without pydicom or the decoder of the file's compression.
    """
    try:
        import pydicom
        from pydicom.errors import InvalidDicomError
    except ImportError as error:
        raise MissingExtraError(
            f"The image {file} is DICOM, which needs the optional extra: pip install "
            "'crsbench[dicom]'."
        ) from error
    try:
        _refuse_deflated(file)
        dataset = pydicom.dcmread(file)
        check_size(file, dataset.Columns, dataset.Rows, max_pixels)
        _check_decoder(file, dataset.file_meta.TransferSyntaxUID)
        frames = int(dataset.get("NumberOfFrames") or 1)
        if frames != 1:  # before they are decoded, all of them
            raise ValueError(f"it has {frames} frames; allowed is one image")
        kind, pixels = str(dataset.PhotometricInterpretation), dataset.pixel_array
        if pixels.ndim != 2 or kind not in ("MONOCHROME1", "MONOCHROME2"):
            raise ValueError(
                f"it is {kind} of shape {pixels.shape}; allowed is one image, MONOCHROME1 or 2"
            )
        inverted = _inverted(kind, dataset)
        padding = _padding(pixels, dataset)
        values, low, high = _as_shown(pixels, padding, dataset, percentiles)
    except InvalidDicomError as error:
        raise UserError(f"The image {file} cannot be decoded: it is no DICOM file.") from error
    except UNREADABLE as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"The image {file} cannot be decoded: {reason}.") from error
    low, high = (high, low) if inverted else (low, high)
    return Image.fromarray(_eight_bit(values, low, high, padding)), kind


def _refuse_deflated(file: Path) -> None:
    """A deflated data set would be unpacked whole, whatever its size, before any of it is seen."""
    from pydicom.filereader import read_file_meta_info
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    if read_file_meta_info(file).get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
        raise ValueError("it is deflated as a whole, which is not read")


def _check_decoder(file: Path, syntax: object) -> None:
    from pydicom.pixels import get_decoder

    if syntax.is_compressed and not get_decoder(syntax).is_available:
        raise MissingExtraError(
            f"The image {file} is compressed as {syntax.name}, for which pydicom finds no decoder; "
            "install one that pydicom knows, such as pylibjpeg with its plugins."
        )


def _inverted(kind: str, dataset: Dataset) -> bool:
    """Whether small values are to be white: MONOCHROME1 and INVERSE say the same (C.8.11.3.1.2)."""
    shape = str(dataset.get("PresentationLUTShape") or "IDENTITY").strip().upper()
    if "PresentationLUTSequence" in dataset or shape not in ("IDENTITY", "INVERSE"):
        raise ValueError("it has a presentation table; allowed are the shapes IDENTITY and INVERSE")
    return kind == "MONOCHROME1" or shape == "INVERSE"


def _padding(pixels: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Mask (rows, columns) of the stored values from PixelPaddingValue to its range limit."""
    value = dataset.get("PixelPaddingValue")
    if value is None:
        return np.zeros(pixels.shape, dtype=bool)
    ends = [value, dataset.get("PixelPaddingRangeLimit", value)]
    # as the pixels are: writers state -2000 as 63536
    first, last = np.sort(np.asarray(ends, dtype=np.int64).astype(pixels.dtype))
    return (pixels >= first) & (pixels <= last)


def _as_shown(
    pixels: np.ndarray,
    padding: np.ndarray,
    dataset: Dataset,
    percentiles: tuple[float, float],
) -> tuple[np.ndarray, float, float]:
    """The values after modality and VOI transform, and which of them become black and white."""
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    for name in ("ModalityLUTSequence", "VOILUTSequence"):
        for table in dataset.get(name) or ():
            # pydicom keeps indices in the type of the entries: 8-bit ones would overflow
            table.LUTDescriptor = [*table.LUTDescriptor[:2], 16]
    values = apply_modality_lut(pixels.astype(np.int32), dataset)
    if dataset.get("VOILUTSequence"):
        entries, first, _ = dataset.VOILUTSequence[0].LUTDescriptor
        domain = np.arange(first, first + (entries or 2**16))
        whole = np.rint(values).astype(np.int64).clip(domain[0], domain[-1])
        shown, ends = apply_voi_lut(whole, dataset), apply_voi_lut(domain, dataset)
        return shown.astype(np.float64), float(ends.min()), float(ends.max())
    if None not in (dataset.get("WindowCenter"), dataset.get("WindowWidth")):
        with np.errstate(over="ignore"):  # a sigmoid's ends are exp of ± infinity
            ends = apply_voi_lut(np.array([-np.inf, np.inf]), dataset)
            return apply_voi_lut(values, dataset), float(ends[0]), float(ends[1])
    values = values.astype(np.float64)
    used = values[~padding]
    low, high = np.percentile(used, percentiles) if used.size else (0.0, 0.0)
    return values, float(low), float(high)


def _eight_bit(values: np.ndarray, low: float, high: float, padding: np.ndarray) -> np.ndarray:
    if low == high:
        return np.zeros(values.shape, dtype=np.uint8)
    share = (values - low) / (high - low)  # 0 at low and 1 at high, also where low > high
    grey = np.floor(share.clip(0, 1) * 255 + 0.5).astype(np.uint8)
    grey[padding] = 0
    return grey
