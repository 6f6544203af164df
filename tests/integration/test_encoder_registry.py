"""The registry's architectures, each against the same network as timm or torchvision know it.

Both are built whole, on the device `meta`, where a tensor has a shape and no values: the registry's
by the loader that will fill it with weights, the other by a name that owes nothing to the registry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import yaml

from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.encoders.registry import load_encoder
from worlds.workflow import HOME

REGISTRY: dict[str, dict[str, Any]] = yaml.safe_load(
    (HOME / "config" / "encoders.yaml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Other:
    """The same network from elsewhere.

    timm: its name there, with the arguments `how`; without, it is torchvision's ResNet-50. beside:
    the configuration file that the owners put beside the weights, as far as it is known. more:
    numbers that the registry's model has and the other has not. activation: where the other's is
    not the owners'.
    """

    timm: str | None
    how: Mapping[str, Any]
    beside: tuple[str, Mapping[str, Any]] | None = None
    more: int = 0
    activation: str | None = None

    def build(self) -> torch.nn.Module:
        if self.timm is None:
            model = torchvision.models.resnet50()
            model.fc = torch.nn.Identity()
            model.num_features = 2048
            return model
        return timm.create_model(self.timm, num_classes=0, **self.how)

    def facts(self) -> dict[str, Any]:
        model = self.build()
        found = facts(model)
        found["parameters"] += self.more
        if self.activation is not None:
            found["activations"] = {self.activation}
        # ResNet-50 has four stages
        sizes = {"width": model.num_features, "blocks": len(getattr(model, "blocks", range(4)))}
        return found | sizes


def at(timm: str | None, more: int = 0, **how: Any) -> Other:
    return Other(timm, how, more=more)


def hub(timm: str, config: Mapping[str, Any], more: int = 0, **how: Any) -> Other:
    return Other(timm, how, ("config.json", config), more)


def siglip(timm: str, config: Mapping[str, Any] | None = None, **how: Any) -> Other:
    """Trained in JAX, whose GELU is the one by tanh; timm computes the exact one."""
    beside = None if config is None else ("config.json", config)
    return Other(timm, how, beside, activation="GELU by tanh")


SIGLIP_BASE = {"vision_config": {"model_type": "siglip_vision_model"}}
SO400M = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
}
DINOV2_BASE = {"image_size": 518, "patch_size": 14, "qkv_bias": True, "use_swiglu_ffn": False}
BIOMEDCLIP = {
    "model_cfg": {
        "embed_dim": 512,
        "vision_cfg": {
            "timm_model_name": "vit_base_patch16_224",
            "timm_model_pretrained": False,
            "timm_pool": "",
            "timm_proj": "linear",
            "image_size": 224,
        },
        "text_cfg": {},
    }
}
MASK_TOKEN = 768
STATIC_HALF = 256 * 2048 + 256  # BioViL-T's linear head

OTHERS: dict[str, Other] = {
    "resnet50": at(None),
    "vit_b16": at("vit_base_patch16_224"),
    "clip": at("vit_base_patch16_clip_quickgelu_224"),
    "siglip": siglip("vit_base_patch16_siglip_224", SIGLIP_BASE),
    "dinov2": hub("vit_base_patch14_dinov2", DINOV2_BASE, MASK_TOKEN),
    "mae": at("vit_base_patch16_224"),
    "biomedclip": Other("vit_base_patch16_224", {}, ("open_clip_config.json", BIOMEDCLIP)),
    "llava_med": at("vit_large_patch14_clip_quickgelu_336"),
    "medsiglip": siglip("vit_so400m_patch14_siglip_224", SO400M, img_size=448),
    "medgemma": siglip("vit_so400m_patch14_siglip_gap_896"),
    "panderm": at("vit_large_patch16_224", init_values=1e-5),
    "panderm_base": at("vit_base_patch16_224", init_values=1e-5),
    "retfound": at("vit_large_patch16_224"),
    "retfound_dinov2": at("vit_large_patch14_dinov2", img_size=224),
    "rad_dino": hub("vit_base_patch14_dinov2", DINOV2_BASE, MASK_TOKEN),
    "biovil": at(None),
    "biovil_t": at(None, more=STATIC_HALF),
    "chexzero": at("vit_base_patch32_clip_quickgelu_224"),
}


@cache
def facts_elsewhere(name: str) -> dict[str, Any]:
    return OTHERS[name].facts()


def registrys(name: str, folder: Path, **changes: Any) -> torch.nn.Module:
    """The registry's encoder with random weights, whole: no block is cut off."""
    spec = {k: v for k, v in {**REGISTRY[name], **changes}.items() if k != "cut_to_blocks"}
    if (beside := OTHERS[name].beside) is not None:
        (folder / beside[0]).write_text(json.dumps(beside[1]))
        spec["weights"] = {"file": "weights"}
    loader = import_module(f"crsbench.encoders.{spec['library']}_encoder")
    return loader.build(EncoderEntry(name, name, "general", spec), folder)


@pytest.fixture(autouse=True)
def _shapes_without_values() -> Iterator[None]:
    with torch.device("meta"):
        yield


