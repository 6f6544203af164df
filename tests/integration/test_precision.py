"""The gate before an extraction, and the reduced precisions that it lets through."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from crsbench.config.load import load_config
from crsbench.core.errors import UserError
from crsbench.encoders.base import LoadedEncoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.features.extraction import ImageViews, extract
from crsbench.features.overflow import first_not_finite
from crsbench.features.precision_check import check_precision
from crsbench.features.store import read_features

CPU = torch.device("cpu")
SMALL = Preprocessing("squash", 8, 8, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
WEIGHTS = torch.linspace(-1, 1, 3 * 8 * 8 * 16).reshape(3 * 8 * 8, 16)


def linear(images: torch.Tensor) -> torch.Tensor:
    """An encoder whose rows are one matrix product each; autocast reduces its precision."""
    return images.reshape(len(images), -1) @ WEIGHTS


def loaded(encode: Callable[[torch.Tensor], torch.Tensor]) -> LoadedEncoder:
    return LoadedEncoder("tried", encode, SMALL, "0" * 64)


@pytest.fixture
def views(tmp_path: Path) -> ImageViews:
    """Thirty images, every one with a degraded view."""
    random = np.random.default_rng(0)
    files = [tmp_path / f"{index:02d}.png" for index in range(30)]
    for file in files:
        Image.fromarray(random.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(file)
    ids = [file.stem for file in files]
    return ImageViews(
        files, ids, [("clean", "jpeg-1")] * 30, [SMALL.geometry], {"jpeg": (20,)}, 16, 10**6
    )


def clean(views: ImageViews, images: Iterable[int]) -> torch.Tensor:
    """(n, 3, 8, 8): the undegraded images as the encoder gets them."""
    pixels = [views[index].arrays[0][0] for index in images]
    return SMALL.normalise(torch.from_numpy(np.stack(pixels)))


def check(
    views: ImageViews,
    encode: Callable[..., torch.Tensor],
    precision: str = "float32",
    size: int = 4,
) -> None:
    check_precision(loaded(encode), views, device=CPU, batch_size=size, precision=precision)


# --- The batch ---


@pytest.mark.parametrize("size", [1, 3, 8, 32])
def test_an_encoder_that_sees_each_image_by_itself_passes(size: int, views: ImageViews) -> None:
    check(views, linear, size=size)


def test_one_that_looks_at_the_whole_batch_is_reported_with_image_and_difference(
    views: ImageViews,
) -> None:
    def batch_norm(images: torch.Tensor) -> torch.Tensor:
        return linear(images - images.mean(dim=0, keepdim=True) * 0.1)

    with pytest.raises(
        UserError,
        match=r"'tried' for image '\d\d' differ alone and in a batch of 4 by \d\.\de-\d\d of their "
        r"norm, most at index \d+ of 16 \(.+ and .+\); allowed is 1e-03; an encoder must see each "
        r"image by itself",
    ) as error:
        check(views, batch_norm)
    assert "\n" not in str(error.value)


def test_the_image_that_differs_most_is_the_one_named(views: ImageViews) -> None:
    def wrong_in_third_place(images: torch.Tensor) -> torch.Tensor:
        features = linear(images)
        if len(images) > 1:
            features[2] *= 1.5
            features[0] *= 1.01
        return features

    # of thirty images the eight tried are 0, 4, 8, 12, 17, 21, 25 and 29, in batches of four
    with pytest.raises(UserError, match=r"image '(08|25)' differ .* by 5\.0e-01"):
        check(views, wrong_in_third_place)


def test_the_value_that_differs_most_is_the_one_named(views: ImageViews) -> None:
    def wrong_at_eleven(images: torch.Tensor) -> torch.Tensor:
        features = linear(images)
        if len(images) > 1:
            features[:, 11] += 1e3
        return features

    with pytest.raises(UserError, match="most at index 11 of 16"):
        check(views, wrong_at_eleven)


def test_the_value_that_is_not_finite_is_named(views: ImageViews) -> None:
    def broken_at_five(images: torch.Tensor) -> torch.Tensor:
        features = linear(images)
        features[:, 5:7] = torch.nan
        return features

    with pytest.raises(UserError, match=r"nan at index 5 \(2 of 16 values are such\)"):
        check(views, broken_at_five)


@pytest.mark.parametrize(("scale", "passes"), [(1.0009, True), (1.0011, False)])
def test_the_tolerance_is_a_thousandth_of_the_norm(
    scale: float, passes: bool, views: ImageViews
) -> None:
    def scaled(images: torch.Tensor) -> torch.Tensor:
        return linear(images) * (scale if len(images) > 1 else 1)

    if passes:
        check(views, scaled)
    else:
        with pytest.raises(UserError, match=r"by 1\.1e-03"):
            check(views, scaled)


def test_features_of_zero_must_stay_zero(views: ImageViews) -> None:
    check(views, lambda images: torch.zeros(len(images), 2))
    with pytest.raises(UserError, match="by inf of their norm"):
        check(views, lambda images: torch.full((len(images), 2), float(len(images) > 1)))


def test_the_sample_is_small_spread_and_undegraded(views: ImageViews) -> None:
    seen: list[torch.Tensor] = []

    def watch(images: torch.Tensor) -> torch.Tensor:
        seen.append(images)
        return linear(images)

    check(views, watch, size=32)
    assert [len(batch) for batch in seen] == [32] + [1] * 8
    wanted = list(clean(views, (0, 4, 8, 12, 17, 21, 25, 29)).numpy())
    assert (torch.cat(seen[1:]).numpy() == np.stack(wanted)).all()
    assert (seen[0].numpy() == np.stack(wanted * 4)).all()


def test_fewer_images_than_the_sample_are_all_tried(views: ImageViews) -> None:
    first = views.files[:3], views.image_ids[:3], views.conditions[:3]
    few = ImageViews(*first, [SMALL.geometry], {}, 16, 999)
    check(few, linear)


def test_an_unreadable_image_of_the_sample_is_named(views: ImageViews) -> None:
    views.files[12].write_bytes(b"broken")
    with pytest.raises(UserError, match=r"12\.png"):
        check(views, linear)


def test_a_feature_that_is_not_finite_is_reported_before_the_extraction(views: ImageViews) -> None:
    with pytest.raises(UserError, match="non-finite feature for image '00' under the condition 'c"):
        check(views, lambda images: linear(images) / 0)


# --- The precision: by autocast on the CPU, which does what it does on a GPU ---


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_reduced_precision_near_float32_passes(precision: str, views: ImageViews) -> None:
    check(views, linear, precision)


@pytest.mark.parametrize(("precision", "allowed"), [("bfloat16", "5e-02"), ("float16", "1e-02")])
def test_a_reduced_precision_that_loses_the_feature_is_reported(
    precision: str, allowed: str, views: ImageViews
) -> None:
    def cancels(images: torch.Tensor) -> torch.Tensor:
        """A small difference of two large numbers: it drowns in the rounding."""
        pixels = images.reshape(len(images), -1)
        large = torch.cat([pixels, torch.full((len(pixels), 1), 60.0)], dim=1)
        return large @ torch.cat([WEIGHTS, torch.full((1, 16), 60.0)]) - 3600.0

    check(views, cancels)
    reported = (
        rf"'tried' for image '\d\d' differ in {precision} and in float32 by .*allowed is {allowed}"
    )
    with pytest.raises(UserError, match=reported):
        check(views, cancels, precision)


def test_an_overflow_of_float16_is_reported(views: ImageViews) -> None:
    with pytest.raises(UserError, match="non-finite feature for image"):
        check(views, lambda images: linear(images * 10000), "float16")


class Deep(torch.nn.Module):
    """Two layers whose sums grow by `scale` and the number of their inputs, and a norm."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 16), torch.nn.Linear(16, 16)
        )
        self.norm = torch.nn.LayerNorm(16)
        for linear in self.blocks[1:]:
            torch.nn.init.constant_(linear.weight, scale)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(images + 2))


