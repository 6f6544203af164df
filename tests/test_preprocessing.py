"""Preprocessing: the registry's data, applied by our one implementation, against the owners' code.

At most one grey level of 255 may differ in any pixel, on images of several aspects.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import timm
import torch
import transformers
import yaml
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from crsbench.encoders.preprocessing import Preprocessing
from crsbench.errors import UserError

HOME = Path(__file__).resolve().parents[1]
REGISTRY = yaml.safe_load((HOME / "config" / "encoders.yaml").read_text(encoding="utf-8"))

Transform = Callable[[Image.Image], np.ndarray]

# Width × height: square, wide, tall, odd numbers whose crop has a half pixel, upscaled, very wide.
SIZES = [(512, 512), (640, 480), (480, 640), (513, 771), (701, 512), (150, 97), (900, 140)]

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
HALF = ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])


def picture(size: tuple[int, int], grey: bool = False) -> Image.Image:
    """Smooth shapes with noise on them: neither flat nor only noise; values from 20 to 220."""
    random = np.random.default_rng(size[0] * 1000 + size[1])
    coarse = random.integers(20, 180, (9, 9, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), float)
    noisy = np.clip(smooth + random.normal(0, 12, smooth.shape), 20, 220).astype(np.uint8)
    if grey:
        noisy = np.repeat(noisy[:, :, :1], 3, axis=2)
    return Image.fromarray(noisy)


# --- The owners' code ---


def of_timm(name: str) -> Transform:
    config = resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    return lambda image: create_transform(**config)(image).numpy()


def of_open_clip(mode: str, interpolation: str, mean: Any, std: Any) -> Transform:
    transform = open_clip.image_transform(
        224, is_train=False, mean=mean, std=std, resize_mode=mode, interpolation=interpolation
    )
    return lambda image: transform(image).numpy()


def of_torchvision(
    short: int, size: int, interpolation: InterpolationMode, mean: Any, std: Any
) -> Transform:
    transform = transforms.Compose(
        [
            transforms.Resize(short, interpolation=interpolation),
            transforms.CenterCrop(size),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ]
    )
    return lambda image: transform(image).numpy()


def of_transformers(processor: type, **settings: Any) -> Transform:
    """An image processor of the Pillow backend; the torch backend resizes tensors instead."""
    process = processor(**settings)
    return lambda image: process(image, return_tensors="np")["pixel_values"][0]


def llava_med(image: Image.Image) -> np.ndarray:
    """The square by the owners' rule, centred, then CLIP's processor at 336 px."""
    side = max(image.size)
    square = Image.new("RGB", (side, side), tuple(int(x * 255) for x in CLIP[0]))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    process = of_transformers(
        transformers.CLIPImageProcessorPil,
        size={"shortest_edge": 336},
        crop_size={"height": 336, "width": 336},
    )
    return process(square)


def medsiglip_padded(image: Image.Image) -> np.ndarray:
    """Black around the image to a square, then SigLIP's processor."""
    side = max(image.size)
    square = Image.new("RGB", (side, side))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return SIGLIP_448(square)


def medsiglip_evaluation(image: Image.Image) -> np.ndarray:
    tensor = transforms.functional.to_tensor(image)
    resized = transforms.functional.resize(
        tensor, [448, 448], InterpolationMode.BILINEAR, antialias=False
    )
    return transforms.functional.normalize(resized, *HALF).numpy()


def biovil(size: int) -> Transform:
    """hi-ml-multimodal: the range to 8 bits, grey, 512, the centre, three equal channels."""
    transform = transforms.Compose(
        [transforms.Resize(512), transforms.CenterCrop(size), transforms.ToTensor()]
    )

    def apply(image: Image.Image) -> np.ndarray:
        values = np.asarray(image).astype(float)
        values -= values.min()
        values = (values / values.max() * 255).astype(np.uint8)
        return transform(Image.fromarray(values).convert("L")).expand(3, -1, -1).numpy()

    return apply