def facts(model: torch.nn.Module) -> dict[str, Any]:
    """What decides a network's features, beside the values of its tensors."""
    modules = list(model.modules())
    heads = ("num_heads", "num_attention_heads")
    positions = {
        tensor.numel() // tensor.shape[-1]
        for name, tensor in model.named_parameters()
        if "pos_embed" in name or "position" in name
    }
    return {
        "parameters": sum(tensor.numel() for tensor in model.parameters()),
        "first convolution": next(
            (m.kernel_size, m.stride) for m in modules if isinstance(m, torch.nn.Conv2d)
        ),
        "positions": positions,
        "heads": {getattr(m, key) for m in modules for key in heads if hasattr(m, key)},
        "activations": {activation(m) for m in modules} - {None},
        "epsilons": {m.eps for m in modules if isinstance(m, torch.nn.LayerNorm)},
    }


def activation(module: torch.nn.Module) -> str | None:
    name = type(module).__name__
    if "GELU" not in name:
        return name if name == "ReLU" else None
    if "Quick" in name:
        return "QuickGELU"
    tanh = "Tanh" in name or getattr(module, "approximate", "none") == "tanh"
    return "GELU by tanh" if tanh else "GELU"


NATIVE_ELSEWHERE = {"dinov2"}  # used at 224 px, as its owners do; its positions are 518 px's
WITH_WEIGHTS = [name for name, spec in REGISTRY.items() if spec.get("library") != "python"]


def test_every_encoder_states_its_width_and_blocks() -> None:
    assert [name for name in WITH_WEIGHTS if not REGISTRY[name].keys() >= {"width", "blocks"}] == []
    alternatives = [name for name in WITH_WEIGHTS if REGISTRY[name]["group"] != "floor"]
    small = {name for name in alternatives if "lite" in name}
    # Alternatives of the preprocessing or of the feature alone: the network is the same.
    same = {"clip_projected", "panderm_finetuning", "retfound_notebook"}
    same |= {name for name in alternatives if name.startswith("medsiglip_")}
    assert set(alternatives) - small - same == set(OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_the_architecture_is_that_of_the_same_network_elsewhere(name: str, tmp_path: Path) -> None:
    encoder, spec, wanted = registrys(name, tmp_path), REGISTRY[name], dict(facts_elsewhere(name))
    if name == "biovil_t":  # the static half of its embedding
        wanted["width"] = 256
    found = facts(encoder)
    assert {**found, "width": encoder.width, "blocks": encoder.block_count} == wanted
    assert (spec["width"], spec["blocks"]) == (wanted["width"], wanted["blocks"])
    if found["positions"] and name not in NATIVE_ELSEWHERE:
        patches = (spec["preprocessing"]["size"] // found["first convolution"][1][0]) ** 2
        assert found["positions"] <= {patches, patches + 1}


LLAVA, MEDGEMMA = REGISTRY["llava_med"]["architecture"], REGISTRY["medgemma"]["architecture"]


@pytest.mark.parametrize(
    ("name", "changes", "reported"),
    [
        ("clip", {"model": "ViT-B-16"}, {"activations"}),
        ("chexzero", {"model": "ViT-B-32"}, {"activations"}),
        ("chexzero", {"model": "ViT-B-16-quickgelu"}, {"parameters", "first convolution"}),
        ("llava_med", {"architecture": {**LLAVA, "hidden_act": "gelu"}}, {"activations"}),
        ("llava_med", {"architecture": {**LLAVA, "num_hidden_layers": 23}}, {"parameters"}),
        ("llava_med", {"architecture": {**LLAVA, "num_attention_heads": 8}}, {"heads"}),
        ("llava_med", {"architecture": {**LLAVA, "image_size": 224}}, {"positions"}),
        ("llava_med", {"architecture": {**LLAVA, "layer_norm_eps": 1e-6}}, {"epsilons"}),
        ("medgemma", {"architecture": {**MEDGEMMA, "vision_use_head": True}}, {"parameters"}),
        ("medgemma", {"architecture": {**MEDGEMMA, "intermediate_size": 4608}}, {"parameters"}),
        ("panderm", {"architecture": {"qkv_bias": False}}, {"parameters"}),
        ("retfound_dinov2", {"architecture": {"img_size": 518}}, {"positions"}),
    ],
)
def test_a_wrong_value_would_be_seen(
    name: str, changes: dict[str, Any], reported: set[str], tmp_path: Path
) -> None:
    wrong, right = facts(registrys(name, tmp_path, **changes)), facts_elsewhere(name)
    assert reported <= {key for key in wrong if wrong[key] != right[key]}


def test_llava_meds_feature_is_the_output_of_its_last_block_but_one() -> None:
    assert REGISTRY["llava_med"]["cut_to_blocks"] == REGISTRY["llava_med"]["blocks"] - 1
    assert [name for name, spec in REGISTRY.items() if "cut_to_blocks" in spec] == ["llava_med"]


@pytest.mark.parametrize(("key", "found"), [("width", 512), ("blocks", 4)])
def test_a_model_of_another_size_is_refused(key: str, found: int, tmp_path: Path) -> None:
    spec = {**REGISTRY["resnet18_untrained"], key: 7}
    entry = EncoderEntry("mine", "Mine", "general", spec)
    with (
        torch.device("cpu"),
        pytest.raises(UserError, match=rf"'mine': .* says {key}: 7, the loaded model has {found}"),
    ):
        load_encoder(entry, HOME, tmp_path, torch.device("cpu"))
