"""Any vision model of the libraries, from a small random checkpoint in its hub's layout."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file, save_file

from crsbench.config.load import load_config
from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.threads import use_one_thread
from crsbench.encoders import LoadedEncoder, load_encoder
from crsbench.encoders.contract import check_encoder
from crsbench.evaluation.runs import standardisation
from worlds.checkpoints import CPU, DEPTHS, images, randomised
from worlds.workflow import HOME, NAME_ENCODERS

PREPROCESSING = {
    "resize": "squash",
    "size": 64,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}
VIT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 16,
}
NETWORK = {"hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 2, 1]}
SWIN = {
    **{"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]},
    **{"window_size": 2, "image_size": 64, "patch_size": 2},
}
# By class: its settings, and the features that it has.
CLASSES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "CLIPVisionModel": (VIT, ("pooled", "class_token", "mean_patches")),
    "SiglipVisionModel": (VIT, ("pooled", "mean_patches")),
    "Dinov2Model": (VIT, ("pooled", "class_token", "mean_patches")),
    "Dinov2WithRegistersModel": (VIT, ("pooled", "class_token", "mean_patches")),
    "DINOv3ViTModel": (VIT | {"num_register_tokens": 3}, ("pooled", "class_token", "mean_patches")),
    "ViTModel": (VIT, ("pooled", "class_token", "mean_patches")),
    "ViTMSNModel": (VIT, ("class_token", "mean_patches")),
    "IJepaModel": (VIT, ("mean_patches",)),
    "DeiTModel": (VIT, ("pooled", "class_token", "mean_patches")),
    "BeitModel": (VIT, ("pooled", "class_token", "mean_patches")),
    "SwinModel": (SWIN, ("pooled",)),
    "ConvNextModel": (NETWORK, ("pooled", "mean_patches")),
    "ResNetModel": (NETWORK | {"embedding_size": 8}, ("pooled", "mean_patches")),
}
FEATURES = ("pooled", "class_token", "mean_patches")
# Tokens that stand before the patches', by the classes' documentation.
BEFORE = {"SiglipVisionModel": 0, "IJepaModel": 0, "DeiTModel": 2}
BEFORE |= {"Dinov2WithRegistersModel": 1 + 4, "DINOv3ViTModel": 1 + 3}
CASES = [(name, feature) for name, (_, has) in CLASSES.items() for feature in has]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    use_one_thread()


def model_of(name: str, **changes: Any) -> transformers.PreTrainedModel:
    model_class = getattr(transformers, name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return randomised(model_class(model_class.config_class(**(CLASSES[name][0] | changes))))


def load(name: str, feature: str, folder: Path, **spec: Any) -> LoadedEncoder:
    entry = {
        **{"library": "transformers", "model": name, "feature": feature},
        **{"weights": {"file": "model.safetensors"}, "preprocessing": PREPROCESSING},
    }
    return load_encoder(EncoderEntry("any", "Any", "general", entry | spec), HOME, folder, CPU)


def own_feature(
    model: transformers.PreTrainedModel, name: str, feature: str, x: torch.Tensor
) -> torch.Tensor:
    output = model(pixel_values=x)
    if feature == "pooled":
        return output.pooler_output.flatten(1)
    states = output.last_hidden_state
    if feature == "class_token":
        return states[:, 0]
    return states.mean((2, 3)) if states.ndim == 4 else states[:, BEFORE.get(name, 1) :].mean(1)


@torch.inference_mode()
@pytest.mark.parametrize(("name", "feature"), CASES)
def test_any_vision_model_gives_its_own_feature(name: str, feature: str, tmp_path: Path) -> None:
    model = model_of(name)
    model.save_pretrained(tmp_path)
    encoder = load(name, feature, tmp_path)
    x = images(64)
    wanted = own_feature(model, name, feature, x)
    assert wanted.std() > 1e-3
    found = encoder.encode(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * max(1, wanted.abs().max()))
    if feature == "pooled":
        check_encoder(encoder)


@pytest.mark.parametrize("name", CLASSES)
def test_a_tensor_that_is_lost_or_over_is_reported(name: str, tmp_path: Path) -> None:
    """Of every class: the hub's name of a tensor that is over, the module's of one that lacks."""
    model = model_of(name)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    own = [n for n in model.state_dict() if n in tensors]  # named alike on both sides
    lost = next(n for n in reversed(own) if n.endswith("weight"))
    feature = CLASSES[name][1][0]
    save_file({n: t for n, t in tensors.items() if n != lost}, file)
    with pytest.raises(UserError, match=rf"'any': its weights lack {lost}"):
        load(name, feature, tmp_path)
    save_file({**tensors, "surplus.weight": torch.zeros(2)}, file)
    with pytest.raises(UserError, match=r"'any': its weights hold the unexpected surplus.weight"):
        load(name, feature, tmp_path)
    save_file({**tensors, lost: torch.zeros(1, 2, 3)}, file)
    with pytest.raises(UserError, match=rf"hold {lost} of shape \(1, 2, 3\) for one of"):
        load(name, feature, tmp_path)


@pytest.mark.parametrize(
    ("name", "feature"),
    [(n, f) for n, (_, has) in CLASSES.items() for f in FEATURES if f not in has],
)
def test_a_feature_that_a_model_lacks_is_refused(name: str, feature: str, tmp_path: Path) -> None:
    """I-JEPA's class has a pooler that its checkpoints have no tensors for."""
    model_of(name).save_pretrained(tmp_path)
    reported = rf"this {name} has no .* can't be '{feature}'|weights lack pooler.dense.bias"
    with pytest.raises(UserError, match=rf"'any': .*{reported}"):
        load(name, feature, tmp_path).encode(images(64))


