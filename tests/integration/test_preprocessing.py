"""Preprocessing: the registry's data, applied by our one implementation, against the owners' code.

Where a library ships the transform with a model, the reference is the library's own, made from the
configuration that it has built in or from a file in the layout of the owners' repository; where the
owners wrote theirs themselves, it is written again here with the libraries that they call. At most
one grey level of 255 may differ in any pixel, on images of several aspects.
"""

from __future__ import annotations

import json
import tempfile
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
from safetensors.torch import save_file
from timm.data import create_transform, resolve_data_config
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from crsbench.core.errors import UserError
from crsbench.encoders.preprocessing import Preprocessing
from worlds.workflow import HOME

REGISTRY = yaml.safe_load((HOME / "config" / "encoders.yaml").read_text(encoding="utf-8"))

Transform = Callable[[Image.Image], np.ndarray]

# Width × height: square, wide, tall, odd numbers whose crop has a half pixel, smaller than any
# encoder's size (and tall), very wide, very tall.
SIZES = [(512, 512), (640, 480), (480, 640), (513, 771), (701, 512), (150, 97), (61, 83)]
SIZES += [(900, 140), (120, 1000)]

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


def of_open_clip(name: str, tag: str) -> Transform:
    """The transform of a built-in name, by the configuration of its pretrained weights."""
    built_in = open_clip.get_pretrained_cfg(name, tag)
    size = open_clip.get_model_config(name)["vision_cfg"]["image_size"]
    return _open_clips(size, {k: built_in[k] for k in OPEN_CLIP_KEYS if k in built_in})


