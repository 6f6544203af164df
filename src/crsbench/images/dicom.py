"""DICOM radiographs, by pydicom: the optional extra `dicom`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from crsbench.core.errors import UserError
from crsbench.images.checks import MissingExtraError, check_size


def decode_dicom(file: Path, max_pixels: int) -> tuple[Image.Image, str]:
    """Decode one grey DICOM image to 8 bit; also returns its photometric interpretation.

    The file's modality transform and its first VOI window or table are applied, where it has them;
    MONOCHROME1 is inverted, so that bright is dense; what results is scaled from its own minimum
    and maximum to 0 and 255, rounded to nearest (a constant image is black). Raises UserError
    naming the file for anything else, and MissingExtraError without pydicom or the decoder of the
    file's compression.
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
        values = _as_shown(pixels, dataset)
    except InvalidDicomError as error:
        raise UserError(f"The image {file} cannot be decoded: it is no DICOM file.") from error
    except (OSError, EOFError, ValueError, AttributeError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"The image {file} cannot be decoded: {reason}.") from error
    grey = _eight_bit(-values if kind == "MONOCHROME1" else values)
    return Image.fromarray(grey), kind


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


def _as_shown(pixels: np.ndarray, dataset: object) -> np.ndarray:
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    values = apply_voi_lut(apply_modality_lut(pixels, dataset), dataset, index=0)
    return np.asarray(values, dtype=np.float64)


def _eight_bit(values: np.ndarray) -> np.ndarray:
    low, high = values.min(), values.max()
    if low == high:
        return np.zeros(values.shape, dtype=np.uint8)
    return np.floor((values - low) / (high - low) * 255 + 0.5).astype(np.uint8)
