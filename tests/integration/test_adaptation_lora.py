"""LoRA in every architecture of the published panel: small random versions, exact at both ends."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import timm
import torch
from peft import PeftModel
from safetensors.torch import load_file

from crsbench.adaptation import lora
from crsbench.core.errors import UserError
from crsbench.core.threads import use_one_thread
from worlds import checkpoints as panel

HOW = {"rank": 8, "alpha": 16, "targets": None, "seed": 3}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    use_one_thread()


def train_a_little(encode: torch.nn.Module) -> None:
    """Both factors of every update become something."""
    generator = torch.Generator().manual_seed(0)
    for parameter in lora.lora_parameters(encode).values():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data += noise * 0.2 * parameter[0].numel() ** -0.5


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5 * max(1, wanted.abs().max()))


@pytest.mark.parametrize("name", [n for n in panel.CHECKPOINTS if n in panel.PUBLISHED])
def test_an_update_is_nothing_at_first_and_itself_when_merged(name: str, tmp_path: Path) -> None:
    checkpoint = panel.CHECKPOINTS[name]()
    encode = panel.load(name, tmp_path, checkpoint, checkpoint.tensors).encode
    fresh, x = copy.deepcopy(encode), panel.images(checkpoint.size)
    with torch.inference_mode():
        frozen = encode(x)
    config = lora.add_lora(encode, name, **HOW)
    before = lora.frozen_digest(encode)
    with torch.no_grad():
        close(encode(x), frozen)

    # Only the updates are trained, each has a gradient, and there is something of all of them.
    train_a_little(encode)
    adapted = encode(x)
    adapted.square().sum().backward()
    gradients = {n: p.grad is not None for n, p in encode.named_parameters() if p.grad is not None}
    assert set(gradients) == set(lora.lora_parameters(encode))
    assert all("lora_" in key for key in gradients)
    assert all(p.grad.abs().max() > 0 for p in lora.lora_parameters(encode).values())
    assert lora.frozen_digest(encode) == before
    adapted = adapted.detach()
    assert (adapted - frozen).abs().max() > 1e-3 * frozen.abs().max()

    # By peft alone, on the library's own model.
    lora.save_adapter(encode, name, config, tmp_path / lora.WEIGHTS, tmp_path / lora.CONFIG)
    backbone, attribute = lora.backbone_of(fresh, name)
    reloaded = PeftModel.from_pretrained(backbone, str(tmp_path))
    assert set(reloaded.peft_config) == {"default"}
    setattr(fresh, attribute, reloaded.merge_and_unload())
    with torch.no_grad():
        close(fresh(x), adapted)


@pytest.mark.parametrize("name", ["vit_b16", "clip", "dinov2"])
def test_checkpointed_activations_change_no_gradient(name: str, tmp_path: Path) -> None:
    checkpoint = panel.CHECKPOINTS[name]()
    x = panel.images(checkpoint.size)
    gradients, counts = [], []
    for checkpointed in (False, True):
        encode = panel.load(name, tmp_path, checkpoint, checkpoint.tensors).encode
        lora.add_lora(encode, name, **HOW)
        train_a_little(encode)
        if checkpointed:
            lora.checkpoint_activations(encode, name)
        passes: list[int] = []
        inner = [m for m in encode.modules() if isinstance(m, (torch.nn.LayerNorm, torch.nn.ReLU))]
        for module in inner:
            module.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        encode(x).square().sum().backward()
        counts.append(len(passes))
        gradients.append({n: p.grad for n, p in lora.lora_parameters(encode).items()})
    assert counts[1] > 1.3 * counts[0]  # it did compute them again
    for key, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], gradient)


def test_beits_fused_projection_is_not_passed_by() -> None:
    """timm's BEiT calls its qkv as a module only if its biases are added separately."""
    model = timm.create_model("beit_base_patch16_224", embed_dim=32, depth=1, num_heads=2)
    lora.add_lora(model.eval(), "beit", **HOW)
    train_a_little(model)
    model(panel.images(224)).sum().backward()
    assert all(p.grad is not None for p in lora.lora_parameters(model).values())


def test_depthwise_convolutions_and_the_stem_are_left_alone() -> None:
    model = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    lora.add_lora(model, "lite0", **HOW)
    adapted = {key.split(".lora_")[0] for key in lora.lora_parameters(model)}
    assert "conv_head" in adapted
    assert "conv_stem" not in adapted
    assert not any("conv_dw" in key for key in adapted)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("once", "again"):
        model = timm.create_model("resnet18", num_classes=0).eval()
        config = lora.add_lora(model, "r", **HOW)
        files = tmp_path / name / lora.WEIGHTS, tmp_path / name / lora.CONFIG
        lora.save_adapter(model, "r", config, *files)
        written.append([file.read_bytes() for file in files])
    assert written[0] == written[1]
    assert all(key.startswith("base_model.model.") for key in load_file(files[0]))


def test_what_cannot_be_adapted_is_reported() -> None:
    model = timm.create_model("resnet18", num_classes=0)
    with pytest.raises(UserError, match=r"no module of the encoder 'r' is called 'blocks.*`layer4"):
        lora.add_lora(model, "r", **{**HOW, "targets": r"blocks\.\d+\.qkv"})
    with pytest.raises(UserError, match=r"'bn1' names modules of the encoder 'r' that LoRA can't"):
        lora.add_lora(model, "r", **{**HOW, "targets": "bn1"})
    with pytest.raises(UserError, match=r"'s' of adaptation is no torch module"):
        lora.add_lora(lambda images: images.mean(dim=(2, 3)), "s", **HOW)
    with pytest.raises(UserError, match=r"'i' has no gradient checkpointing"):
        lora.checkpoint_activations(torch.nn.Identity(), "i")