def test_the_layer_that_overflows_is_named(views: ImageViews) -> None:
    reported = (
        r"image '00' .*; the first part whose output is not finite is blocks\.2 \(Linear\); "
        r"extraction\.precision: float32 may hold it\.$"
    )
    with pytest.raises(UserError, match=reported):
        check(views, Deep(30), "float16")
    check(views, Deep(30))
    with pytest.raises(UserError, match=r"not finite is blocks\.1 \(Linear\)\.$"):
        check(views, Deep(torch.inf))


def test_a_part_that_hands_on_more_than_a_tensor_is_looked_into() -> None:
    assert first_not_finite(lambda x: x / 0, torch.ones(1)) == ""

    class Part(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"states": (x, None, 3, [x * torch.inf])}

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)["states"][3][0]

    whole = Whole()
    assert first_not_finite(whole, torch.ones(1)) == "part (Part)"
    assert not whole.part._forward_hooks
    assert first_not_finite(torch.jit.script(torch.nn.ReLU()), torch.ones(1) * torch.inf) == ""


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_the_extraction_runs_in_the_precision_and_stores_float32(
    precision: str, views: ImageViews, tmp_path: Path
) -> None:
    types = set()

    def watch(images: torch.Tensor) -> torch.Tensor:
        features = linear(images)
        types.add(str(features.dtype).removeprefix("torch."))
        return features

    outputs = {name: tmp_path / f"{name}.arrow" for name in ("clean", "jpeg-1")}
    extract(
        [loaded(watch)],
        views,
        {"tried": outputs},
        device=CPU,
        batch_size=4,
        workers=0,
        metadata={"dataset": "d"},
        precision=precision,
    )
    features = read_features(outputs["clean"])
    assert types == {precision}
    assert features.matrix.dtype == np.float32
    assert features.metadata["dtype"] == precision
    exact = linear(clean(views, range(30)))
    assert features.matrix == pytest.approx(exact.numpy(), abs=0.05 * exact.abs().max().item())
    assert (features.matrix == exact.numpy()).all() == (precision == "float32")


# --- The configuration ---


@pytest.mark.parametrize(
    ("device", "precision", "reported"),
    [
        (
            "cpu",
            "bfloat16",
            r"extraction.precision is bfloat16 with extraction.device cpu; allowed",
        ),
        ("cpu", "float16", r"extraction.precision is float16 with extraction.device cpu"),
        ("cuda", "half", r"extraction.precision is \"half\".*allowed: float32, bfloat16, float16"),
    ],
)
def test_a_reduced_precision_is_for_cuda_alone(
    device: str,
    precision: str,
    reported: str,
    settings: Callable[[str], dict[str, Any]],
    home: Path,
) -> None:
    content = settings("demo")
    content["extraction"] |= {"device": device, "precision": precision}
    with pytest.raises(UserError, match=reported):
        load_config(content, home)
    for allowed in ("float32", "bfloat16", "float16"):
        content["extraction"] |= {"device": "cuda", "precision": allowed}
        load_config(content, home)
