"""VinDr-CXR (Nguyen et al., 2022): the test part, labelled by the consensus of five readers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from crsbench.config.model import DatasetEntry
from crsbench.data.readers.tables import (
    ImageTable,
    binary,
    build_image_table,
    column,
    read_found,
)

TABLES = ("annotations/image_labels_test.csv",)


def read_vindr_cxr(entry: DatasetEntry, root: Path) -> ImageTable:
    """The test images, PA radiographs as DICOM; every image is its own group.

    root: the folder with `annotations/` and `test/` (`<image_id>.dicom`); it is read with the
    optional extra `dicom`. The layout is known from public loaders, not from the publisher's own
    archive. The training part has three readers' labels without a consensus and isn't read. Its
    patients are not named, which matters to a set that is trained on, not to a shift target.

    The entry's `label_map` gives the publisher's name of each class. No label of the publisher is,
    one to one, Enlarged Cardiomediastinum, Lung Lesion (Nodule/Mass is narrower), Pleural Other,
    Fracture (clavicle and rib are distinguished) or Support Devices, so these are no classes here.
    """
    file, table = read_found(root, *TABLES)
    names = {label: name for name, label in entry.spec.get("label_map", {}).items()}
    columns = [column(table, names.get(label, label), file) for label in entry.classes]
    ids = column(table, "image_id", file)
    return build_image_table(
        entry,
        file,
        ids=ids,
        paths="test/" + ids + ".dicom",
        groups=None,
        truth=np.stack([binary(values, file) for values in columns], axis=1),
        subgroups={"publisher_split": "test", "view": "PA"},
    )
