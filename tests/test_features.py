"""Extraction gives the same bytes for any number of workers, and whole files or none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from crsbench.encoders.base import LoadedEncoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.errors import UserError
from crsbench.features.extraction import ImageViews, extract
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


def run(views: ImageViews, folder: Path, **changes: Any) -> dict[str, bytes]:
    arguments = {"encoder": loaded(convolution), "batch_size": 4, "workers": 0} | changes
    outputs = {
        name: folder / f"{name}.arrow" for name in ("clean", "jpeg-1", "jpeg-2", "rician_noise-1")
    }
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


def nothing_left(folder: Path) -> bool:
    return not any(path.is_file() for path in folder.rglob("*"))


def test_a_non_finite_feature_is_told_with_its_image_and_condition(
    views: ImageViews, tmp_path: Path
) -> None:
    calls = iter(range(100))

    def breaks(images: torch.Tensor) -> torch.Tensor:
        features = convolution(images)
        if next(calls) == 1:
            features[0, 2] = float("nan")
        return features

    told = r"'probe-me' gave a non-finite feature for image 'image1' under the condition 'rician"
    with pytest.raises(UserError, match=told):
        run(views, tmp_path / "out", encoder=loaded(breaks))
    assert nothing_left(tmp_path / "out")


def test_an_output_of_another_shape_is_told(views: ImageViews, tmp_path: Path) -> None:
    told = r"output of shape \(4, 3, 8, 8\) for 4 images; wanted is \(4, width\)"
    with pytest.raises(UserError, match=told):
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


def test_a_file_that_is_cut_empty_or_unsorted_is_told(tmp_path: Path) -> None:
    file = tmp_path / "f.arrow"
    with FeatureWriter(file, {}) as writer:
        for index in range(2000):
            writer.append(f"{index:05d}", np.zeros(2, np.float32))
    whole = file.read_bytes()
    for content in (b"", b"no arrow", whole[:-9], whole[: len(whole) // 2]):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"f\.arrow is no whole feature file"):
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
