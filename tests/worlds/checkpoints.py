"""Small random checkpoints of the registry's encoders, each in its owners' layout and format."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import open_clip
import timm
import torch
import torchvision
import transformers
import yaml
from safetensors.torch import load_file, save_file

from crsbench.config.model import EncoderEntry
from crsbench.encoders import LoadedEncoder, load_encoder
from worlds.workflow import HOME

REGISTRY = yaml.safe_load((HOME / "config" / "encoders.yaml").read_text(encoding="utf-8"))


PUBLISHED = yaml.safe_load((HOME / "config" / "config.yaml").read_text("utf-8"))["encoders"]


CPU = torch.device("cpu")


DEPTHS = (0.25, 0.5, 0.75, 1.0)


Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """tensors: in the owners' names; write: into a folder, returning the weights file's name there.

    reference: the library's model as a function from images to features. vital: a tensor whose loss
    must be reported, and `reported` the name in the message where it is the library's. width,
    blocks: of the small model, in place of the registry's, which test_encoder_registry.py holds to
    account with the rest of the architecture.
    """

    tensors: Tensors
    write: Callable[[Path, Tensors], str]
    reference: Callable[[torch.Tensor], torch.Tensor]
    vital: str
    reported: str | None = None
    architecture: Mapping[str, Any] | None = None
    model: str | None = None
    size: int = 64
    width: int = 32
    blocks: int = 4


def entry_of(name: str, folder: Path, checkpoint: Checkpoint, tensors: Tensors) -> EncoderEntry:
    """The registry's entry with local weights, and the small architecture where there is one."""
    spec = dict(REGISTRY[name])
    weights = checkpoint.write(folder, tensors)
    spec |= {"weights": {"file": weights}, "width": checkpoint.width, "blocks": checkpoint.blocks}
    if "cut_to_blocks" in spec:  # as many are left out as of the registry's
        spec["cut_to_blocks"] += checkpoint.blocks - REGISTRY[name]["blocks"]
    if checkpoint.architecture is not None:
        spec["architecture"] = {**spec.get("architecture", {}), **checkpoint.architecture}
    if checkpoint.model is not None:
        spec["model"] = checkpoint.model
    return EncoderEntry(name, spec["title"], spec["group"], spec)


def load(name: str, folder: Path, checkpoint: Checkpoint, tensors: Tensors) -> LoadedEncoder:
    return load_encoder(entry_of(name, folder, checkpoint, tensors), HOME, folder, CPU)


