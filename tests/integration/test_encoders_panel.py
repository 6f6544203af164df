"""The registry's encoders, each from a small random checkpoint in its owners' layout and format.

Every one is loaded by its own registry entry through the public door and must give the features of
the reference model of its library; with one tensor lost or renamed it must not load.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers

from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.encoders import load_encoder
from crsbench.encoders.base_model_check import BaseModelCheck
from worlds.checkpoints import (
    CHECKPOINTS,
    CPU,
    DEPTHS,
    LLAVA,
    PUBLISHED,
    REGISTRY,
    TINY_TOWER,
    Tensors,
    below,
    chexzero,
    clip,
    entry_of,
    images,
    llava_med,
    load,
    medgemma,
    open_clip_model,
    randomised,
    retfound_dinov2,
)
from worlds.workflow import HOME

# --- The owners' file formats ---


# --- The checkpoints ---


def test_every_encoder_of_the_published_panel_is_tested_here() -> None:
    assert set(PUBLISHED) <= set(CHECKPOINTS)


@pytest.mark.parametrize("name", CHECKPOINTS)
@torch.inference_mode()
def test_the_features_are_those_of_the_reference_model(name: str, tmp_path: Path) -> None:
    checkpoint = CHECKPOINTS[name]()
    encoder = load(name, tmp_path, checkpoint, checkpoint.tensors)
    x = images(checkpoint.size)
    features, wanted = encoder.encode(x), checkpoint.reference(x)
    assert features.dtype == torch.float32
    assert wanted.std() > 1e-3  # a reference that is all zeros would prove nothing
    torch.testing.assert_close(features, wanted, rtol=0, atol=1e-5 * max(1, wanted.abs().max()))

    blocks = encoder.encode.blocks(x, DEPTHS)
    torch.testing.assert_close(blocks[-1], features, rtol=0, atol=1e-5 * features.abs().max())
    for shallower, deeper in pairwise(blocks):
        assert shallower.shape != deeper.shape or not torch.allclose(shallower, deeper)
    if encoder.encode.has_final_norm:
        bare = encoder.encode.blocks(x, DEPTHS, final_norm=False)
        assert torch.equal(bare[-1], blocks[-1])
        assert not torch.allclose(bare[0], blocks[0])


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_lost_or_renamed_tensor_is_reported_by_its_name(name: str, tmp_path: Path) -> None:
    checkpoint = CHECKPOINTS[name]()
    reported = checkpoint.reported or checkpoint.vital
    tensors = dict(checkpoint.tensors)
    lost = tensors.pop(checkpoint.vital)
    with pytest.raises(UserError, match=f"(?s){name}.*{reported}"):
        load(name, tmp_path, checkpoint, tensors)
    tensors[checkpoint.vital + "_renamed"] = lost
    with pytest.raises(UserError, match=f"(?s){name}.*{reported}"):
        load(name, tmp_path, checkpoint, tensors)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_tensor_that_nobody_knows_is_reported_also_beside_the_tower(
    name: str, tmp_path: Path
) -> None:
    """Of shards even where the one that holds it is not read."""
    checkpoint = CHECKPOINTS[name]()
    tensors = {**checkpoint.tensors, "surplus.weight": torch.zeros(2)}
    with pytest.raises(UserError, match=rf"(?s)'{name}'.*surplus\.weight"):
        load(name, tmp_path, checkpoint, tensors)


def test_what_the_registry_ignores_is_in_the_weights() -> None:
    """Each name of an allow-list is of a tensor that the owners' files hold, as far as known."""
    unseen = {  # by others' word alone, or in another file of the same entry
        "panderm": {"regressor.", "pretext_neck.", "mask_token", "encoder.mask_token"},
        "llava_med": set(),
    }
    for name in ("llava_med", "retfound", "retfound_dinov2", "biovil", "biovil_t", "panderm"):
        tensors = CHECKPOINTS[name]().tensors
        listed = set(REGISTRY[name]["ignored_tensors"])
        unused = {start for start in listed if not any(n.startswith(start) for n in tensors)}
        assert unused == unseen.get(name, set()), name


@torch.inference_mode()
@pytest.mark.parametrize("prefix", REGISTRY["medgemma"]["prefix"])
def test_medgemmas_tower_is_found_under_each_of_its_prefixes(prefix: str, tmp_path: Path) -> None:
    checkpoint = medgemma(prefix)
    encoder = load("medgemma", tmp_path, checkpoint, checkpoint.tensors)
    x = images(checkpoint.size)
    torch.testing.assert_close(encoder.encode(x), checkpoint.reference(x))


