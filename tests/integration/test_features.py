"""Extraction gives the same bytes for any number of workers, and whole files or none."""

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from crsbench.config.load import load_config
from crsbench.core.errors import UserError
from crsbench.core.gpu_lock import leased_gpu
from crsbench.data.manifest import write_manifest
from crsbench.encoders.base import LoadedEncoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.features.extraction import ImageViews, extract, geometries_of
from crsbench.features.jobs import extract_features
from crsbench.features.settings import ExtractionSettings
from crsbench.features.store import FeatureWriter, read_features

CPU = torch.device("cpu")
LEVELS = {"jpeg": (50, 10), "rician_noise": (0.1,)}
SMALL = Preprocessing("squash", 8, 8, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def convolution(images: torch.Tensor) -> torch.Tensor:
    """An encoder with weights that depend on nothing."""
    kernel = torch.linspace(-1, 1, 5 * 3 * 3 * 3).reshape(5, 3, 3, 3)
    return torch.nn.functional.conv2d(images, kernel).relu().mean(dim=(2, 3))


def loaded(encode: Callable[[torch.Tensor], torch.Tensor]) -> LoadedEncoder:
    return LoadedEncoder("probe-me", encode, SMALL, "0" * 64)


@pytest.fixture
def views(tmp_path: Path) -> ImageViews:
    """Seven images; every second one is a test image and has degraded views."""
    random = np.random.default_rng(0)
    files = []
    for index in range(7):
        file = tmp_path / f"{index}.png"
        Image.fromarray(random.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(file)
        files.append(file)
    conditions = [
        ("clean", "jpeg-1", "jpeg-2", "rician_noise-1") if index % 2 else ("clean",)
        for index in range(7)
    ]
    ids = [f"image{index}" for index in range(7)]
    return ImageViews(files, ids, conditions, [SMALL.geometry], LEVELS, 16, 10**6)


CONDITIONS = ("clean", "jpeg-1", "jpeg-2", "rician_noise-1")


def files_in(folder: Path) -> dict[str, Path]:
    return {name: folder / f"{name}.arrow" for name in CONDITIONS}


def run(views: ImageViews, folder: Path, **changes: Any) -> dict[str, bytes]:
    arguments = {"encoder": loaded(convolution), "batch_size": 4, "workers": 0} | changes
    outputs = files_in(folder)
    extract(
        [arguments["encoder"]],
        views,
        {"probe-me": outputs},
        device=CPU,
        batch_size=arguments["batch_size"],
        workers=arguments["workers"],
        metadata={"dataset": "d"},
    )
    return {name: path.read_bytes() for name, path in outputs.items()}


def test_clean_holds_every_image_and_a_degraded_condition_the_test_images(
    views: ImageViews, tmp_path: Path
) -> None:
    run(views, tmp_path / "out")
    clean = read_features(tmp_path / "out" / "clean.arrow")
    degraded = read_features(tmp_path / "out" / "jpeg-2.arrow")
    assert clean.image_ids.tolist() == [f"image{index}" for index in range(7)]
    assert degraded.image_ids.tolist() == ["image1", "image3", "image5"]
    assert clean.matrix.shape == (7, 5)
    assert clean.metadata["weights_sha256"] == "0" * 64
    assert degraded.metadata["condition"] == "jpeg-2"
    assert degraded.metadata["levels"] == {"jpeg": [50, 10], "rician_noise": [0.1]}


def test_features_are_those_of_the_encoder_on_the_preprocessed_view(
    views: ImageViews, tmp_path: Path
) -> None:
    run(views, tmp_path / "out")
    found = read_features(tmp_path / "out" / "rician_noise-1.arrow")
    for row, image in enumerate((1, 3, 5)):
        at = views.conditions[image].index("rician_noise-1")
        pixels = torch.from_numpy(views[image].arrays[0][at : at + 1])
        wanted = convolution(SMALL.normalise(pixels))[0].numpy()
        assert found.matrix[row] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_bytes_are_the_same_for_any_number_of_workers(
    workers: int, views: ImageViews, tmp_path: Path
) -> None:
    alone = run(views, tmp_path / "alone")
    assert run(views, tmp_path / "workers", workers=workers) == alone


def test_the_batch_size_changes_nothing_beyond_rounding(views: ImageViews, tmp_path: Path) -> None:
    run(views, tmp_path / "four")
    run(views, tmp_path / "one", batch_size=1)
    for name in ("clean", "jpeg-1"):
        one, four = (read_features(tmp_path / n / f"{name}.arrow").matrix for n in ("one", "four"))
        assert one == pytest.approx(four, rel=1e-5)


# --- Several encoders, shards, one GPU for each job ---


def other(images: torch.Tensor) -> torch.Tensor:
    return images.flatten(2).mean(dim=2)


def three_encoders() -> list[LoadedEncoder]:
    """Two that share their pixels and one of another size, without antialiasing."""
    shares = replace(SMALL, mean=(0.1, 0.2, 0.3), white=255)
    larger = replace(SMALL, size=11, resize="shortest", resize_to=13, antialias=False)
    return [
        loaded(convolution),
        LoadedEncoder("shares", other, shares, "1" * 64),
        LoadedEncoder("larger", convolution, larger, "2" * 64),
    ]


def run_together(views: ImageViews, folder: Path, encoders: list[LoadedEncoder]) -> None:
    extract(
        encoders,
        replace(views, geometries=geometries_of(encoders)),
        {encoder.name: files_in(folder / encoder.name) for encoder in encoders},
        device=CPU,
        batch_size=4,
        workers=0,
        metadata={"dataset": "d"},
    )


def bytes_below(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_encoders_together_give_what_each_gives_alone(views: ImageViews, tmp_path: Path) -> None:
    encoders = three_encoders()
    assert len(geometries_of(encoders)) == 2
    run_together(views, tmp_path / "together", encoders)
    for encoder in encoders:
        run_together(views, tmp_path / "alone", [encoder])
    found = bytes_below(tmp_path / "together")
    assert len(found) == 3 * 4
    assert found == bytes_below(tmp_path / "alone")


def test_an_image_that_has_changed_place_keeps_its_feature(
    views: ImageViews, tmp_path: Path
) -> None:
    """Another order means another batch: the same to rounding, of the same degraded pixels."""
    run(views, tmp_path / "sorted")
    order = [5, 2, 0, 6, 1, 4, 3]
    shuffled = replace(
        views,
        files=[views.files[index] for index in order],
        image_ids=[f"image{place}" for place in range(7)],
        conditions=[views.conditions[index] for index in order],
    )
    run(shuffled, tmp_path / "shuffled")
    clean = [read_features(tmp_path / n / "clean.arrow").matrix for n in ("sorted", "shuffled")]
    assert clean[1] == pytest.approx(clean[0][order], rel=1e-5)
    renamed = replace(shuffled, image_ids=[f"image{index}" for index in order])
    for place, index in enumerate(order):
        assert (renamed[place].arrays[0] == views[index].arrays[0]).all()


def test_a_killed_extraction_goes_on_with_its_shard_and_gives_the_same_bytes(
    views: ImageViews, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crsbench.features.shards.SHARD_IMAGES", 2)
    wanted = run(views, tmp_path / "whole")
    calls: list[int] = []

    def dies(images: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        if len(calls) == 6:
            raise KeyboardInterrupt  # in the third of four shards
        return convolution(images)

    def killed() -> None:
        with pytest.raises(KeyboardInterrupt):
            run(views, tmp_path / "killed", encoder=loaded(dies))

    killed()  # a shard is 5 views in batches of 4: two calls each
    left = bytes_below(tmp_path / "killed")
    assert sorted(Path(name).name for name in left) == ["00000000.npz", "00000002.npz"]
    assert not list((tmp_path / "killed").glob("*.arrow"))
    seen: list[int] = []

    def watch(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return convolution(images)

    assert run(views, tmp_path / "killed", encoder=loaded(watch)) == wanted
    assert seen == [4, 1, 1]  # the third shard and the fourth, of one clean image
    assert len(bytes_below(tmp_path / "killed")) == len(CONDITIONS)


@pytest.mark.parametrize("change", ["cut", "weights", "ids"])
def test_a_shard_that_is_cut_or_of_something_else_is_made_anew(
    change: str, views: ImageViews, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crsbench.features.shards.SHARD_IMAGES", 3)
    encoder = loaded(convolution)
    views.files[6].rename(tmp_path / "away")
    with pytest.raises(UserError, match="cannot be decoded"):
        run(views, tmp_path / "out")
    (tmp_path / "away").rename(views.files[6])
    shards = sorted((tmp_path / "out").rglob("*.npz"))
    assert len(shards) == 2
    if change == "cut":
        shards[0].write_bytes(shards[0].read_bytes()[:-5])
    elif change == "weights":
        encoder = replace(encoder, weights_sha256="f" * 64, encode=lambda x: convolution(x) * 2)
    else:
        views = replace(views, image_ids=[f"other{index}" for index in range(7)])
    found = run(views, tmp_path / "out", encoder=encoder)
    assert found == run(views, tmp_path / "fresh", encoder=encoder)


HOLD = """
import sys, time
from pathlib import Path
from crsbench.core.gpu_lock import leased_gpu
with leased_gpu(["GPU-a", "GPU-b"], Path(sys.argv[1])) as index:
    print(index, flush=True)
    time.sleep(60)
"""


def test_jobs_hold_a_gpu_each_and_a_killed_one_gives_it_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crsbench.core.gpu_lock.POLL_SECONDS", 0.02)
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        held = [job.stdout.readline().strip() for job in jobs]
        assert sorted(held) == ["0", "1"]
        threading.Timer(0.2, jobs[0].kill).start()
        with leased_gpu(["GPU-a", "GPU-b"], tmp_path) as index:  # waits for the killed one's
            assert index == int(held[0])
        assert capsys.readouterr().err.count("All 2 GPUs are held by other jobs") == 1
        with leased_gpu(["GPU-c"], tmp_path) as index:  # another node's, or another job's, number 0
            assert index == 0
    finally:
        for job in jobs:
            job.kill()
            job.communicate()


def nothing_left(folder: Path) -> bool:
    return not any(path.is_file() for path in folder.rglob("*"))


def test_a_non_finite_feature_is_reported_with_its_image_and_condition(
    views: ImageViews, tmp_path: Path
) -> None:
    calls = iter(range(100))

    def breaks(images: torch.Tensor) -> torch.Tensor:
        features = convolution(images)
        if next(calls) == 1:
            features[0, 2] = float("nan")
        return features

    reported = (
        r"'probe-me' gave a non-finite feature for image 'image1' under the condition 'rician"
    )
    with pytest.raises(UserError, match=reported):
        run(views, tmp_path / "out", encoder=loaded(breaks))
    assert nothing_left(tmp_path / "out")


def test_an_output_of_another_shape_is_reported(views: ImageViews, tmp_path: Path) -> None:
    reported = r"output of shape \(4, 3, 8, 8\) for 4 images; wanted is \(4, width\)"
    with pytest.raises(UserError, match=reported):
        run(views, tmp_path / "out", encoder=loaded(lambda images: images))
    assert nothing_left(tmp_path / "out")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_stops_the_job_and_is_named(
    workers: int, views: ImageViews, tmp_path: Path
) -> None:
    views.files[4].write_bytes(views.files[4].read_bytes()[:100])
    with pytest.raises(UserError, match=r"The image .*4\.png cannot be decoded") as error:
        run(views, tmp_path / "out", workers=workers)
    assert "\n" not in str(error.value)
    assert nothing_left(tmp_path / "out")


def test_many_rows_come_back_in_order(tmp_path: Path) -> None:
    matrix = np.arange(5000 * 3, dtype=np.float32).reshape(5000, 3)
    with FeatureWriter(tmp_path / "f.arrow", {"encoder": "e"}) as writer:
        for index, row in enumerate(matrix):
            writer.append(f"{index:05d}", row)
    features = read_features(tmp_path / "f.arrow")
    assert (features.matrix == matrix).all()
    wanted = np.array(["00007", "03000"])
    assert (features.rows(wanted, "f") == matrix[[7, 3000]]).all()
    assert not features.matrix.flags.writeable


@pytest.mark.parametrize("wanted", [["a"], ["00000", "zz"], ["00000", "000001"]])
def test_an_absent_image_is_named(wanted: list[str], tmp_path: Path) -> None:
    with FeatureWriter(tmp_path / "f.arrow", {}) as writer:
        writer.append("00000", np.zeros(2, np.float32))
        writer.append("00001", np.ones(2, np.float32))
    with pytest.raises(UserError, match=f"f.arrow lacks the image '{wanted[-1]}'"):
        read_features(tmp_path / "f.arrow").rows(np.array(wanted), tmp_path / "f.arrow")


def test_a_file_that_is_cut_empty_or_unsorted_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "f.arrow"
    with FeatureWriter(file, {}) as writer:
        for index in range(2000):
            writer.append(f"{index:05d}", np.zeros(2, np.float32))
    whole = file.read_bytes()
    for content in (b"", b"no arrow", whole[:-9], whole[: len(whole) // 2]):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"f\.arrow is not whole"):
            read_features(file)
    with FeatureWriter(file, {}) as writer:
        writer.append("b", np.zeros(2, np.float32))
        writer.append("a", np.zeros(2, np.float32))
    with pytest.raises(UserError, match="not sorted by image id"):
        read_features(file)


def test_a_failing_job_keeps_the_older_file(tmp_path: Path) -> None:
    file = tmp_path / "f.arrow"
    with FeatureWriter(file, {}) as writer:
        writer.append("a", np.zeros(2, np.float32))
    before = file.read_bytes()

    def fail() -> None:
        with FeatureWriter(file, {}) as writer:
            writer.append("a", np.ones(2, np.float32))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["f.arrow"]


def test_an_extraction_reads_at_the_data_sets_declared_depth(
    home: Path, plain_demo: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    """12-bit films in 16-bit files give the features of the same films in 8 bits."""
    found = []
    for bits in (8, 12):
        folder = tmp_path / str(bits)
        (folder / "set").mkdir(parents=True)
        names = [f"i{k:02d}" for k in range(12)]
        for k, name in enumerate(names):
            film = np.random.default_rng(k).integers(0, 256, (24, 30))
            values = film.astype(np.uint8) if bits == 8 else np.rint(film * 4095 / 255)
            Image.fromarray(values.astype(np.uint8 if bits == 8 else np.uint16)).save(
                folder / "set" / f"{name}.png"
            )
        rows = [f"{name},{name}.png,{'ab'[k % 2]}" for k, name in enumerate(names)]
        (folder / "set/table.csv").write_text("\n".join(["id,path,label", *rows]) + "\n")
        (folder / "datasets.yaml").write_text(
            "small: {title: Small, licence: CC0-1.0, task: multiclass, classes: [a, b], "
            "reader: table, root: set, table: table.csv, bits: 12, "
            "columns: {id: id, path: path, label: label}}\n"
        )
        content = plain_demo() | {
            "data_root": str(folder),
            "dataset_registry": str(folder / "datasets.yaml"),
            "encoders": ["image_statistics"],
            "datasets": ["small"],
        }
        config = load_config(content, home)
        files = folder / "manifest.parquet", folder / "images.parquet"
        entry, root = config.datasets["small"], folder / "set"
        write_manifest(*files, entry, root, max_pixels=10**6, workers=1)
        output = folder / "image_statistics" / "small" / "clean.arrow"
        extract_features(
            ExtractionSettings.of(config, ["image_statistics"], ["small"]),
            manifest_file=files[0],
            test_file=None,
            outputs=[output],
            workers=0,
        )
        found.append(read_features(output).matrix)
    assert np.array_equal(*found)