def randomised(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Every tensor drawn anew, so that none can be missed: no zeros, no ones."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator) * 0.1
            tensor.copy_(noise.abs() + 0.5 if "running_var" in name else noise)
    return model.eval()


def images(size: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def as_on_the_hub(model: transformers.PreTrainedModel) -> Tensors:
    """The tensors by the names that the hub's checkpoints have, which its modules need not have."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def below(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def as_safetensors(name: str = "model.safetensors", config: Mapping[str, Any] | None = None):
    def write(folder: Path, tensors: Tensors) -> str:
        save_file({n: t.contiguous() for n, t in tensors.items()}, folder / name)
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        return name

    return write


def as_torch(name: str, wrapper: str | None = None, **beside: Any):
    def write(folder: Path, tensors: Tensors) -> str:
        torch.save({wrapper: tensors, **beside} if wrapper else tensors, folder / name)
        return name

    return write


def as_shards(tower_prefix: str):
    """A language model's shards: the first, with no tensor of the tower, is not even there."""

    def write(folder: Path, tensors: Tensors) -> str:
        names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
        tower = sorted(name for name in tensors if name.startswith(tower_prefix))
        half = len(tower) // 2
        shards = dict.fromkeys(tensors, names[0])
        shards |= dict.fromkeys(tower[:half], names[1]) | dict.fromkeys(tower[half:], names[2])
        for shard in names[1:]:
            save_file(
                {n: tensors[n].contiguous() for n, s in shards.items() if s == shard},
                folder / shard,
            )
        index = {"metadata": {"total_size": 0}, "weight_map": shards}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return "model.safetensors.index.json"

    return write


MAE_ARGUMENTS = {"optimizer": {"state": {}}, "epoch": 800, "args": argparse.Namespace(lr=1e-3)}


TINY_VIT = {"embed_dim": 32, "depth": 4, "num_heads": 2}


TINY_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": 64,
}


def resnet50() -> Checkpoint:
    model = randomised(timm.create_model("resnet50"))
    return Checkpoint(
        dict(model.state_dict()),
        as_safetensors(),
        lambda x: model.forward_head(model.forward_features(x), pre_logits=True),
        "layer3.2.conv1.weight",
        width=2048,
    )


def vit_b16() -> Checkpoint:
    model = randomised(timm.create_model("vit_base_patch16_224", **TINY_VIT, num_classes=11))
    return Checkpoint(
        dict(model.state_dict()),
        as_safetensors(),
        lambda x: model.forward_features(x)[:, 0],
        "blocks.2.attn.qkv.bias",
        architecture=TINY_VIT,
        size=224,
    )


def mae() -> Checkpoint:
    model = randomised(timm.create_model("vit_base_patch16_224", **TINY_VIT, num_classes=0))
    return replace(vit_b16(), tensors=dict(model.state_dict()), reference=model)


TINY_CLIP = {"layers": 4, "width": 64, "head_width": 32, "image_size": 64}


def open_clip_model(patch_size: int) -> torch.nn.Module:
    text = {"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1}
    vision = {**TINY_CLIP, "patch_size": patch_size}
    return randomised(open_clip.CLIP(512, vision, text, quick_gelu=True))


def before_projection(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the image projection is applied to, caught on its way."""

    def reference(x: torch.Tensor) -> torch.Tensor:
        caught = []
        hook = model.visual.ln_post.register_forward_hook(lambda *a: caught.append(a[-1][:, 0]))
        projected = model.encode_image(x)
        hook.remove()
        torch.testing.assert_close(caught[0] @ model.visual.proj, projected)
        return caught[0]

    return reference


def clip() -> Checkpoint:
    model = open_clip_model(patch_size=16)
    return Checkpoint(
        dict(model.state_dict()),
        as_safetensors("open_clip_model.safetensors"),
        before_projection(model),
        "visual.transformer.resblocks.2.ln_1.weight",
        "transformer.resblocks.2.ln_1.weight",
        architecture=TINY_CLIP,
        width=64,
    )


def chexzero() -> Checkpoint:
    model = open_clip_model(patch_size=32)
    return replace(
        clip(),
        tensors=dict(model.state_dict()),
        write=as_torch("best_64_5e-05_original_22000_0.864.pt"),
        reference=before_projection(model),
    )


def biomedclip() -> Checkpoint:
    text = {"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1}
    vision = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "", "timm_proj": "linear"}
    config = {"embed_dim": 16, "vision_cfg": {**vision, "image_size": 224}, "text_cfg": text}
    model = randomised(open_clip.CustomTextCLIP(16, config["vision_cfg"], text))
    positions = {"text.transformer.embeddings.position_ids": torch.arange(512)[None]}

    def write(folder: Path, tensors: Tensors) -> str:
        written = {"model_cfg": config, "preprocess_cfg": {}}
        (folder / "open_clip_config.json").write_text(json.dumps(written))
        return as_torch("open_clip_pytorch_model.bin")(folder, tensors)

    def reference(x: torch.Tensor) -> torch.Tensor:
        tokens = model.visual.trunk.forward_features(x)
        torch.testing.assert_close(model.visual.head.proj(tokens[:, 0]), model.encode_image(x))
        return tokens[:, 0]

    return Checkpoint(
        {**model.state_dict(), **positions},
        write,
        reference,
        "visual.trunk.blocks.3.mlp.fc1.weight",
        "trunk.blocks.3.mlp.fc1.weight",
        size=224,
        width=192,
        blocks=12,
    )


def siglip() -> Checkpoint:
    vision = {**TINY_TOWER, "patch_size": 16}
    text = {**TINY_TOWER, "vocab_size": 20, "max_position_embeddings": 8}
    config = transformers.SiglipConfig(vision_config=vision, text_config=text)
    model = randomised(transformers.SiglipModel(config))
    return Checkpoint(
        as_on_the_hub(model),
        as_safetensors(config=config.to_dict()),
        lambda x: model.get_image_features(pixel_values=x).pooler_output,
        "vision_model.head.probe",
        "head.probe",
    )


def dinov2() -> Checkpoint:
    # Images of another size than the configuration's: the position embedding is interpolated.
    config = transformers.Dinov2Config(**{**TINY_TOWER, "mlp_ratio": 2, "patch_size": 14})
    model = randomised(transformers.Dinov2Model(config))
    return Checkpoint(
        as_on_the_hub(model),
        as_safetensors(config=config.to_dict()),
        lambda x: model(pixel_values=x).last_hidden_state[:, 0],
        "encoder.layer.1.attention.attention.query.weight",
        "encoder.layer.1.attention.q_proj.weight",
        size=84,
    )


def rad_dino() -> Checkpoint:
    """Its folder holds two further safetensors files, with other layouts."""
    made = dinov2()

    def write(folder: Path, tensors: Tensors) -> str:
        for name in ("backbone_compatible.safetensors", "dino_head.safetensors"):
            save_file({"mlp.0.weight": torch.zeros(2)}, folder / name)
        return made.write(folder, tensors)

    return replace(made, write=write)


LLAVA = "model.vision_tower.vision_tower.vision_model."


def llava_med() -> Checkpoint:
    small = {**TINY_TOWER, "patch_size": 16, "num_hidden_layers": 5}
    config = transformers.CLIPVisionConfig(**small, hidden_act="quick_gelu")
    model = randomised(transformers.CLIPVisionModel(config))
    tensors = below(LLAVA, dict(model.state_dict()))
    tensors[LLAVA + "embeddings.position_ids"] = torch.arange(17)[None]
    parts = ("layers.0.mlp.up_proj.weight", "embed_tokens.weight", "norm.weight")
    language = {f"model.{name}": torch.zeros(2, 2) for name in (*parts, "mm_projector.0.weight")}
    language["lm_head.weight"] = torch.zeros(2, 2)
    return Checkpoint(
        {**tensors, **language},
        as_shards(LLAVA),
        lambda x: (
            model(pixel_values=x, output_hidden_states=True).hidden_states[-2][:, 1:].mean(dim=1)
        ),
        LLAVA + "encoder.layers.4.mlp.fc2.bias",
        "encoder.layers.4.mlp.fc2.bias",
        architecture=small,
        blocks=5,
    )


def medgemma(prefix: str = "vision_tower.vision_model.") -> Checkpoint:
    """In the hub's own type, bfloat16."""
    architecture = {**TINY_TOWER, "patch_size": 14, "image_size": 70}
    config = transformers.SiglipVisionConfig(**architecture, vision_use_head=False)
    model = randomised(transformers.SiglipVisionModel(config)).bfloat16().float()
    tensors = {n: t.bfloat16() for n, t in below(prefix, dict(model.state_dict())).items()}
    language = {"language_model.model.layers.0.mlp.up_proj.weight": torch.zeros(2, 2)}
    return Checkpoint(
        {**tensors, **language},
        as_shards(prefix),
        lambda x: model(pixel_values=x).last_hidden_state.mean(dim=1),
        prefix + "post_layernorm.bias",
        "post_layernorm.bias",
        architecture=architecture,
        size=70,
    )


def beit() -> torch.nn.Module:
    """PanDerm's architecture in timm's own BEiT, whose tensors bear the owners' names."""
    model = timm.models.beit.Beit(
        **TINY_VIT,
        use_abs_pos_emb=True,
        use_rel_pos_bias=False,
        init_values=0.1,
        global_pool="token",
        num_classes=0,
    )
    return randomised(model)


def panderm() -> Checkpoint:
    model = beit()
    parts = ("decoder.blocks.0.norm1.weight", "regresser.norm.bias", "teacher.norm.bias")
    other = {name: torch.zeros(3) for name in (*parts, "rd_pos_embed")}
    return Checkpoint(
        {**below("encoder.", dict(model.state_dict())), **other},
        as_torch("panderm_ll_data6_checkpoint-499.pth", "model", **MAE_ARGUMENTS),
        model,
        "encoder.blocks.2.gamma_2",
        "blocks.2.ls2.gamma",
        architecture=TINY_VIT,
        size=224,
    )


def panderm_base() -> Checkpoint:
    model = beit()
    return replace(
        panderm(),
        tensors=dict(model.state_dict()),
        write=as_torch("panderm_bb_data6_checkpoint-499.pth"),
        vital="blocks.2.attn.v_bias",
        reported="blocks.2.attn.qkv.bias",
    )


def retfound() -> Checkpoint:
    model = randomised(timm.create_model("vit_base_patch16_224", **TINY_VIT, num_classes=0))
    pretraining = {
        "mask_token": torch.zeros(1, 1, 32),
        "decoder_pos_embed": torch.zeros(1, 197, 8),
        "decoder_blocks.0.norm1.weight": torch.zeros(8),
    }

    def reference(x: torch.Tensor) -> torch.Tensor:
        tokens = model.forward_intermediates(
            x, indices=[3], output_fmt="NLC", intermediates_only=True
        )[0]
        return torch.nn.functional.layer_norm(tokens.mean(dim=1), (32,), eps=1e-6)

    return Checkpoint(
        {**model.state_dict(), **pretraining},
        as_torch("RETFound_mae_natureCFP.pth", "model", **MAE_ARGUMENTS),
        reference,
        "blocks.1.norm2.weight",
        architecture=TINY_VIT,
        size=224,
    )


def retfound_dinov2() -> Checkpoint:
    model = randomised(
        timm.create_model("vit_large_patch14_dinov2", **TINY_VIT, img_size=224, num_classes=0)
    )
    teacher = below("backbone.", dict(model.state_dict()))
    teacher |= {"backbone.mask_token": torch.zeros(1, 32)}
    teacher |= {f"{head}_head.mlp.0.weight": torch.zeros(3) for head in ("dino", "ibot")}
    return Checkpoint(
        teacher,
        as_torch("RETFound_dinov2_meh.pth", "teacher"),
        model,
        "backbone.blocks.0.ls1.gamma",
        "blocks.0.ls1.gamma",
        architecture=TINY_VIT,
        size=224,
    )


def biovil() -> Checkpoint:
    trunk = randomised(torchvision.models.resnet50())
    tensors = below("encoder.encoder.", dict(trunk.state_dict()))
    projector = {"projector.model.0.weight": torch.zeros(128, 2048, 1, 1)}
    features = torch.nn.Sequential(*list(trunk.children())[:-1], torch.nn.Flatten())
    return Checkpoint(
        {**tensors, **projector},
        as_torch("biovil_image_resnet50_proj_size_128.pt"),
        features,
        "encoder.encoder.layer4.0.downsample.1.running_mean",
        "layer4.0.downsample.1.running_mean",
        width=2048,
    )


def biovil_t() -> Checkpoint:
    made = biovil()
    generator = torch.Generator().manual_seed(2)
    convolution = torch.randn(256, 2048, 1, 1, generator=generator) * 0.02
    temporal = {
        "encoder.backbone_to_vit.weight": convolution,
        "encoder.missing_previous_emb": torch.zeros(1, 256, 1, 1),
        "encoder.vit_pooler.blocks.0.norm1.weight": torch.zeros(256),
    }
    trunk = torch.nn.Sequential(*list(made.reference.children())[:-2])

    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(trunk(x), convolution).mean(dim=(2, 3))

    return replace(
        made,
        tensors={**made.tensors, **temporal},
        write=as_torch("biovil_t_image_model_proj_size_128.pt"),
        reference=reference,
        vital="encoder.backbone_to_vit.weight",
        reported="fc.weight",
        width=256,
    )


CHECKPOINTS: dict[str, Callable[[], Checkpoint]] = {
    "resnet50": resnet50,
    "vit_b16": vit_b16,
    "clip": clip,
    "siglip": siglip,
    "dinov2": dinov2,
    "mae": mae,
    "biomedclip": biomedclip,
    "llava_med": llava_med,
    "medsiglip": siglip,
    "medgemma": medgemma,
    "panderm": panderm,
    "panderm_base": panderm_base,
    "retfound": retfound,
    "retfound_dinov2": retfound_dinov2,
    "rad_dino": rad_dino,
    "biovil": biovil,
    "biovil_t": biovil_t,
    "chexzero": chexzero,
}


def as_if_trained(model: torch.nn.Module) -> torch.nn.Module:
    """With norms that are not as created, by which an untrained model is recognised."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d | torch.nn.LayerNorm):
            for tensor in (module.weight, module.bias):
                torch.nn.init.uniform_(tensor, 0.5, 1.5)
    return model