@torch.inference_mode()
def test_a_masked_or_detecting_model_has_no_patches_to_average(tmp_path: Path) -> None:
    """ViTMAE masks patches at random, YOLOS has more tokens behind them."""
    for name, changes in {"ViTMAEModel": {}, "YolosModel": {"image_size": [64, 64]}}.items():
        model_class = getattr(transformers, name)
        randomised(model_class(model_class.config_class(**VIT | changes))).save_pretrained(tmp_path)
        encoder = load(name, "mean_patches", tmp_path)
        with pytest.raises(UserError, match=rf"this {name} has no token for each patch"):
            encoder.encode(images(64))


@torch.inference_mode()
def test_a_pooler_that_the_feature_has_no_use_for_need_not_be_there(tmp_path: Path) -> None:
    """DINO's checkpoints hold none, ImageNet's hold one: the class token is the same."""
    x = images(64)
    model_of("ViTModel").save_pretrained(tmp_path)
    with_pooler = load("ViTModel", "class_token", tmp_path).encode(x)
    file = tmp_path / "model.safetensors"
    tensors = {n: t for n, t in load_file(file).items() if not n.startswith("pooler.")}
    save_file(tensors, file)
    assert torch.equal(load("ViTModel", "class_token", tmp_path).encode(x), with_pooler)
    with pytest.raises(UserError, match=r"lack pooler.dense.bias, pooler.dense.weight"):
        load("ViTModel", "pooled", tmp_path)


@torch.inference_mode()
def test_the_trunk_of_a_classifier_is_found_below_its_prefix(tmp_path: Path) -> None:
    classifier = transformers.ViTForImageClassification(transformers.ViTConfig(**VIT))
    randomised(classifier).save_pretrained(tmp_path)
    x = images(64)
    with pytest.raises(UserError, match=r"2 tensors beside the image tower .*: classifier\.bias, "):
        load("ViTModel", "class_token", tmp_path, prefix=["vit."])
    beside = {"prefix": ["vit."], "ignored_tensors": ["classifier."]}
    encoder = load("ViTModel", "class_token", tmp_path, **beside)
    wanted = classifier.vit(pixel_values=x).last_hidden_state[:, 0]
    torch.testing.assert_close(encoder.encode(x), wanted)


