"""Names, paths and files that want more than they may: refused in one sentence."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from crsbench.config.load import load_config
from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.readers import read_images, tables
from crsbench.data.scan import scan_image
from crsbench.images.decoding import decode
from worlds.dicom import write_dicom

Entry = Callable[..., DatasetEntry]
Settings = Callable[[str], dict[str, Any]]


# --- names --------------------------------------------------------------------------------------


def load_with(folder: Path, home: Path, settings: dict[str, Any], encoders: str) -> None:
    (folder / "encoders.yaml").write_text(encoders, encoding="utf-8")
    load_config({**settings, "encoder_registry": str(folder / "encoders.yaml")}, home)


ENTRY = "{title: T, group: general, licence: MIT}"


@pytest.mark.parametrize(
    "name",
    [
        *("../up", "a/b", ".hidden", "", "-rf", "a b", "ä", "a{b}", "a*", "$(x)", "a;b", "a\\nb"),
        *("a\\n", "x" * 101, "a\\0"),
    ],
)
def test_a_name_that_could_break_a_path_or_a_command_is_refused(
    name: str, settings: Settings, home: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"encoders\.yaml: the name \".*\" is not allowed; a name"):
        load_with(tmp_path, home, settings("demo"), f'"{name}": {ENTRY}\n')


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"5: {ENTRY}\n", r"the name 5 is not allowed; a name is text of letters"),
        (f"true: {ENTRY}\n", r"the name true is not allowed"),
        (f"net: {ENTRY}\nnet: {ENTRY}\n", r"is not valid YAML: the key 'net' stands there twice"),
        ("net: {title: T, group: general, title: U}\n", "the key 'title' stands there twice"),
        (f"Net: {ENTRY}\nnet: {ENTRY}\n", "names 'Net' and 'net' differ only in upper and lower"),
    ],
)
def test_names_that_collide_are_refused(
    text: str, sentence: str, settings: Settings, home: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        load_with(tmp_path, home, settings("demo"), text)


def test_a_registry_may_share_values_by_yaml_anchors(
    settings: Settings, home: Path, tmp_path: Path
) -> None:
    shared = f"a: &a {ENTRY}\nb: {{<<: *a, title: B}}\nc: {{<<: *a, title: C}}\n"
    file = tmp_path / "encoders.yaml"
    file.write_text((home / "config/encoders.yaml").read_text("utf-8") + shared, encoding="utf-8")
    changed = settings("config") | {"encoders": ["b", "a"], "encoder_registry": str(file)}
    config = load_config(changed, home)
    assert [entry.title for entry in config.encoders.values()] == ["B", "T"]


# --- image paths --------------------------------------------------------------------------------


def table_of(folder: Path, path: str) -> None:
    folder.mkdir()
    (folder / "table.csv").write_text(f'id,path,label\ni0,"{path}",a\n', encoding="utf-8")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    file = tmp_path / "secret/image.png"
    file.parent.mkdir()
    Image.new("RGB", (8, 8)).save(file)
    return file


@pytest.mark.parametrize("path", ["../secret/image.png", "{outside}", "x/../../secret/image.png"])
def test_an_image_path_may_not_leave_the_root_unless_that_is_allowed(
    path: str, table_entry: Entry, tmp_path: Path, outside: Path
) -> None:
    path = path.format(outside=outside)
    table_of(tmp_path / "root", path)
    with pytest.raises(UserError, match="must be relative to the data set's folder and stay"):
        read_images(table_entry(), tmp_path / "root")
    allowed = table_entry(paths_may_leave_root=True)
    assert read_images(allowed, tmp_path / "root").frame["path"].tolist() == [path]


@pytest.mark.parametrize("linked", ["file", "folder", "chain"])
def test_a_link_may_not_lead_out_of_the_root_unless_that_is_allowed(
    linked: str, table_entry: Entry, tmp_path: Path, outside: Path
) -> None:
    root = tmp_path / "root"
    table_of(root, "image.png" if linked == "file" else "images/image.png")
    if linked == "file":
        (root / "image.png").symlink_to(outside)
    elif linked == "folder":
        (root / "images").symlink_to(outside.parent)
    else:
        (root / "images").symlink_to("further")
        (root / "further").symlink_to("../secret")
    with pytest.raises(UserError, match=r"image\.png' is linked to .*/secret/image\.png"):
        read_images(table_entry(), root)
    assert len(read_images(table_entry(paths_may_leave_root=True), root).frame) == 1


def test_the_root_may_be_a_link_and_links_may_stay_within_it(
    table_entry: Entry, tmp_path: Path, outside: Path
) -> None:
    table_of(tmp_path / "real", "images/image.png")
    (tmp_path / "real/images").symlink_to("stored")
    (tmp_path / "real/stored").mkdir()
    (tmp_path / "real/stored/image.png").write_bytes(outside.read_bytes())
    (tmp_path / "root").symlink_to("real")
    assert len(read_images(table_entry(), tmp_path / "root").frame) == 1


# --- bombs --------------------------------------------------------------------------------------


def test_an_image_that_would_unpack_to_too_many_pixels_is_not_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "bomb.png"
    Image.new("1", (9000, 9000)).save(file)
    assert file.stat().st_size < 100_000
    with pytest.raises(UserError, match=r"has 9000 × 9000 pixels, more than image\.max_pixels"):
        decode(file, 10**6)


def test_the_configs_limit_of_pixels_governs_pillows(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Pillow's own hard stop, 178,956,970 pixels, lies below the limit of the shipped configs."""
    file = tmp_path / "image.png"
    for side in (10, 11, 15, 40):  # as allowed, more, more than twice as much
        Image.new("L", (side, side)).save(file)
        if side == 10:
            assert decode(file, 100)[0].size == (10, 10)
        else:
            with pytest.raises(UserError, match=r"image\.max_pixels = 100"):
                decode(file, 100)
    size = struct.pack(">II", 14_000, 14_000)
    header = b"IHDR" + size + bytes([8, 0, 0, 0, 0])
    whole = file.read_bytes()
    chunk = header + struct.pack(">I", zlib.crc32(header))
    file.write_bytes(whole[:12] + chunk + whole[12 + len(chunk) :])
    with pytest.raises(UserError, match=r"cannot be decoded: .*truncated"):
        decode(file, 200_000_000)
    with pytest.raises(UserError, match=r"more pixels than image\.max_pixels = 1000 "):
        decode(file, 1000)
    assert not [w for w in recwarn if issubclass(w.category, Image.DecompressionBombWarning)]