@torch.inference_mode()
def test_medgemmas_tower_is_read_from_a_model_that_transformers_saved(tmp_path: Path) -> None:
    vision = {**TINY_TOWER, "patch_size": 14, "vision_use_head": False, "image_size": 70}
    text = {
        **{key: TINY_TOWER[key] for key in ("hidden_size", "intermediate_size")},
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "vocab_size": 64,
    }
    tokens = {"image_token_index": 60, "boi_token_index": 61, "eoi_token_index": 62}
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=25, **tokens
    )
    model = randomised(transformers.Gemma3ForConditionalGeneration(config))
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    # Without `architecture`: from the `vision_config` of the language model's own config.json.
    spec = {**REGISTRY["medgemma"], "weights": {"file": "model.safetensors.index.json"}}
    spec |= {"width": 32, "blocks": 4}
    del spec["architecture"]
    encoder = load_encoder(
        EncoderEntry("medgemma", "MedGemma", "medical", spec), HOME, tmp_path, CPU
    )
    x = images(70)
    wanted = model.model.vision_tower(pixel_values=x).last_hidden_state.mean(dim=1)
    torch.testing.assert_close(encoder.encode(x), wanted)


@torch.inference_mode()
def test_retfounds_positions_are_interpolated_as_its_owners_do(tmp_path: Path) -> None:
    """From a checkpoint at 518 px (37 × 37) to 224 px (16 × 16): bicubic, without antialiasing."""
    checkpoint = retfound_dinov2()
    positions = torch.randn(1, 1 + 37 * 37, 32, generator=torch.Generator().manual_seed(3))
    tensors = {**checkpoint.tensors, "backbone.pos_embed": positions}
    encoder = load("retfound_dinov2", tmp_path, checkpoint, tensors)
    grid = positions[:, 1:].reshape(1, 37, 37, 32).permute(0, 3, 1, 2)
    small = torch.nn.functional.interpolate(grid, (16, 16), mode="bicubic", align_corners=False)
    wanted = torch.cat([positions[:, :1], small.flatten(2).transpose(1, 2)], dim=1)
    torch.testing.assert_close(encoder.encode.model.pos_embed, wanted)


def test_quickgelu_is_not_gelu(tmp_path: Path) -> None:
    """CLIP and CheXzero were trained with QuickGELU: the registry must say so."""
    x = images(64)
    for name, make in {"clip": clip, "chexzero": chexzero}.items():
        checkpoint = make()
        with torch.inference_mode():
            wanted = checkpoint.reference(x)
            plain = replace(checkpoint, model=REGISTRY[name]["model"].removesuffix("-quickgelu"))
            found = load(name, tmp_path, plain, checkpoint.tensors).encode(x)
        assert (found - wanted).abs().max() > 1e-4, name


@torch.inference_mode()
def test_the_projected_feature_is_what_open_clip_encodes(tmp_path: Path) -> None:
    model = open_clip_model(patch_size=16)
    checkpoint = replace(clip(), tensors=dict(model.state_dict()))
    entry = entry_of("clip", tmp_path, checkpoint, checkpoint.tensors)
    entry = replace(entry, spec={**entry.spec, "feature": "projected", "width": 512})
    encoder = load_encoder(entry, HOME, tmp_path, CPU)
    x = images(64)
    torch.testing.assert_close(encoder.encode(x), model.encode_image(x))
    torch.testing.assert_close(encoder.encode.blocks(x, (0.5, 1.0))[1], model.encode_image(x))


def test_a_feature_that_a_tower_does_not_have_is_refused(tmp_path: Path) -> None:
    checkpoint = medgemma()
    entry = entry_of("medgemma", tmp_path, checkpoint, checkpoint.tensors)
    pooled = replace(entry, spec={**entry.spec, "feature": "pooled"})
    headless = load_encoder(pooled, HOME, tmp_path, CPU)
    with pytest.raises(UserError, match=r"'medgemma': .* no pooled output, .*can't be 'pooled'"):
        headless.encode(images(checkpoint.size))
    cut = replace(entry, spec={**entry.spec, "cut_to_blocks": 9})
    with pytest.raises(UserError, match=r"cut_to_blocks is 9, the tower has 4 blocks"):
        load_encoder(cut, HOME, tmp_path, CPU)


def test_a_checkpoint_without_the_tower_is_reported(tmp_path: Path) -> None:
    checkpoint = llava_med()
    language = {n: t for n, t in checkpoint.tensors.items() if not n.startswith(LLAVA)}
    with pytest.raises(UserError, match=rf"'llava_med': .* no tensor below '{LLAVA}'"):
        load("llava_med", tmp_path, checkpoint, language)


