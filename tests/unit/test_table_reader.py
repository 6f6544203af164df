"""Any table with ids, paths and labels is a data set; what is wrong with it is reported."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.core.files import read_table, write_table
from crsbench.data.manifest import Manifest, read_manifest, write_manifest
from crsbench.data.readers import read_images

Entry = Callable[..., DatasetEntry]
ImageSet = Callable[..., Path]


def rows(*labels: str, **columns: list[Any]) -> list[dict[str, Any]]:
    """A table row for each label: ids i0, i1, … and files i0.png, i1.png, …"""
    table = [
        {"id": f"i{index}", "path": f"i{index}.png", "label": label}
        for index, label in enumerate(labels)
    ]
    for name, values in columns.items():
        for row, value in zip(table, values, strict=True):
            row[name] = value
    return table


def manifest_of(file: Path, entry: DatasetEntry, root: Path) -> Manifest:
    images = file.with_name(f"{file.stem}-images.parquet")
    write_manifest(file, images, entry, root, max_pixels=10**6, workers=1)
    return read_manifest(file)


COLUMNS = {"id": "id", "path": "path", "label": "label"}


def test_labels_become_one_hot_in_the_order_of_the_classes(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    table = image_set(tmp_path, rows("b", "a", "b"))
    frame = read_images(table_entry(), table.parent).frame
    assert np.stack(frame["labels"]).tolist() == [[0, 1], [1, 0], [0, 1]]


def test_joined_labels_become_multi_hot_and_listed_others_are_ignored(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    table = image_set(tmp_path, rows("a|x", "b|a", "x"))
    entry = table_entry(task="multilabel", separator="|", ignore=["x"])
    frame = read_images(entry, table.parent).frame
    assert np.stack(frame["labels"]).tolist() == [[1, 0], [1, 1], [0, 0]]


def test_a_column_a_label_of_zeros_and_ones(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    table = image_set(tmp_path, rows("", "", A=[1, 0], B=["0.0", "1.0"]))
    columns = {"id": "id", "path": "path", "labels": {"b": "B", "a": "A"}}
    frame = read_images(table_entry(task="multilabel", columns=columns), table.parent).frame
    assert np.stack(frame["labels"]).tolist() == [[1, 0], [0, 1]]


def test_parquet_and_csv_tables_read_alike(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    table = image_set(tmp_path, rows("1", "2", patient=[7, None]))
    pd.DataFrame(rows(1, 2, patient=[7, None])).to_parquet(tmp_path / "table.parquet")
    entry = table_entry(classes=["1", "2"], columns={**COLUMNS, "group": "patient"})
    from_csv = read_images(entry, table.parent).frame
    entry.spec["table"] = "table.parquet"
    from_parquet = read_images(entry, tmp_path).frame
    assert from_parquet["group"].tolist() == ["group:7", "image:i1"]
    assert np.stack(from_csv["labels"]).tolist() == np.stack(from_parquet["labels"]).tolist()


def test_where_keeps_the_rows_with_that_value(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    table = image_set(tmp_path, rows("a", "b", "a", view=["PA", "AP", "PA"]))
    frame = read_images(table_entry(where={"view": "PA"}), table.parent).frame
    assert frame["image_id"].tolist() == ["i0", "i2"]
    either = read_images(table_entry(where={"view": ["AP", "LL"]}), table.parent)
    assert either.frame["image_id"].tolist() == ["i1"]
    assert either.left_out == {"not selected by `where`": 2}
    with pytest.raises(UserError, match="no row is left for data set 'small'"):
        read_images(table_entry(where={"view": "LL"}), table.parent)


def test_equal_files_share_a_group_and_so_do_chains_of_them(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    # i0 and i1 are one patient, i1 and i2 one file, i3 alone
    table = image_set(
        tmp_path / "small",
        rows("a", "b", "a", "b", patient=["p", "p", "q", "r"], content=[0, 1, 1, 2]),
    )
    entry = table_entry(columns={**COLUMNS, "group": "patient", "subgroups": ["patient"]})
    manifest = manifest_of(tmp_path / "manifest.parquet", entry, table.parent)
    assert manifest.groups.tolist() == ["group:p", "group:p", "group:p", "group:r"]
    assert manifest.subgroups["patient"].tolist() == ["p", "p", "q", "r"]


def test_a_manifest_is_the_same_bytes_for_shuffled_rows(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    table = image_set(tmp_path, rows("a", "b", "a", "b", patient=["p", "p", "q", "r"]))
    entry = table_entry(columns={**COLUMNS, "group": "patient"})
    manifest_of(tmp_path / "one.parquet", entry, table.parent)
    frame = pd.read_csv(table).iloc[[2, 0, 3, 1]]
    frame.to_csv(table, index=False)
    manifest_of(tmp_path / "two.parquet", entry, table.parent)
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def _drop(column: str) -> Callable[[Path], None]:
    return lambda table: pd.read_csv(table).drop(columns=column).to_csv(table, index=False)


def _cell(column: str, value: Any) -> Callable[[Path], None]:
    def change(table: Path) -> None:
        frame = pd.read_csv(table, dtype=str)
        frame.loc[1, column] = value
        frame.to_csv(table, index=False)

    return change


@pytest.mark.parametrize(
    ("harm", "reported"),
    [
        (_drop("label"), r"has no column 'label'.*it has: id, path"),
        (_drop("path"), r"has no column 'path'"),
        (_cell("id", "i0"), r"ids must be unique, 'i0' occurs more than once"),
        (_cell("id", None), r"1 rows have no image id"),
        (_cell("label", "c"), r"column 'label' has the value 'c' in row 2.*allowed: a, b"),
        (_cell("label", None), r"column 'label' has the value '' in row 2"),
        (
            _cell("path", "gone.png"),
            r"1 of 3 images are missing or damaged, the first is 'gone.png'",
        ),
        (_cell("path", "/etc/passwd"), r"image path '/etc/passwd' must be relative"),
        (_cell("path", "../i0.png"), r"image path '../i0.png' must be relative"),
        (lambda table: table.unlink(), r"table.csv cannot be read as a table"),
        (lambda table: table.write_text(""), r"table.csv cannot be read as a table"),
    ],
)
def test_a_wrong_table_is_reported_and_leaves_no_manifest(
    harm: Callable[[Path], None],
    reported: str,
    table_entry: Entry,
    image_set: ImageSet,
    tmp_path: Path,
) -> None:
    table = image_set(tmp_path / "small", rows("a", "b", "a"))
    harm(table)
    output = tmp_path / "out" / "manifest.parquet"
    with pytest.raises(UserError, match=reported) as error:
        manifest_of(output, table_entry(), table.parent)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("out/*.parquet"))


def test_a_missing_image_root_is_reported(table_entry: Entry, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"image root .*nowhere is not a folder"):
        read_images(table_entry(), tmp_path / "nowhere")


def test_a_label_column_that_is_not_binary_is_reported(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    table = image_set(tmp_path, rows("", "", A=[1, -1], B=[0, 1]))
    columns = {"id": "id", "path": "path", "labels": {"b": "B", "a": "A"}}
    with pytest.raises(UserError, match="label column 'A' has the value '-1'; allowed: 0 and 1"):
        read_images(table_entry(task="multilabel", columns=columns), table.parent)


def test_ids_with_spaces_and_letters_of_other_alphabets_are_kept(
    table_entry: Entry, tmp_path: Path
) -> None:
    folder = tmp_path / "Bilder über Haut"
    folder.mkdir()
    Image.new("RGB", (20, 20)).save(folder / "ein bild ä.png")
    pd.DataFrame({"id": ["läsion 1"], "path": ["ein bild ä.png"], "label": ["a"]}).to_csv(
        folder / "table.csv", index=False
    )
    assert manifest_of(tmp_path / "m.parquet", table_entry(), folder).image_ids.tolist() == [
        "läsion 1"
    ]


def test_data_sets_from_the_same_table_have_comparable_groups(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    root = image_set(tmp_path / "small", rows("a", "b", "a", view=["PA", "AP", "PA"])).parent
    pa = manifest_of(tmp_path / "pa.parquet", table_entry(where={"view": "PA"}), root)
    ap = manifest_of(tmp_path / "ap.parquet", table_entry(where={"view": "AP"}), root)
    other = manifest_of(tmp_path / "other.parquet", table_entry(root="other"), root)
    assert pa.group_namespace == ap.group_namespace != other.group_namespace


def test_a_manifest_of_another_release_is_refused(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    file = tmp_path / "manifest.parquet"
    manifest_of(file, table_entry(), image_set(tmp_path / "small", rows("a", "b")).parent)
    frame, metadata = read_table(file)
    write_table(file, frame.drop(columns="dropped"), metadata)
    with pytest.raises(UserError, match="manifest of another release; delete it and rerun"):
        read_manifest(file)


PLAIN = "id,path,label\n" + "".join(f"i{n},i{n}.png,{'ab'[n % 2]}\n" for n in range(6))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        # names of columns
        (PLAIN.replace("id,path,label", "id,path,label,label"), "'label' more than once"),
        (PLAIN.replace("id,path,label", "id,path,id"), "'id' more than once"),
        (PLAIN.replace("id,path,label", "id,path, id "), "'id' more than once"),
        # cells of a row
        (PLAIN.replace("a\n", "a,\n"), "line 2 has 4 cells and the header 3"),
        (PLAIN.replace("i3.png", "i,3.png"), "line 5 has 4 cells and the header 3"),
        (PLAIN[:-5], "line 7 has 2 cells and the header 3"),
        (PLAIN.replace(",", ";"), "separated by ';'"),
        (PLAIN.replace(",", "\t"), r"separated by '\\t'"),
        # rows
        (PLAIN + PLAIN, "line 8 is the header once more"),
        (PLAIN + "\ufeff" + PLAIN, "line 8 is the header once more"),
        # quotation marks
        (PLAIN.replace("i1.png", '"i1.png'), "begins in line 3: unexpected end of data"),
        (PLAIN.replace("i1,", '"i1,').replace("i4,", 'i4",'), "line 3 has .* cells|further rows"),
        (PLAIN.replace(",b\n", ',"b\n', 1).replace(",b\n", ',b"\n', 1), "holds 2 further rows"),
        (PLAIN.replace("i1.png", '"i1".png'), "begins in line 3: ',' expected after '\"'"),
        # other files
        (b"PK\x03\x04" + bytes(50), "an Excel workbook or another zip file"),
        (b"\xd0\xcf\x11\xe0" + bytes(50), "an Excel workbook"),
        (b"\n <!DOCTYPE html><html><body>Log in</body></html>", "HTML or XML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a Git LFS pointer"),
        (b"\x1f\x8b\x08\x00", "a gzipped file"),
        # encodings
        (PLAIN.encode("utf-16"), "UTF-16 text"),
        (PLAIN.encode("utf-16-le"), "line 1 has a NUL byte"),
        (PLAIN.replace("i2,", "i2\0,").encode(), "line 4 has a NUL byte"),
        (PLAIN.replace("i2.png", "ä.png").encode("latin-1"), "line 4 is not UTF-8"),
    ],
)
def test_a_table_that_is_not_strict_is_refused_by_line(
    table_entry: Entry, tmp_path: Path, content: str | bytes, said: str
) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "table.csv").write_bytes(raw)
    with pytest.raises(UserError, match=f"table.csv cannot be read as a table: .*{said}") as error:
        read_images(table_entry(), tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        "\ufeff" + PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r"),
        PLAIN.replace("\n", "\n\n"),
        PLAIN + ",,\n",
        PLAIN.replace("id,path,label", " id , path,label\u00a0").replace("a\n", " a\n"),
        PLAIN.replace("\n", ",\n"),
        PLAIN.replace("label\n", "label,note\n")
        .replace("b\n", 'b,"two\nlines, ""quoted"""\n')
        .replace("a\n", "a,\n"),
    ],
)
def test_forms_that_leave_no_doubt_are_read(
    table_entry: Entry, tmp_path: Path, content: str
) -> None:
    (tmp_path / "table.csv").write_bytes(content.encode())
    frame = read_images(table_entry(), tmp_path).frame
    assert frame["image_id"].tolist() == [f"i{n}" for n in range(6)]
    assert np.stack(frame["labels"]).argmax(axis=1).tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("cell", ["True", "true", "TRUE", "1", "1.0"])
