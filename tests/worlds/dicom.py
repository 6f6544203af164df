"""A DICOM file as data sets ship them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

RAMP = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32)


def write_dicom(
    file: Path, pixels: np.ndarray = RAMP, syntax: str = "1.2.840.10008.1.2.1", **tags: Any
) -> Path:
    """A 12-bit grey image, uncompressed unless its transfer syntax says so, with more tags."""
    pydicom = pytest.importorskip("pydicom", reason="the extra `dicom` is not installed")
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import generate_uid

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = syntax
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset = FileDataset(str(file), {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.Rows, dataset.Columns = pixels.shape[:2]
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 12, 11
    dataset.PixelRepresentation = 0
    dataset.PixelData = pixels.astype("<u2").tobytes()
    for name, value in tags.items():
        setattr(dataset, name, value)
    pydicom.dcmwrite(file, dataset, enforce_file_format=True)
    return file
