"""Own embeddings: a user's files, checked, take an encoder's place; no image, no torch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from crsbench.config.grid import Grid
from crsbench.config.load import load_config
from crsbench.config.model import Config, DatasetEntry, EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.files import read_json
from crsbench.core.hashing import sha256_of_file
from crsbench.data.manifest import Manifest, read_manifest, write_manifest
from crsbench.data.splits import read_test, write_test
from crsbench.encoders import load_encoder
from crsbench.features.embeddings import read_embeddings, take_embeddings
from crsbench.features.settings import ExtractionSettings
from crsbench.features.store import read_features
from crsbench.operations.doctor import encoder_row
from worlds.embeddings import OWN, write
from worlds.projects import make_project, refused

WIDTH = 3
NPY = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }".ljust(128)


def vectors_of(ids: np.ndarray, condition: str) -> np.ndarray:
    """(n, 3) float32 that differ by image and condition."""
    first = np.array([int(image_id) for image_id in ids], dtype=np.float32)
    return np.stack([first, first**2, np.full_like(first, len(condition))], axis=1)


class World:
    """A data set `small` of 20 images, and embeddings of its clean and one degraded condition."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = folder
        self.config = config
        self.manifest: Manifest = read_manifest(folder / "manifest.parquet")
        self.is_test = read_test(folder / "test.parquet", self.manifest)
        for condition in ("clean", "jpeg-1"):
            self.write(condition, self.manifest.image_ids)

    @property
    def pattern(self) -> str:
        return self.config.encoders["mine"].spec["embeddings"]

    def file(self, condition: str) -> Path:
        return self.folder / self.pattern.format(dataset="small", condition=condition)

    def write(self, condition: str, ids: np.ndarray, vectors: np.ndarray | None = None) -> None:
        write(self.file(condition), ids, vectors_of(ids, condition) if vectors is None else vectors)

    def take(self, *conditions: str, test: bool = True) -> dict[str, Path]:
        outputs = {name: self.folder / "out" / f"{name}.arrow" for name in conditions}
        take_embeddings(
            ExtractionSettings.of(self.config, ["mine"], ["small"]),
            "small",
            manifest_file=self.folder / "manifest.parquet",
            test_file=self.folder / "test.parquet" if test else None,
            outputs=list(outputs.values()),
        )
        return outputs


@pytest.fixture
def world(
    plain_demo: Callable[[], dict[str, Any]],
    home: Path,
    table_entry: Callable[..., DatasetEntry],
    image_set: Callable[..., Path],
    tmp_path: Path,
) -> Callable[..., World]:
    def make(**changes: Any) -> World:
        entry = table_entry()
        rows = [{"id": f"{n:02d}", "path": f"{n}.png", "label": "ab"[n % 2]} for n in range(20)]
        image_set(tmp_path / "small", rows, size=8)
        files = [tmp_path / f"{name}.parquet" for name in ("manifest", "images", "test")]
        write_manifest(*files[:2], entry, tmp_path / "small", max_pixels=2 * 10**6, workers=1)
        write_test(files[2], files[0], 0.2)
        registries = {"encoder": {"mine": {**OWN, **changes}}, "dataset": {"small": entry.spec}}
        content = plain_demo() | {"weights_root": str(tmp_path)}
        content["studies"]["baseline_encoder"] = "mine"
        for kind, registry in registries.items():
            (tmp_path / f"{kind}s.yaml").write_text(yaml.safe_dump(registry))
            content |= {f"{kind}_registry": str(tmp_path / f"{kind}s.yaml")}
            content |= {f"{kind}s": list(registry)}
        return World(tmp_path, load_config(content, home))

    return make


# --- What becomes of good files ---