@pytest.mark.parametrize("wanted", [True, "true", 1, 1.0, [True]])
def test_where_takes_every_spelling_of_a_truth_value(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path, cell: str, wanted: Any
) -> None:
    image_set(tmp_path, rows("a", "b", "a", frontal=[cell, "no", cell]))
    frame = read_images(table_entry(where={"frontal": wanted}), tmp_path).frame
    assert frame["image_id"].tolist() == ["i0", "i2"]


def test_where_that_finds_nothing_shows_what_there_is(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    image_set(tmp_path, rows("a", "b", "a", view=["PA", "AP", "PA"], site=["x", "y", "z"]))
    with pytest.raises(UserError, match=r"asks 'view' for LL or pa; .* 'PA' \(2\), 'AP' \(1\)"):
        read_images(table_entry(where={"view": ["LL", "pa"]}), tmp_path)
    with pytest.raises(UserError, match=r"asks 'site' for y; .*: 'x' \(1\), 'z' \(1\)"):
        read_images(table_entry(where={"view": "PA", "site": "y"}), tmp_path)


def test_all_wrong_columns_stand_in_one_message(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    image_set(tmp_path, rows("a", "b", patient=["p", "q"]))
    columns = {
        "id": "id",
        "path": "file",
        "label": "labl",
        "group": "patient",
        "subgroups": ["sex"],
    }
    with pytest.raises(UserError) as error:
        read_images(table_entry(columns=columns, where={"view": "PA"}), tmp_path)
    for name in ("'file'", "'labl' (did you mean 'label'?)", "'sex'", "'view'"):
        assert name in str(error.value)


def test_another_hospitals_labels_are_mapped(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    image_set(tmp_path, rows("Adenoma", "benign", "adenoma", "b"))
    names = {"Adenoma": "a", "adenoma": "a", "benign": "b"}
    frame = read_images(table_entry(label_map=names), tmp_path).frame
    assert np.stack(frame["labels"]).tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
    image_set(tmp_path, rows("0", "1.0", "0.0"))
    frame = read_images(table_entry(label_map={0: "a", 1: "b"}), tmp_path).frame
    assert np.stack(frame["labels"]).tolist() == [[1, 0], [0, 1], [1, 0]]
    image_set(tmp_path, rows("a", "Benign"))
    with pytest.raises(UserError, match=r"the value 'Benign' in row 2.*mean 'benign'.*label_map"):
        read_images(table_entry(label_map=names), tmp_path)


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("I1.PNG", "i1.png"),
        ("i1.jpg", "i1.png"),
        ("i1", "i1.png"),
        ("sub\\deep.png", "sub/deep.png"),
        ("Sub/deep.jpeg", "sub/deep.png"),
        ("i01.png", "i1.png"),
    ],
)
def test_a_missing_image_names_its_look_alike(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path, path: str, there: str
) -> None:
    table = image_set(tmp_path / "small", rows("a", "b", "a"))
    (tmp_path / "small/sub").mkdir()
    Image.new("L", (9, 9)).save(tmp_path / "small/sub/deep.png")
    _cell("path", path)(table)
    with pytest.raises(UserError) as error:
        manifest_of(tmp_path / "out/manifest.parquet", table_entry(), table.parent)
    assert f"'{path}' (the file is missing; '{there}' is there)" in str(error.value)


@pytest.mark.parametrize("other", ["LABEL", "la\u200bbel", "label.1"])
def test_a_column_that_is_there_twice_but_for_its_spelling_is_refused(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path, other: str
) -> None:
    table = image_set(tmp_path, rows("a", "b", **{other: ["b", "a"]}))
    with pytest.raises(UserError, match="one but for their spelling"):
        read_images(table_entry(), table.parent)
    renamed = table_entry(columns={"id": "id", "path": "path", "label": other})
    assert other != "label.1" or len(read_images(renamed, table.parent).frame) == 2


@pytest.mark.parametrize("other", ["pa", "P A", "'PA'"])
def test_a_value_that_only_its_spelling_keeps_from_where_is_refused(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path, other: str
) -> None:
    table = image_set(tmp_path, rows("a", "b", "a", view=["PA", other, "AP"]))
    with pytest.raises(UserError, match=r"column 'view' .* in `where` of data set 'small'"):
        read_images(table_entry(where={"view": "PA"}), table.parent)
    both = read_images(table_entry(where={"view": [" PA ", other]}), table.parent)
    assert both.frame["image_id"].tolist() == ["i0", "i1"]
    kept = table_entry(where={"view": "PA"}, similar_names="keep")
    assert read_images(kept, table.parent).frame["image_id"].tolist() == ["i0"]


@pytest.mark.parametrize("key", ["id", "path", "patient"])
def test_a_line_break_within_a_name_is_refused(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path, key: str
) -> None:
    table = image_set(tmp_path, rows("a", "b", patient=["p", "q"], note=["x\ny", "z"]))
    frame = pd.read_csv(table)
    entry = table_entry(columns={**COLUMNS, "group": "patient"})
    assert len(read_images(entry, table.parent).frame) == 2  # free text may have line breaks
    frame.loc[1, key] = "p\n1"
    frame.to_csv(table, index=False)
    with pytest.raises(UserError, match=rf"column '{key}' has the value .*with a line break"):
        read_images(entry, table.parent)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"\xef\xbb\xbf \n", "it is empty"),
        ("id,path".encode("utf-32"), "UTF-32"),
        (b"\n\nid,path,label\n", "its first line is empty"),
    ],
)
def test_a_file_that_holds_no_table_says_what_it_is(
    table_entry: Entry, tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_images(table_entry(), tmp_path)


def test_an_old_end_of_file_mark_is_no_row(
    table_entry: Entry, image_set: ImageSet, tmp_path: Path
) -> None:
    table = image_set(tmp_path, rows("a", "b"))
    table.write_bytes(table.read_bytes() + b"\x1a")
    assert len(read_images(table_entry(), table.parent).frame) == 2
