"""A data set with labels and no images: manifest, audit, doctor, runs on embeddings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from crsbench.config.load import load_config
from crsbench.core.errors import UserError
from crsbench.core.files import read_json, read_table, write_table
from crsbench.data.audit import write_audit
from crsbench.data.manifest import read_contents, read_manifest, write_manifest
from crsbench.data.readers import read_images
from crsbench.data.splits import write_split, write_test
from crsbench.evaluation.runs import RunFiles, predict_run
from crsbench.operations.doctor import dataset_row, find_images
from worlds.embeddings import OWN, write
from worlds.projects import make_project
from worlds.publishers import Entry, write_chexpert
from worlds.runs import fitted, write_world


def labels_only(folder: Path, n: int = 60) -> Path:
    """A table of images that do not exist, two a patient."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(f"{k:02d}", f"gone/{k}.png", "ab"[k // 2 % 2], f"p{k // 2}") for k in range(n)]
    table = pd.DataFrame(rows, columns=["id", "path", "label", "patient"])
    table.to_csv(folder / "table.csv", index=False)
    return folder


def test_the_manifest_needs_the_table_alone(table_entry: Entry, tmp_path: Path) -> None:
    columns = {"id": "id", "path": "path", "label": "label", "group": "patient"}
    entry = table_entry(without_images=True, columns=columns)
    root = labels_only(tmp_path / "small")
    manifest_file, images, test, split = (
        tmp_path / f"{name}.parquet" for name in ("manifest", "images", "test", "split")
    )
    write_manifest(manifest_file, images, entry, root, max_pixels=100, workers=1)
    manifest = read_manifest(manifest_file)
    assert len(manifest.image_ids) == 60
    assert manifest.groups[:3].tolist() == ["group:p0", "group:p0", "group:p1"]
    assert not manifest.dropped.any()
    assert set(read_contents(manifest_file)) == {b""}

    write_test(test, manifest_file, 0.2)
    write_split(split, manifest_file, test, 0, [100], 0.125)
    targets = {"other": manifest_file}
    write_audit(tmp_path / "audit.json", entry, manifest_file, images, {0: split}, targets)
    audit = json.loads((tmp_path / "audit.json").read_text("utf-8"))
    assert audit["files"] is None
    assert audit["duplicates"] is None
    assert audit["shift_targets"]["other"] == {
        **{"images": 60, "also_in_source": None, "also_fitted_on": None}
    }
    assert (audit["rows"]["found"], audit["groups"]["count"]) == (60, 30)
    assert audit["groups"]["crossing_parts"] == {"0": 0}

    with pytest.raises(UserError, match="60 of 60 images are missing or damaged"):
        write_manifest(
            manifest_file, images, table_entry(columns=columns), root, max_pixels=9, workers=1
        )


def test_chexpert_has_its_labels_without_a_folder_of_images(
    entry_of: Entry, tmp_path: Path
) -> None:
    whole = write_chexpert(tmp_path / "whole")
    tables = tmp_path / "tables"
    tables.mkdir()
    for name in ("train.csv", "valid.csv"):
        (tables / name).write_bytes((whole / name).read_bytes())
    wanted = read_images(entry_of("chexpert"), whole).frame
    found = read_images(entry_of("chexpert", without_images=True), tables).frame
    pd.testing.assert_frame_equal(found, wanted)


def test_unknown_contents_are_not_equal_contents(tmp_path: Path) -> None:
    """Source and target without images: no image of the target counts as one trained on."""
    world = write_world(tmp_path, "multiclass")
    target = write_world(tmp_path / "target", "multiclass", "elsewhere")
    for file in (world.manifest_file, target.manifest_file):
        frame, metadata = read_table(file)
        write_table(file, frame.assign(content_sha256=""), metadata)
    features = world.features("clean", world.matrix)
    external = target.features("mimic", target.matrix)
    probe = fitted(world, features)[100]
    names = probe, external, world.manifest_file, world.split_file, target.manifest_file
    assert len(predict_run(RunFiles(*map(str, names))).image_ids) == 400


# --- the config ---------------------------------------------------------------------------------


@pytest.fixture
def configured(plain_demo: Callable[[], Any], home: Path, tmp_path: Path) -> Callable[..., Any]:
    """The demo with a data set `small` of labels only and the encoder `mine`, with changes."""

    def make(encoders: list[str], entry: dict[str, Any], **changes: Any) -> Any:
        shipped = yaml.safe_load((home / "config/encoders.yaml").read_text("utf-8"))
        (tmp_path / "encoders.yaml").write_text(yaml.safe_dump({**shipped, "mine": OWN}))
        (tmp_path / "datasets.yaml").write_text(yaml.safe_dump({"small": entry}))
        content = plain_demo() | {"data_root": str(tmp_path), "encoders": encoders}
        content["studies"]["baseline_encoder"] = "mine"
        content.pop("report", None)
        content |= {f"{kind}_registry": str(tmp_path / f"{kind}s.yaml") for kind in KINDS}
        return load_config(content | {"datasets": ["small"]} | changes, home)

    return make


KINDS = ("encoder", "dataset")


def test_every_encoder_must_bring_embeddings(
    configured: Callable[..., Any], table_entry: Entry, tmp_path: Path
) -> None:
    entry = dict(table_entry(without_images=True).spec)
    sentence = "'small' is without_images, and the encoder 'resnet18_untrained' has to see them"
    with pytest.raises(UserError, match=sentence):
        configured(["mine", "resnet18_untrained"], entry)
    with pytest.raises(UserError, match=r"report.gallery names 'small'.*without_images"):
        configured(["mine"], entry, report={"gallery": ["small"]})
    with pytest.raises(UserError, match="'damaged_images' of small has no meaning beside"):
        configured(["mine"], entry | {"damaged_images": "stop"})
    with pytest.raises(UserError, match="without_images"):
        configured(["mine"], entry | {"without_images": False})

    config = configured(["mine"], entry)
    labels_only(tmp_path / "small")
    row = dataset_row(config.datasets["small"], find_images(config, config.datasets["small"]))
    assert (row.light, row.cells["images"]) == ("green", "60 (labels only)")


# --- through the workflow -----------------------------------------------------------------------


def test_embeddings_are_scored_where_there_was_never_an_image(
    snakemake: Callable[..., subprocess.CompletedProcess[str]], home: Path, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "p", home, snakemake)
    for image in (project.folder / "data/tints").glob("*.png"):
        image.unlink()
    project.edit("encoders", lambda registry: registry.update(mine=OWN))
    project.edit("datasets", lambda sets: sets["tints"].update(without_images=True))
    small = {"weights_root": ".", "encoders": ["mine"], "datasets": ["tints"], "seeds": [0]}
    small |= {"fractions": [100], "perturbations": {"jpeg": [50]}}

    def shrink(config: dict[str, Any]) -> None:
        config.update(small)
        for section in ("report", "depth_sweep", "adaptation", "recalibration"):
            config.pop(section, None)

    project.edit("config", shrink)
    ids = np.array([f"t{index:03d}" for index in range(90)])
    vectors = np.random.default_rng(0).normal(size=(90, 3)) + np.eye(3)[np.arange(90) % 3] * 4
    for condition in ("clean", "jpeg-1"):
        write(project.folder / f"mine/tints/{condition}.parquet", ids, vectors)
    ended = project.run("--", "runs", "audits")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert read_json(project.results / "data/tints/audit.json")["duplicates"] is None
    found = read_json(project.results / "runs/mine/tints/seed0/jpeg-1/frac100.json")
    assert found["macro_auroc"] > 0.9