@pytest.mark.parametrize("ending", ["arrow", "parquet", "npz"])
def test_embeddings_of_each_format_become_the_feature_stores_files(
    ending: str, world: Callable[..., World]
) -> None:
    mine = world(embeddings=f"mine/{{dataset}}/{{condition}}.{ending}")
    order = np.random.default_rng(0).permutation(mine.manifest.image_ids)
    mine.write("clean", order)  # in any order
    outputs = mine.take("clean", "jpeg-1")
    for condition, mask in (("clean", slice(None)), ("jpeg-1", mine.is_test)):
        features = read_features(outputs[condition])
        ids = mine.manifest.image_ids[mask]
        assert features.image_ids.tolist() == ids.tolist()
        assert (features.matrix == vectors_of(ids, condition)).all()
        assert features.metadata["weights_sha256"] == sha256_of_file(mine.file(condition))
        assert features.metadata["condition"] == condition
        assert features.metadata["dataset"] == "small"


def test_a_shift_target_is_whole_and_clean(world: Callable[..., World]) -> None:
    mine = world()
    mine.write("foreign", mine.manifest.image_ids)
    features = read_features(mine.take("foreign", test=False)["foreign"])
    assert features.image_ids.tolist() == mine.manifest.image_ids.tolist()
    assert features.metadata["condition"] == "clean"


def test_the_feature_stores_own_files_are_embeddings(world: Callable[..., World]) -> None:
    mine = world(embeddings="out/{dataset}{condition}.arrow")
    (written,) = mine.take("clean").values()
    ids, vectors = read_embeddings(written, "mine")
    assert ids.tolist() == mine.manifest.image_ids.tolist()
    assert (vectors == vectors_of(ids, "clean")).all()


def test_images_beyond_the_wanted_ones_are_reported_and_left_out(
    world: Callable[..., World], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = world()
    mine.write("clean", np.append(mine.manifest.image_ids, ["98", "99"]))
    features = read_features(mine.take("clean")["clean"])
    assert len(features.image_ids) == 20
    assert "clean.parquet holds 2 images more than are wanted" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_numbers_of_any_type_are_stored_as_float32(dtype: str, world: Callable[..., World]) -> None:
    mine = world()
    ids = mine.manifest.image_ids
    mine.write("clean", ids, vectors_of(ids, "clean").astype(dtype))
    matrix = read_features(mine.take("clean")["clean"]).matrix
    assert matrix.dtype == np.float32
    assert (matrix == vectors_of(ids, "clean")).all()


# --- What a user can get wrong ---


def test_a_missing_condition_is_one_sentence(world: Callable[..., World]) -> None:
    mine = world()
    mine.file("jpeg-1").unlink()
    with pytest.raises(UserError, match=r"'mine': the condition's file .*jpeg-1\.parquet does not"):
        mine.take("clean", "jpeg-1")


@pytest.mark.parametrize(("condition", "lost"), [("clean", 0), ("jpeg-1", None)])
def test_a_missing_image_is_named(
    condition: str, lost: int | None, world: Callable[..., World]
) -> None:
    mine = world()
    ids = mine.manifest.image_ids
    lost = int(np.flatnonzero(mine.is_test)[0]) if lost is None else lost
    mine.write(condition, np.delete(ids, lost))
    with pytest.raises(UserError, match=rf"{condition}.parquet lacks the image '{ids[lost]}' \(1"):
        mine.take("clean", "jpeg-1")
    assert not (mine.folder / "out" / f"{condition}.arrow").exists()


def test_an_image_outside_the_test_set_need_not_be_degraded(world: Callable[..., World]) -> None:
    mine = world()
    mine.write("jpeg-1", mine.manifest.image_ids[mine.is_test])
    assert len(read_features(mine.take("clean", "jpeg-1")["jpeg-1"]).image_ids) == 4


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_reported_with_its_image(
    value: float, world: Callable[..., World]
) -> None:
    mine = world()
    ids = mine.manifest.image_ids
    vectors = vectors_of(ids, "clean")
    vectors[7, 1] = value
    mine.write("clean", ids, vectors)
    with pytest.raises(UserError, match="not finite for image '07'"):
        mine.take("clean")


def test_a_number_beyond_float32_is_not_finite(world: Callable[..., World]) -> None:
    mine = world()
    ids = mine.manifest.image_ids
    vectors = vectors_of(ids, "clean").astype(float)
    vectors[7, 1] = 1e300
    mine.write("clean", ids, vectors)
    with pytest.raises(UserError, match="not finite for image '07'"):
        mine.take("clean")


def test_an_image_twice_is_reported(world: Callable[..., World]) -> None:
    mine = world()
    mine.write("clean", np.append(mine.manifest.image_ids, "03"))
    with pytest.raises(UserError, match=r"clean.parquet holds the image '03' twice"):
        mine.take("clean")


def test_another_width_than_the_clean_one_is_reported(world: Callable[..., World]) -> None:
    mine = world()
    ids = mine.manifest.image_ids
    for condition, arguments in (("jpeg-1", {}), ("foreign", {"test": False})):
        mine.write(condition, ids, np.ones((len(ids), WIDTH + 1), np.float32))
        with pytest.raises(UserError, match=rf"{condition}.parquet holds vectors of 4 numbers, th"):
            mine.take(condition, **arguments)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"id": ["00"], "features": [[1.0]]}, "image_id"),
        ({"image_id": [0], "features": [[1.0]]}, "'image_id' is of type int64"),
        ({"image_id": ["00"], "features": [1.0]}, "'features' is of type double"),
        ({"image_id": ["00"], "features": [["x"]]}, "'features' is of type list"),
        ({"image_id": ["00", None], "features": [[1.0], [1.0]]}, "1 empty cells"),
        ({"image_id": ["00", "01"], "features": [[1.0], None]}, "1 empty cells"),
        ({"image_id": ["00", "01"], "features": [[1.0], [None]]}, "1 empty values"),
        ({"image_id": ["00", "01"], "features": [[1.0], [1.0, 2.0]]}, "of 1 and of 2 numbers"),
    ],
)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_table_of_another_form_is_reported(
    columns: dict[str, list[Any]], reason: str, ending: str, tmp_path: Path
) -> None:
    file = tmp_path / f"clean.{ending}"
    table = pa.table(columns)
    if ending == "parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_file(str(file), table.schema) as sink:
            sink.write_table(table)
    with pytest.raises(UserError, match=rf"'mine': .*clean\.{ending} cannot be read \(.*{reason}"):
        read_embeddings(file, "mine")