@torch.inference_mode()
def test_the_entry_in_the_docs_loads_a_classifiers_checkpoint(
    settings: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    text = (HOME / "docs/encoders.md").read_text("utf-8")
    block = re.search(r"^    vit_of_the_hub:\n(?:     .*\n)+", text, re.MULTILINE)
    assert block is not None
    (tmp_path / "encoders.yaml").write_text(textwrap.dedent(block[0]))
    registry = {"encoder_registry": str(tmp_path / "encoders.yaml"), "encoders": ["vit_of_the_hub"]}
    content = {k: v for k, v in settings("demo").items() if k not in NAME_ENCODERS} | registry
    content["studies"]["baseline_encoder"] = "vit_of_the_hub"
    entry = load_config(content, HOME).encoders["vit_of_the_hub"]
    small = VIT | {"image_size": 224}
    classifier = transformers.ViTForImageClassification(transformers.ViTConfig(**small))
    randomised(classifier).save_pretrained(tmp_path)
    local = {**entry.spec, "weights": {"file": entry.spec["weights"]["file"]}}
    encoder = load_encoder(dataclasses.replace(entry, spec=local), HOME, tmp_path, CPU)
    x = images(224)
    wanted = classifier.vit(pixel_values=x).last_hidden_state[:, 0]
    torch.testing.assert_close(encoder.encode(x), wanted)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("SiglipModel", r"'SiglipModel' of transformers is no vision model; allowed: "),
        ("BertModel", "is no vision model"),
        ("ViTForImageClassification", "is no vision model"),
        ("ViTPreTrainedModel", "is no vision model"),
        ("pipeline", "is no vision model"),
        ("Siglip2VisionModel", "takes pixel_attention_mask, spatial_shapes beside the images"),
    ],
)
def test_only_models_that_encode_images_are_taken(name: str, reported: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"'any': .*{reported}"):
        load(name, "pooled", tmp_path)