def chexzero(image: Image.Image) -> np.ndarray:
    """The long side to 320 px, black to the square, normalised on 0–255, and only then resized."""
    ratio = 320 / max(image.size)
    width, height = (int(side * ratio) for side in image.size)
    square = Image.new("L", (320, 320))
    small = image.resize((width, height), Image.Resampling.LANCZOS)
    square.paste(small.convert("L"), ((320 - width) // 2, (320 - height) // 2))
    tensor = torch.from_numpy(np.array(square, dtype=np.float32)).expand(3, -1, -1)
    tensor = transforms.functional.normalize(tensor, [101.48761] * 3, [83.43944] * 3)
    return transforms.functional.resize(
        tensor, [224, 224], InterpolationMode.BICUBIC, antialias=False
    ).numpy()


BICUBIC, BILINEAR = InterpolationMode.BICUBIC, InterpolationMode.BILINEAR
SIGLIP_448 = of_transformers(
    transformers.SiglipImageProcessorPil,
    size={"height": 448, "width": 448},
    resample=3,
    image_mean=HALF[0],
    image_std=HALF[1],
)
OWNERS: dict[str, Transform] = {
    "resnet50": of_timm("resnet50.a1_in1k"),
    "vit_b16": of_timm("vit_base_patch16_224.augreg_in21k"),
    "clip": of_open_clip("shortest", "bicubic", *CLIP),
    "siglip": of_open_clip("squash", "bicubic", *HALF),
    "dinov2": of_torchvision(256, 224, BICUBIC, *IMAGENET),
    "mae": of_torchvision(256, 224, BICUBIC, *IMAGENET),
    "biomedclip": of_open_clip("shortest", "bicubic", *CLIP),
    "llava_med": llava_med,
    "medsiglip": SIGLIP_448,
    "medsiglip_padded": medsiglip_padded,
    "medsiglip_evaluation": medsiglip_evaluation,
    "medgemma": of_transformers(
        transformers.Gemma3ImageProcessorPil,
        size={"height": 896, "width": 896},
        resample=2,
        image_mean=HALF[0],
        image_std=HALF[1],
        do_pan_and_scan=False,
    ),
    "panderm": of_torchvision(256, 224, BILINEAR, IMAGENET[0], [0.228, 0.224, 0.225]),
    "retfound": of_torchvision(256, 224, BICUBIC, *IMAGENET),
    "retfound_dinov2": of_torchvision(256, 224, BICUBIC, *IMAGENET),
    "rad_dino": of_transformers(
        transformers.BitImageProcessorPil,
        size={"shortest_edge": 518},
        crop_size={"height": 518, "width": 518},
        resample=3,
        image_mean=[0.5307] * 3,
        image_std=[0.2583] * 3,
    ),
    "biovil": biovil(480),
    "biovil_t": biovil(448),
    "chexzero": chexzero,
    "efficientnet_lite0": of_timm("tf_efficientnet_lite0"),
    "efficientnet_lite1": of_timm("tf_efficientnet_lite1"),
}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", OWNERS)
def test_the_pixels_are_the_owners(name: str, size: tuple[int, int]) -> None:
    preprocessing = Preprocessing.from_spec(REGISTRY[name]["preprocessing"])
    image = picture(size, grey=REGISTRY[name].get("domain") == "chest")
    ours, theirs = preprocessing(image), OWNERS[name](image)
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape == (3, preprocessing.size, preprocessing.size)
    levels = 255 / preprocessing.white
    step = np.array(preprocessing.std)[:, None, None] * levels
    assert np.abs((ours - theirs) * step).max() <= 1 + 1e-3


def test_every_encoder_of_the_published_panel_is_tested_here() -> None:
    panel = yaml.safe_load((HOME / "config" / "config.yaml").read_text("utf-8"))["encoders"]
    assert set(panel) <= set(OWNERS)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("siglip", {"resize": "shortest"}),
        ("resnet50", {"resize_to": 256}),
        ("rad_dino", {"crop_corner": "rounded"}),
        ("llava_med", {"fill": (0, 0, 0)}),
        ("biovil", {"stretch": False}),
        ("chexzero", {"antialias": True}),
        ("chexzero", {"pad_to": None}),
        ("panderm", {"interpolation": "bicubic"}),
    ],
)
def test_the_comparison_sees_each_rule(name: str, change: dict[str, Any]) -> None:
    """A wrong rule is more than a grey level away, so that the golden test can fail."""
    image = picture((700, 517), grey=REGISTRY[name].get("domain") == "chest")
    spec = {**REGISTRY[name]["preprocessing"], **change}
    if spec["resize"] == "shortest":
        spec.setdefault("resize_to", spec["size"])
    preprocessing = Preprocessing.from_spec(spec)
    step = np.array(preprocessing.std)[:, None, None] * 255 / preprocessing.white
    assert np.abs((preprocessing(image) - OWNERS[name](image)) * step).max() > 2


def test_a_colour_image_is_its_luminance_in_three_channels_for_a_grey_encoder() -> None:
    spec = {**REGISTRY["biovil"]["preprocessing"], "stretch": False}
    pixels = Preprocessing.from_spec(spec)(Image.new("RGB", (64, 64), (200, 100, 50)))
    assert np.unique(pixels).tolist() == [np.float32(124) / np.float32(255)]  # .299 .587 .114


def test_stretching_an_image_of_one_value_makes_it_black() -> None:
    preprocessing = Preprocessing.from_spec(REGISTRY["biovil"]["preprocessing"])
    assert not preprocessing(Image.new("RGB", (64, 64), (90, 90, 90))).any()


def test_the_crop_must_lie_in_the_image() -> None:
    spec = {**REGISTRY["resnet50"]["preprocessing"], "resize_to": 200}
    with pytest.raises(UserError, match=r"resize_to is 200; it must be `size` \(224\) or more"):
        Preprocessing.from_spec(spec)