def test_an_npz_file_is_read_without_pickle(tmp_path: Path) -> None:
    file = tmp_path / "clean.npz"
    np.savez(file, image_id=np.array(["00"], dtype=object), features=np.ones((1, 2)))
    with pytest.raises(UserError, match=r"cannot be read \(Object arrays cannot be loaded"):
        read_embeddings(file, "mine")
    np.savez(file, image_id=np.array(["00", "01"]), features=np.ones((1, 2)))
    with pytest.raises(UserError, match=r"holds 2 ids and vectors of shape \(1, 2\); wanted is"):
        read_embeddings(file, "mine")
    np.savez(file, image_id=np.array(["00"]))
    with pytest.raises(UserError, match=r"cannot be read .*features"):
        read_embeddings(file, "mine")
    np.savez(file, image_id=np.array(["00"]), features=np.array([["x"]]))
    with pytest.raises(UserError, match="'features' is an array of type <U1"):
        read_embeddings(file, "mine")


@pytest.mark.parametrize("ending", ["arrow", "parquet", "npz"])
@pytest.mark.parametrize("content", [b"", b"no such file", b"PK\x03\x04 broken", NPY])
def test_a_damaged_file_is_reported(ending: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / f"clean.{ending}"
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"clean\.{ending} cannot be read") as error:
        read_embeddings(file, "mine")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"embeddings": "mine/{condition}.npz"}, "must hold {dataset} and {condition}, once each"),
        ({"embeddings": "{dataset}{dataset}/{condition}.npz"}, "once each, and no other braces"),
        ({"embeddings": "{dataset}/{condition}{x}.npz"}, "no other braces"),
        ({"embeddings": "{dataset}/{condition}.csv"}, "allowed endings: .arrow, .parquet, .npz"),
        ({"embeddings": "{dataset}/{condition}.npz", "model": "m"}, "'model' of mine has no mean"),
        ({"library": "timm", "model": "m", "weights": "hub"}, "mine"),
    ],
)
def test_what_an_entry_of_embeddings_may_not_say(
    changes: dict[str, Any], reason: str, world: Callable[..., World]
) -> None:
    with pytest.raises(UserError) as error:
        world(**changes)
    assert reason in str(error.value)