def test_a_png_with_a_bomb_among_its_texts_is_refused(tmp_path: Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return len(content).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    file = tmp_path / "bomb.png"
    Image.new("RGB", (8, 8)).save(file)
    whole = file.read_bytes()
    bomb = chunk(b"zTXt", b"comment\0\0" + zlib.compress(b"\0" * 200_000_000))
    file.write_bytes(whole[:33] + bomb + whole[33:])
    with pytest.raises(UserError, match=r"cannot be decoded: Decompressed data too large"):
        decode(file, 10**6)


def test_a_file_too_large_for_an_image_is_not_read_into_memory(tmp_path: Path) -> None:
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(50 * 10**9)  # a hole: no disk is used
    found = scan_image(tmp_path, "huge.png", max_pixels=10**6)
    assert found.error == "the file has 50000000000 bytes, too many for image.max_pixels"


def test_a_dicom_file_of_many_frames_or_deflated_is_not_unpacked(tmp_path: Path) -> None:
    many = write_dicom(tmp_path / "many.dcm", NumberOfFrames=100_000)
    with pytest.raises(UserError, match="it has 100000 frames; allowed is one image"):
        decode(many, 10**6)
    deflated = write_dicom(tmp_path / "deflated.dcm", syntax="1.2.840.10008.1.2.1.99")
    with pytest.raises(UserError, match="it is deflated as a whole, which is not read"):
        decode(deflated, 10**6)


def test_a_gzipped_table_is_unpacked_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "table.csv.gz"
    file.write_bytes(gzip.compress(b"id,path\n1,a.png\n"))
    assert tables.read_text_table(file)["path"].tolist() == ["a.png"]
    monkeypatch.setattr(tables, "MAX_TABLE_BYTES", 10**6)
    file.write_bytes(gzip.compress(b"id,path\n" + b"0" * 10**6))
    with pytest.raises(UserError, match=r"table\.csv\.gz cannot be read as a table: unpacked it"):
        tables.read_text_table(file)


# --- code ---------------------------------------------------------------------------------------


def test_nothing_unpickles_evaluates_or_goes_through_a_shell(home: Path) -> None:
    """`torch.load` reads checkpoints with `weights_only`; `python` encoders import by design."""
    forbidden = ("pickle.load", "allow_pickle=True", "weights_only=False", "shell=True")
    forbidden += ("os.system", " eval(", " exec(", "UnsafeLoader", "FullLoader")
    sources = [*home.glob("src/**/*.py"), *home.glob("workflow/**/*.py"), home / "Snakefile"]
    sources += home.glob("workflow/rules/*.smk")
    assert len(sources) > 60
    for source in sources:
        text = source.read_text("utf-8")
        assert [word for word in forbidden if word in text] == [], source
        assert "\n    shell:" not in text, source
        assert text.count("torch.load(") == text.count("weights_only=True"), source


def test_every_dependency_is_pinned(home: Path) -> None:
    """So that `pip-audit -r constraints.txt` sees all that is installed (SECURITY.md)."""
    lines = (home / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all("==" in pin for pin in pins)
    pinned = {pin.partition("==")[0].lower().replace("_", "-") for pin in pins}
    from importlib.metadata import requires

    for requirement in requires("crsbench"):
        name = requirement.split(";")[0].strip()
        for sign in "[<>=!~ ":
            name = name.partition(sign)[0]
        assert name.lower().replace("_", "-") in pinned | {"crsbench"}, requirement