# --- The general model that a faulty load would leave ---


def as_clip_l14(tensors: Tensors) -> Tensors:
    """The tower within the whole CLIP, as its owners publish it."""
    tower = {n.removeprefix(LLAVA): t for n, t in tensors.items() if n.startswith(LLAVA)}
    return {**below("vision_model.", tower), "text_model.final_layer_norm.bias": torch.zeros(2)}


def as_timms_dinov2(tensors: Tensors) -> Tensors:
    own = {n.removeprefix("backbone."): t for n, t in tensors.items() if "backbone." in n}
    return {name: tensor for name, tensor in own.items() if name != "mask_token"}


GENERAL = {
    "llava_med": (llava_med, as_clip_l14),
    "retfound_dinov2": (retfound_dinov2, as_timms_dinov2),
}


def beside_its_base_model(
    name: str, folder: Path, own: Tensors, general: Tensors | None, if_equal: str = "mark"
) -> BaseModelCheck | None:
    """Load an encoder beside the general model that its entry names, and say how they compare."""
    make, translate = GENERAL[name]
    entry = entry_of(name, folder, make(), own)
    if general is not None:
        torch.save(translate(general), folder / "general.bin")
    changes = {"weights": {"file": "general.bin"}, "if_equal": if_equal}
    spec = {**entry.spec, "base_model": {**entry.spec["base_model"], **changes}}
    return load_encoder(replace(entry, spec=spec), HOME, folder, CPU).base_model


@pytest.mark.parametrize("name", GENERAL)
def test_the_weights_are_compared_with_the_general_model(name: str, tmp_path: Path) -> None:
    checkpoint = GENERAL[name][0]()
    tensors, title = checkpoint.tensors, REGISTRY[name]["base_model"]["title"]
    found = beside_its_base_model(name, tmp_path, tensors, None)
    assert found == BaseModelCheck(title, "not compared", "mark")
    assert str(found) == f"not compared: the weights of {title} are not available"

    found = beside_its_base_model(name, tmp_path, tensors, tensors)
    assert (found.verdict, found.differing, found.difference) == ("equal", 0, 0.0)
    assert re.fullmatch(rf"equal: all of its \d+ tensors are those of {title}", str(found))
    with pytest.raises(UserError, match=rf"'{name}': its weights are those of {title}, the gen"):
        beside_its_base_model(name, tmp_path, tensors, tensors, "stop")

    vital = checkpoint.vital.replace("layers.4", "layers.0")  # a block that the feature uses
    largest = tensors[vital].abs().max()
    changed = {**tensors, vital: tensors[vital] + 0.25 * largest}
    found = beside_its_base_model(name, tmp_path, changed, tensors, "stop")
    assert (found.verdict, found.differing) == ("differs", 1)
    assert found.difference == pytest.approx(0.25, rel=1e-5)
    assert re.fullmatch(
        rf"differs from {title} in 1 of \d+ tensors, by up to 0\.25 of a tensor's largest value",
        str(found),
    )


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rounded", ["the encoder", "the general model"])
def test_weights_that_were_stored_in_half_the_bits_are_still_the_general_models(
    kind: torch.dtype, rounded: str, tmp_path: Path
) -> None:
    whole = llava_med().tensors
    halved = {n: t.to(kind) if t.is_floating_point() else t for n, t in whole.items()}
    own, general = (halved, whole) if rounded == "the encoder" else (whole, halved)
    assert beside_its_base_model("llava_med", tmp_path, own, general).verdict == "equal"
    last = LLAVA + "encoder.layers.2.mlp.fc1.weight"
    own = {**own, last: own[last] * 1.01}  # less than rounding would hide in one value, in all
    assert beside_its_base_model("llava_med", tmp_path, own, general).differing == 1


def test_positions_that_are_resampled_in_two_ways_hide_no_base_model(tmp_path: Path) -> None:
    """RETFound's owners resample 37 × 37 positions without antialiasing, timm with it."""
    tensors = retfound_dinov2().tensors
    positions = torch.randn(1, 1 + 37 * 37, 32, generator=torch.Generator().manual_seed(3))
    large = {**tensors, "backbone.pos_embed": positions}
    assert beside_its_base_model("retfound_dinov2", tmp_path, large, large).verdict == "equal"


def test_equal_weights_stop_retfound_and_mark_llava_med() -> None:
    wanted = {name: REGISTRY[name]["base_model"].get("if_equal", "stop") for name in GENERAL}
    assert wanted == {"llava_med": "mark", "retfound_dinov2": "stop"}
    assert {name for name, spec in REGISTRY.items() if "base_model" in spec} == set(GENERAL)
