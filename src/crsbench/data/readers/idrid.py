"""IDRiD, part B, disease grading (Porwal et al., 2018): fundus photographs, grades 0 to 4."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from crsbench.config.model import DatasetEntry
from crsbench.data.readers.tables import (
    ImageTable,
    build_image_table,
    column,
    columns_of,
    find_table,
    named_labels,
    read_text_table,
)

FOLDERS = {"train": "a. Training Set", "test": "b. Testing Set"}
FILES = {
    "train": "2. Groundtruths/a. IDRiD_Disease Grading_Training Labels.csv",
    "test": "2. Groundtruths/b. IDRiD_Disease Grading_Testing Labels.csv",
}
COLUMNS = ("Image name", "Retinopathy grade", "Risk of macular edema")
TABLES = tuple(FILES.values())


def read_idrid(entry: DatasetEntry, root: Path) -> ImageTable:
    """The images of both of the publisher's parts; every image is its own group.

    root: the folder `B. Disease Grading`. The publisher's numbers start anew in the test part, so
    an id is `train/IDRiD_001`. The tables have empty columns at their end and a space behind the
    name of the macular oedema column.
    """
    parts = []
    for split, name in FILES.items():
        part_file = find_table(root, name)
        table = read_text_table(part_file)
        parts.append(columns_of(table, COLUMNS, part_file).assign(publisher_split=split))
    file, table = root / FILES["train"], pd.concat(parts, ignore_index=True)
    names, splits = column(table, "Image name", file), table["publisher_split"]
    return build_image_table(
        entry,
        file,
        ids=splits + "/" + names,
        paths="1. Original Images/" + splits.map(FOLDERS) + "/" + names + ".jpg",
        groups=None,
        truth=named_labels(entry, column(table, "Retinopathy grade", file), file),
        subgroups={
            "publisher_split": splits,
            "macular_oedema": column(table, "Risk of macular edema", file),
        },
    )
