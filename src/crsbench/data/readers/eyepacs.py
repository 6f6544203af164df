"""EyePACS (Kaggle diabetic retinopathy detection, training part): fundus photographs, 0 to 4."""

from __future__ import annotations

from pathlib import Path

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.readers.tables import (
    ImageTable,
    build_image_table,
    column,
    named_labels,
    read_found,
)

TABLES = ("trainLabels.csv",)


def read_eyepacs(entry: DatasetEntry, root: Path) -> ImageTable:
    """The images of trainLabels.csv, `train/{patient}_{left,right}.jpeg`, grouped by patient.

    root: the folder with the table and `train/`. Raises UserError on a name of another form.
    """
    file, table = read_found(root, *TABLES)
    names = column(table, "image", file)
    parts = names.str.extract(r"^(?P<patient>\d+)_(?P<eye>left|right)$")
    if parts["eye"].isna().any():
        raise UserError(
            f"{file}: column 'image' has the value '{names[parts['eye'].isna()].iloc[0]}'; allowed "
            "is the form 10_left."
        )
    return build_image_table(
        entry,
        file,
        ids=names,
        paths="train/" + names + ".jpeg",
        groups=parts["patient"],
        truth=named_labels(entry, column(table, "level", file), file),
        subgroups={"publisher_split": "train", "eye": parts["eye"]},
    )