def test_an_entry_without_its_pattern_is_reported(
    settings: Callable[[str], dict[str, Any]], home: Path, tmp_path: Path
) -> None:
    entry = {key: value for key, value in OWN.items() if key != "embeddings"}
    (tmp_path / "encoders.yaml").write_text(yaml.safe_dump({"mine": entry}))
    content = settings("demo") | {"encoders": ["mine"]}
    content |= {"encoder_registry": str(tmp_path / "encoders.yaml")}
    with pytest.raises(UserError, match="mine lacks the key 'embeddings'"):
        load_config(content, home)


def test_embeddings_are_no_model_to_load(tmp_path: Path) -> None:
    entry = EncoderEntry("mine", "Mine", "general", OWN)
    with pytest.raises(UserError, match="'mine' is a set of embeddings: there is no model"):
        load_encoder(entry, tmp_path, tmp_path, torch.device("cpu"))


def test_the_doctor_looks_for_every_condition_of_every_data_set(
    world: Callable[..., World],
) -> None:
    mine = world()
    row = encoder_row(mine.config, mine.config.encoders["mine"])
    assert row.light == "red"  # clean and jpeg-1 are there, 14 others are not
    first = mine.file("gaussian_blur-1")
    assert f"14 of its 16 files of embeddings are missing, the first is {first}." in row.advice
    for condition in Grid(mine.config).conditions("small"):
        mine.write(condition, mine.manifest.image_ids)
    row = encoder_row(mine.config, mine.config.encoders["mine"])
    assert (row.light, row.cells["weights"]) == ("green", "16 files of embeddings")


# --- Through the workflow ---


def test_embeddings_are_scored_by_the_same_workflow_without_images_or_torch(
    snakemake: Callable[..., subprocess.CompletedProcess[str]], home: Path, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "p", home, snakemake)
    project.edit("encoders", lambda registry: registry.update(mine=OWN))
    project.edit("datasets", lambda sets: sets.update(other=dict(sets["tints"])))
    project.edit("datasets", lambda sets: sets["tints"].update(shift=["other"]))
    project.edit(
        "config",
        lambda config: config.update(
            weights_root=".",
            encoders=["means", "mine"],
            datasets=["tints"],
            seeds=[0],
            fractions=[100],
            perturbations={"jpeg": [50]},
        ),
    )
    ids = np.array([f"t{index:03d}" for index in range(90)])
    vectors = np.random.default_rng(0).normal(size=(90, WIDTH))
    vectors += np.eye(3)[np.arange(90) % 3] * 4  # the classes are separate
    for condition in ("clean", "other"):
        write(project.folder / f"mine/tints/{condition}.parquet", ids, vectors)
    features = [f"results/features/mine/tints/{name}.arrow" for name in ("clean", "other")]

    ended = project.run("--keep-going", "--", features[0], "results/data/other/manifest.parquet")
    refused(ended, "the condition's file mine/tints/jpeg-1.parquet does not exist; every condition")
    assert not (project.folder / features[0]).exists()

    write(project.folder / "mine/tints/jpeg-1.parquet", ids, vectors)
    for image in (project.folder / "data/tints").glob("*.png"):
        image.unlink()
    (project.folder / "torch.py").write_text("raise ImportError('there is no torch')\n")
    ended = project.run("--", *features)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (project.folder / "torch.py").unlink()
    for file in features:
        assert (read_features(project.folder / file).matrix == vectors.astype(np.float32)).all()

    runs = [f"runs/mine/tints/seed0/{name}/frac100.json" for name in ("clean", "jpeg-1")]
    ended = project.run("--", *(f"results/{run}" for run in runs))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = read_json(project.results / runs[0])
    assert found["macro_auroc"] > 0.9
    assert found["weights_sha256"] == sha256_of_file(project.folder / "mine/tints/clean.parquet")