def of_open_clip_config(preprocess: dict[str, Any]) -> Transform:
    """The transform of a folder with an open_clip_config.json, as create_model_and_transforms has.

    The model in it is a small one: the transform depends on its image size alone.
    """
    vision = {"image_size": 224, "layers": 1, "width": 64, "patch_size": 112}
    text = {"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1}
    written = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "open_clip_config.json"
        file.write_text(json.dumps({"model_cfg": written, "preprocess_cfg": preprocess}))
        tensors = open_clip.CLIP(16, vision, text).state_dict()
        save_file(dict(tensors), Path(folder) / "open_clip_model.safetensors")
        *_, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    return lambda image: transform(image).numpy()


OPEN_CLIP_KEYS = ("mean", "std", "interpolation", "resize_mode", "fill_color")


def _open_clips(size: int, preprocess: dict[str, Any]) -> Transform:
    settings = open_clip.transform.PreprocessCfg(size=size, **preprocess)
    transform = open_clip.transform.image_transform_v2(settings, is_train=False)
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


def of_preprocessor_config(**settings: Any) -> Transform:
    """The image processor that a preprocessor_config.json in the hub's layout makes.

    By its Pillow backend: the torch backend resizes tensors instead, with other rounding.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "preprocessor_config.json").write_text(json.dumps(settings))
        process = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    assert type(process).__name__.endswith("Pil")
    return lambda image: process(image, return_tensors="np")["pixel_values"][0]


def padded(image: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    """The image in the centre of the square of its long side."""
    side = max(image.size)
    square = Image.new("RGB", (side, side), colour)
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def llava_med(image: Image.Image) -> np.ndarray:
    """The square by the owners' rule, centred, then CLIP's processor at 336 px."""
    return CLIP_336(padded(image, tuple(int(x * 255) for x in CLIP[0])))


def medsiglip_padded(image: Image.Image) -> np.ndarray:
    """Black around the image to a square, then SigLIP's processor."""
    return SIGLIP_448(padded(image, (0, 0, 0)))


def medsiglip_padded_bilinear(image: Image.Image) -> np.ndarray:
    return MEDSIGLIP_NOTEBOOK(padded(image, (0, 0, 0)))


def retfound_notebook(image: Image.Image) -> np.ndarray:
    """Pillow's resize (bicubic by itself), then each channel by its own mean and deviation."""
    values = np.asarray(image.resize((224, 224)), dtype=float) / 255
    return ((values - values.mean((0, 1))) / values.std((0, 1))).transpose(2, 0, 1)


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
SIGLIP = {
    **{"image_processor_type": "SiglipImageProcessor", "processor_class": "SiglipProcessor"},
    **{"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 3},
    **{"rescale_factor": 0.00392156862745098, "image_mean": HALF[0], "image_std": HALF[1]},
}
SIGLIP_448 = of_preprocessor_config(**SIGLIP, size={"height": 448, "width": 448})
CROPPED = {
    **{"do_resize": True, "do_center_crop": True, "do_rescale": True, "do_normalize": True},
    **{"do_convert_rgb": True, "resample": 3, "rescale_factor": 0.00392156862745098},
}
CLIP_336 = of_preprocessor_config(
    **{"image_processor_type": "CLIPImageProcessor", "image_mean": CLIP[0], "image_std": CLIP[1]},
    **CROPPED,
    size={"shortest_edge": 336},
    crop_size={"height": 336, "width": 336},
)
MEDSIGLIP_NOTEBOOK = lambda image: torch_squash(image, 448, BILINEAR)  # noqa: E731


def torch_squash(image: Image.Image, size: int, interpolation: InterpolationMode) -> np.ndarray:
    steps = [transforms.Resize((size, size), interpolation), transforms.ToTensor()]
    return transforms.Compose([*steps, transforms.Normalize(*HALF)])(image).numpy()


CLIP_224 = of_open_clip("ViT-B-16-quickgelu", "openai")
# The evaluation of DINOv2, MAE, RETFound and PanDerm's fine-tuning; and PanDerm's linear probe.
IMAGENET_256 = of_torchvision(256, 224, BICUBIC, *IMAGENET)
PANDERM_PROBE = of_torchvision(256, 224, BILINEAR, IMAGENET[0], [0.228, 0.224, 0.225])
OWNERS: dict[str, Transform] = {
    "resnet50": of_timm("resnet50.a1_in1k"),
    "vit_b16": of_timm("vit_base_patch16_224.augreg_in21k"),
    "clip": CLIP_224,
    "clip_projected": CLIP_224,
    "siglip": of_preprocessor_config(**SIGLIP, size={"height": 224, "width": 224}),
    "dinov2": IMAGENET_256,
    "mae": IMAGENET_256,
    "biomedclip": of_open_clip_config({"mean": CLIP[0], "std": CLIP[1]}),
    "llava_med": llava_med,
    "medsiglip": SIGLIP_448,
    "medsiglip_padded": medsiglip_padded,
    "medsiglip_evaluation": medsiglip_evaluation,
    "medsiglip_padded_bilinear": medsiglip_padded_bilinear,
    "medsiglip_squashed_bilinear": MEDSIGLIP_NOTEBOOK,
    "medgemma": of_preprocessor_config(
        **{"image_processor_type": "Gemma3ImageProcessor", "processor_class": "Gemma3Processor"},
        **{"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 2},
        **{"do_pan_and_scan": None, "rescale_factor": 0.00392156862745098},
        **{"image_mean": HALF[0], "image_std": HALF[1], "size": {"height": 896, "width": 896}},
    ),
    "panderm": PANDERM_PROBE,
    "panderm_base": PANDERM_PROBE,
    "panderm_finetuning": IMAGENET_256,
    "retfound": IMAGENET_256,
    "retfound_dinov2": IMAGENET_256,
    "retfound_notebook": retfound_notebook,
    "rad_dino": of_preprocessor_config(
        **{"image_processor_type": "BitImageProcessor", "image_mean": [0.5307] * 3},
        **{"image_std": [0.2583] * 3},
        **CROPPED,
        size={"shortest_edge": 518},
        crop_size={"height": 518, "width": 518},
    ),
    "biovil": biovil(480),
    "biovil_t": biovil(448),
    "chexzero": chexzero,
    "efficientnet_lite0": of_timm("tf_efficientnet_lite0"),
    "efficientnet_lite1": of_timm("tf_efficientnet_lite1"),
}

# What other libraries ship for the same weights, and by which rule of ours they are it.
ELSEWHERE: dict[str, tuple[str, dict[str, Any], Transform]] = {
    "open_clip's SigLIP": ("siglip", {}, of_open_clip("ViT-B-16-SigLIP", "webli")),
    "timm's CLIP": (
        "clip",
        {"resize_to": 248},
        of_timm("vit_base_patch16_clip_quickgelu_224.openai"),
    ),
    "timm's SigLIP": (
        "siglip",
        {"resize": "shortest", "resize_to": 248},
        of_timm("vit_base_patch16_siglip_224.webli"),
    ),
    "timm's MAE": ("mae", {"resize_to": 248}, of_timm("vit_base_patch16_224.mae")),
    "timm's DINOv2": (
        "dinov2",
        {"resize_to": 518, "size": 518},
        of_timm("vit_base_patch14_dinov2.lvd142m"),
    ),
    "transformers' DINOv2": (
        "dinov2",
        {"crop_corner": "floored"},
        of_preprocessor_config(
            **{"image_processor_type": "BitImageProcessor", "image_mean": IMAGENET[0]},
            **{"image_std": IMAGENET[1]},
            **CROPPED,
            size={"shortest_edge": 256},
            crop_size={"height": 224, "width": 224},
        ),
    ),
    "timm's other ResNet-50": (
        "resnet50",
        {"resize_to": 256, "interpolation": "bilinear"},
        of_timm("resnet50.tv_in1k"),
    ),
}


def assert_within_a_level(
    preprocessing: Preprocessing, image: Image.Image, theirs: np.ndarray
) -> None:
    ours = preprocessing(image)
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape == (3, preprocessing.size, preprocessing.size)
    assert (np.abs(ours - theirs) / level(preprocessing, image)).max() <= 1 + 1e-3


def level(preprocessing: Preprocessing, image: Image.Image) -> np.ndarray:
    """One grey level of 255 in the units that the encoder sees, by channel: (3, 1, 1)."""
    deviation = np.array(preprocessing.std)
    if preprocessing.per_image:
        pixels = preprocessing.pixels(image).astype(float) / 255
        deviation = pixels.std((0, 1)) * deviation
    return preprocessing.white / 255 / deviation[:, None, None]


# One of those that share their preprocessing and its reference.
DISTINCT = {(str(REGISTRY[name]["preprocessing"]), made): name for name, made in OWNERS.items()}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", DISTINCT.values())
def test_the_pixels_are_the_owners(name: str, size: tuple[int, int]) -> None:
    preprocessing = Preprocessing.from_spec(REGISTRY[name]["preprocessing"])
    image = picture(size, grey=REGISTRY[name].get("domain") == "chest")
    assert_within_a_level(preprocessing, image, OWNERS[name](image))


@pytest.mark.parametrize("size", SIZES[2:6], ids=str)
@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_other_libraries_do_is_a_rule_away(name: str, size: tuple[int, int]) -> None:
    """Where the owners differ from a library's file for the same weights, the rule says in what."""
    encoder, changes, theirs = ELSEWHERE[name]
    spec = {**REGISTRY[encoder]["preprocessing"], **changes}
    image = picture(size)
    assert_within_a_level(Preprocessing.from_spec(spec), image, theirs(image))


def test_every_encoder_of_the_published_panel_is_tested_here() -> None:
    panel = yaml.safe_load((HOME / "config" / "config.yaml").read_text("utf-8"))["encoders"]
    assert set(panel) <= set(OWNERS)


def test_every_named_alternative_is_tested_here() -> None:
    small = [name for name, spec in REGISTRY.items() if spec["preprocessing"]["size"] <= 128]
    assert set(REGISTRY) - set(small) == set(OWNERS)


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
        ("medsiglip_evaluation", {"antialias": True}),
        ("medsiglip_padded_bilinear", {"interpolation": "bicubic"}),
        ("retfound_notebook", {"per_image": False}),
    ],
)
def test_the_comparison_sees_each_rule(name: str, change: dict[str, Any]) -> None:
    """A wrong rule is more than a grey level away, so that the golden test can fail."""
    image = picture((700, 517), grey=REGISTRY[name].get("domain") == "chest")
    spec = {**REGISTRY[name]["preprocessing"], **change}
    if spec["resize"] == "shortest":
        spec.setdefault("resize_to", spec["size"])
    preprocessing = Preprocessing.from_spec(spec)
    differences = np.abs(preprocessing(image) - OWNERS[name](image))
    assert (differences / level(preprocessing, image)).max() > 2


def test_an_image_of_one_colour_has_nothing_to_standardise() -> None:
    preprocessing = Preprocessing.from_spec(REGISTRY["retfound_notebook"]["preprocessing"])
    assert not preprocessing(Image.new("RGB", (64, 64), (90, 0, 255))).any()


def test_an_image_is_standardised_alike_in_any_batch() -> None:
    preprocessing = Preprocessing.from_spec(REGISTRY["retfound_notebook"]["preprocessing"])
    pixels = np.stack([preprocessing.pixels(picture(size)) for size in SIZES])
    together = preprocessing.normalise(torch.from_numpy(pixels))
    for index, image in enumerate(pixels):
        assert torch.equal(
            preprocessing.normalise(torch.from_numpy(image[None]))[0], together[index]
        )


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
