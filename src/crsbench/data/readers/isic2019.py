"""ISIC 2019 (training part): dermoscopic images of eight classes, grouped by lesion."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.readers.tables import (
    ImageTable,
    age_bands,
    binary,
    build_image_table,
    column,
    find_table,
    read_text_table,
    recoded,
)

TRUTH, METADATA = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv"
TABLES = (TRUTH, METADATA)
SOURCES = {"BCN": "BCN", "HAM": "HAM", "MSK": "MSK", "": "unknown"}
"""The source that the prefix of a lesion id names; about 2,000 images have no lesion id."""


def read_isic2019(entry: DatasetEntry, root: Path) -> ImageTable:
    """The images of the training ground truth, joined with the metadata by image id.

    root: the folder with both tables and `ISIC_2019_Training_Input/`. The suffix `_downsampled` is
    part of an id and of its file's name. An image without `lesion_id` is its own group. The source
    (BCN, HAM, MSK, else unknown) is the prefix of the lesion id; an entry's `where` on it makes
    leave-one-source-out. Raises UserError unless both tables hold the same images and every image
    has exactly one of the entry's classes.
    """
    file, other = find_table(root, TRUTH), find_table(root, METADATA)
    table, metadata = read_text_table(file), read_text_table(other)
    ids, described = column(table, "image", file), column(metadata, "image", other)
    if set(ids) != set(described) or described.duplicated().any():
        odd = sorted(set(ids) ^ set(described)) or list(described[described.duplicated()])
        raise UserError(
            f"{file} and {other.name} must hold the same images once each; check '{odd[0]}'."
        )
    metadata = metadata.set_index("image").loc[ids].reset_index(drop=True)
    truth = np.stack([binary(column(table, name, file), file) for name in entry.classes], axis=1)
    odd_rows = np.flatnonzero(truth.sum(axis=1) != 1)
    if len(odd_rows):
        raise UserError(
            f"{file}: the image '{ids[odd_rows[0]]}' has {truth[odd_rows[0]].sum()} of the classes "
            f"{', '.join(entry.classes)}; exactly one is allowed."
        )
    lesions, age = column(metadata, "lesion_id", other), column(metadata, "age_approx", other)
    return build_image_table(
        entry,
        file,
        ids=ids,
        paths="ISIC_2019_Training_Input/" + ids + ".jpg",
        groups=lesions,
        truth=truth,
        subgroups={
            "publisher_split": "train",
            "sex": recoded(
                column(metadata, "sex", other), {"female": "female", "male": "male"}, other
            ),
            "age": age,
            "age_band": age_bands(age, other),
            "anatomical_site": column(metadata, "anatom_site_general", other),
            "source": lesions.str[:3].map(SOURCES).fillna("unknown"),
        },
    )