def test_nothing_that_a_folder_says_of_remote_code_is_run(tmp_path: Path) -> None:
    model_of("ViTModel").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    (tmp_path / "own.py").write_text("raise SystemExit('the code of a checkpoint was run')\n")
    remote = {"auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    file.write_text(json.dumps(json.loads(file.read_text()) | remote))
    assert type(load("ViTModel", "pooled", tmp_path).encode.tower).__name__ == "ViTModel"


# --- Features at several depths, against the library's own hidden states ---


def _clip(model: Any, state: torch.Tensor) -> torch.Tensor:
    return model.post_layernorm(state[:, 0])


def _siglip(model: Any, state: torch.Tensor) -> torch.Tensor:
    return model.head(model.post_layernorm(state))


def _normed_class_token(model: Any, state: torch.Tensor) -> torch.Tensor:
    return model.layernorm(state)[:, 0]


def _normed_patches(model: Any, state: torch.Tensor) -> torch.Tensor:
    return model.layernorm(state)[:, 5:].mean(1)


def _bare_patches(model: Any, state: torch.Tensor) -> torch.Tensor:
    return state[:, 1:].mean(1)


def _vits_pooler(model: Any, state: torch.Tensor) -> torch.Tensor:
    return torch.tanh(model.pooler.dense(model.layernorm(state)[:, 0]))


POOLED: list[tuple[str, str, Callable[[Any, torch.Tensor], torch.Tensor]]] = [
    ("CLIPVisionModel", "pooled", _clip),
    ("CLIPVisionModel", "mean_patches", _bare_patches),
    ("SiglipVisionModel", "pooled", _siglip),
    ("Dinov2Model", "pooled", _normed_class_token),
    ("Dinov2WithRegistersModel", "mean_patches", _normed_patches),
    ("ViTModel", "pooled", _vits_pooler),
    ("ViTModel", "class_token", _normed_class_token),
]


@torch.inference_mode()
@pytest.mark.parametrize(("name", "feature", "pool"), POOLED)
def test_depths_are_the_librarys_hidden_states_pooled_alike(
    name: str, feature: str, pool: Callable[[Any, torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    model = model_of(name)
    model.save_pretrained(tmp_path)
    encoder = load(name, feature, tmp_path).encode
    x = images(64)
    states = model(pixel_values=x, output_hidden_states=True).hidden_states
    assert len(states) == 4 + 1  # the embeddings' first
    found = encoder.blocks(x, DEPTHS)
    for state, at_depth in zip(states[1:], found, strict=True):
        torch.testing.assert_close(at_depth, pool(model, state), rtol=1e-5, atol=1e-5)
    assert torch.equal(found[-1], encoder(x))
    bare = encoder.blocks(x, DEPTHS, final_norm=False)
    assert torch.equal(bare[-1], found[-1])
    assert encoder.has_final_norm == (feature != "mean_patches" or name != "CLIPVisionModel")
    assert torch.equal(bare[0], found[0]) != encoder.has_final_norm
    if feature == "class_token":
        torch.testing.assert_close(bare[1], states[2][:, 0])


@torch.inference_mode()
@pytest.mark.parametrize("name", ["ConvNextModel", "ResNetModel"])
def test_depths_of_a_network_are_the_means_of_its_stages(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    model.save_pretrained(tmp_path)
    encoder = load(name, "pooled", tmp_path).encode
    x = images(64)
    states = model(pixel_values=x, output_hidden_states=True).hidden_states
    found = encoder.blocks(x, DEPTHS)
    for state, at_depth in zip(states[1:4], found[:3], strict=True):
        torch.testing.assert_close(at_depth, state.mean((2, 3)))
    assert torch.equal(found[-1], encoder(x))
    assert not encoder.has_final_norm


def test_a_model_without_equal_blocks_says_so(tmp_path: Path) -> None:
    model_of("SwinModel").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="SwinModel has neither blocks nor stages of maps"):
        load("SwinModel", "pooled", tmp_path).encode.blocks(images(64), DEPTHS)
    with pytest.raises(UserError, match="SwinModel has stages of different widths"):
        load("SwinModel", "pooled", tmp_path, cut_to_blocks=2)


# --- Towers of open_clip that are no plain transformer ---

TEXT = {"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1}
SMALL_TRUNK = {"timm_model_name": "vit_tiny_patch16_224"}
# By a configuration's name: changes of its image tower, for a small one of the same kind.
TOWERS: dict[str, dict[str, Any]] = {
    "RN50-quickgelu": {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64},
    "coca_ViT-B-32": {"layers": 4, "width": 64, "image_size": 64},
    "ViT-H-14-CLIPA": {"layers": 4, "width": 64, "head_width": 32, "image_size": 56},
    "convnext_base": {"timm_model_name": "test_convnext"},
    "ViT-B-16-SigLIP": SMALL_TRUNK,
    "PE-Core-B-16": SMALL_TRUNK,
    "EVA02-B-16": SMALL_TRUNK,
}
STAGES = ("RN50-quickgelu", "convnext_base")


def of_open_clip(
    name: str, feature: str, folder: Path
) -> tuple[torch.nn.Module, int, LoadedEncoder]:
    """open_clip's own model, its images' size, and the encoder from its checkpoint."""
    config = open_clip.get_model_config(name)
    vision = config["vision_cfg"] | TOWERS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = open_clip.CustomTextCLIP(
            config["embed_dim"], vision, TEXT, quick_gelu=config.get("quick_gelu", False)
        )
    randomised(model)
    tensors = {n: t.contiguous() for n, t in model.state_dict().items()}
    save_file(tensors, folder / "open_clip_model.safetensors")
    spec = {
        **{"library": "open_clip", "model": name, "architecture": TOWERS[name]},
        **{"weights": {"file": "open_clip_model.safetensors"}, "feature": feature},
    }
    size = vision["image_size"]
    spec["preprocessing"] = PREPROCESSING | {"size": size}
    return model, size, load_encoder(EncoderEntry("any", "Any", "general", spec), HOME, folder, CPU)


def encoded(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The image's embedding, which of CoCa's tower comes with the tokens for its captions."""
    output = model.encode_image(x)
    return output[0] if isinstance(output, tuple) else output


@torch.inference_mode()
@pytest.mark.parametrize("name", TOWERS)
def test_any_tower_of_open_clip_gives_its_own_features(name: str, tmp_path: Path) -> None:
    model, size, encoder = of_open_clip(name, "projected", tmp_path)
    x = images(size)
    wanted = encoded(model, x)
    found = encoder.encode(x)
    assert wanted.std() > 1e-4
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * max(1, wanted.abs().max()))
    depths = encoder.encode.blocks(x, DEPTHS)
    torch.testing.assert_close(depths[-1], wanted, rtol=1e-5, atol=1e-5)
    if name in STAGES:
        maps = model.visual.forward_intermediates(x, indices=4)["image_intermediates"]
        for stage, at_depth in zip(maps[:3], depths[:3], strict=True):
            torch.testing.assert_close(at_depth, stage.mean((2, 3)))
    file = tmp_path / "open_clip_model.safetensors"
    tensors = load_file(file)
    lost = next(n for n in reversed(tensors) if n.startswith("visual.") and n.endswith("weight"))
    save_file({n: t for n, t in tensors.items() if n != lost}, file)
    spec = {
        **{"library": "open_clip", "model": name, "architecture": TOWERS[name]},
        **{"weights": {"file": file.name}, "feature": "projected", "preprocessing": PREPROCESSING},
    }
    entry = EncoderEntry("any", "Any", "general", spec)
    with pytest.raises(UserError, match=rf"'any': its weights lack {lost.removeprefix('visual.')}"):
        load_encoder(entry, HOME, tmp_path, CPU)


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name in TOWERS if name != "RN50-quickgelu"])
def test_pooled_is_what_the_projection_is_applied_to(name: str, tmp_path: Path) -> None:
    model, size, encoder = of_open_clip(name, "pooled", tmp_path)
    x = images(size)
    pooled, projected = encoder.encode(x), encoded(model, x)
    visual = model.visual
    if name in ("PE-Core-B-16", "EVA02-B-16"):
        behind = visual.trunk.head(pooled)
    elif hasattr(visual, "proj"):
        behind = pooled @ visual.proj
    else:
        behind = visual.head(pooled)
    torch.testing.assert_close(behind, projected, rtol=1e-5, atol=1e-5)
    assert torch.equal(encoder.encode.blocks(x, DEPTHS)[-1], pooled)


@torch.inference_mode()
@pytest.mark.parametrize("feature", ["pooled", "projected"])
def test_depths_of_clip_are_open_clips_own_intermediates(feature: str, tmp_path: Path) -> None:
    architecture = {"layers": 4, "width": 64, "head_width": 32, "image_size": 64}
    model = randomised(
        open_clip.CLIP(512, architecture | {"patch_size": 16}, TEXT, quick_gelu=True)
    )
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    spec = {
        **{"library": "open_clip", "model": "ViT-B-16-quickgelu", "architecture": architecture},
        **{"weights": {"file": "model.safetensors"}, "feature": feature},
    }
    spec["preprocessing"] = PREPROCESSING
    encoder = load_encoder(EncoderEntry("any", "Any", "general", spec), HOME, tmp_path, CPU)
    x = images(64)
    found = model.visual.forward_intermediates(
        x, indices=4, normalize_intermediates=True, output_extra_tokens=True, output_fmt="NLC"
    )
    class_tokens = [tokens[:, 0] for tokens in found["image_intermediates_prefix"]]
    if feature == "projected":
        class_tokens = [tokens @ model.visual.proj for tokens in class_tokens]
    for at_depth, wanted in zip(encoder.encode.blocks(x, DEPTHS), class_tokens, strict=True):
        torch.testing.assert_close(at_depth, wanted, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "pool", "tokens"),
    [
        ("vit_base_patch16_224", "token", 1),
        ("vit_base_patch16_224", "avg", 1),
        ("vit_large_patch14_dinov2", "token", 1),
        ("vit_base_patch14_reg4_dinov2", "avg", 5),
        ("beit_base_patch16_224", "token", 1),
    ],
)
def test_depths_of_timm_are_its_own_intermediates_pooled_alike(
    name: str, pool: str, tokens: int, tmp_path: Path
) -> None:
    """The norm stands before the pooling of a class token, behind that of patches."""
    small = {"embed_dim": 32, "depth": 4, "num_heads": 2, "img_size": 56 if "14" in name else 64}
    model = randomised(timm.create_model(name, num_classes=0, global_pool=pool, **small))
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    spec = {
        **{"library": "timm", "model": name, "architecture": small | {"global_pool": pool}},
        **{"weights": {"file": "model.safetensors"}, "preprocessing": PREPROCESSING},
    }
    encoder = load_encoder(EncoderEntry("any", "Any", "general", spec), HOME, tmp_path, CPU).encode
    x = images(small["img_size"])
    options = {"return_prefix_tokens": True, "output_fmt": "NLC", "intermediates_only": True}
    options |= {"norm": pool == "token"}
    wanted = []
    for patches, before in model.forward_intermediates(x, indices=4, **options):
        assert before.shape[1] == tokens
        wanted.append(before[:, 0] if pool == "token" else model.fc_norm(patches.mean(1)))
    for at_depth, of_timm in zip(encoder.blocks(x, DEPTHS), wanted, strict=True):
        torch.testing.assert_close(at_depth, of_timm, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["resnet18", "test_convnext", "test_efficientnet"])
def test_depths_of_timms_networks_are_the_means_of_its_stages(name: str, tmp_path: Path) -> None:
    model = randomised(timm.create_model(name))
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    maps = timm.create_model(name, features_only=True)
    own = {key.replace(".", "_", 1): value for key, value in model.state_dict().items()}
    maps.load_state_dict({k: own.get(k, model.state_dict().get(k)) for k in maps.state_dict()})
    spec = {"library": "timm", "model": name, "weights": {"file": "model.safetensors"}}
    spec["preprocessing"] = PREPROCESSING
    encoder = load_encoder(EncoderEntry("any", "Any", "general", spec), HOME, tmp_path, CPU).encode
    x = images(64)
    found = encoder.blocks(x, DEPTHS)
    for stage, at_depth in zip(maps.eval()(x)[-4:-1], found[:3], strict=True):
        torch.testing.assert_close(at_depth, stage.mean((2, 3)))
    assert torch.equal(found[-1], encoder(x))


def test_a_residual_clip_has_nothing_before_its_projection(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'any': feature is pooled, .*allowed: projected"):
        of_open_clip("RN50-quickgelu", "pooled", tmp_path)


def test_the_batch_norm_of_maes_own_probe_is_the_probes_standardisation() -> None:
    """Its owners' linear probe begins with a batch norm without weights, eps 1e-6."""
    features = torch.randn(64, 7, generator=torch.Generator().manual_seed(0)) * 3 + 2
    norm = torch.nn.BatchNorm1d(7, affine=False, eps=1e-6, momentum=1.0)
    norm(features)
    norm.running_var *= 63 / 64  # torch keeps the sample's variance, and normalises by the batch's
    mean, scale = standardisation(features.numpy())
    other = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    wanted = norm.eval()(other).numpy()
    np.testing.assert_allclose((other.numpy() - mean) / scale, wanted, rtol=1e-5, atol=1e-6)
