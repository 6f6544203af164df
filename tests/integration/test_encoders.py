"""Loading encoders: strict, deterministic, and reported in one sentence when it fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import yaml
from safetensors.torch import save_file

from crsbench.config.load import load_config
from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.hashing import sha256_of_file
from crsbench.encoders import LoadedEncoder, load_encoder
from crsbench.encoders.base import block_numbers
from crsbench.encoders.base_model_check import check_trained
from crsbench.encoders.contract import check_encoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.weights.files import stage
from crsbench.weights.tensors import sha256_of_tensors
from worlds.checkpoints import as_if_trained
from worlds.workflow import HOME

REGISTRY = yaml.safe_load((HOME / "config" / "encoders.yaml").read_text(encoding="utf-8"))
CPU = torch.device("cpu")

PREPROCESSING = {
    "resize": "shortest",
    "size": 64,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}
RESNET18 = {"library": "timm", "model": "resnet18", "preprocessing": PREPROCESSING}


def entry(name: str = "mine", **spec: Any) -> EncoderEntry:
    return EncoderEntry(name, name, "general", {**RESNET18, **spec})


def load(weights_root: Path, name: str = "mine", **spec: Any) -> LoadedEncoder:
    return load_encoder(entry(name, **spec), HOME, weights_root, CPU)


@pytest.fixture(scope="module")
def resnet18() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return as_if_trained(timm.create_model("resnet18").eval())


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


Write = Callable[[dict[str, torch.Tensor]], dict[str, str]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
        torch.save(tensors, tmp_path / "weights.pth")
        return {"file": "weights.pth"}

    return write


# --- Local files ---


@torch.inference_mode()
def test_a_local_file_gives_the_feature_before_the_classifier(
    resnet18: torch.nn.Module, images: torch.Tensor, write: Write, tmp_path: Path
) -> None:
    encoder = load(tmp_path, weights=write(resnet18.state_dict()))
    wanted = resnet18.forward_head(resnet18.forward_features(images), pre_logits=True)
    torch.testing.assert_close(encoder.encode(images), wanted)
    assert not encoder.encode.training
    assert not any(parameter.requires_grad for parameter in encoder.encode.parameters())


@pytest.mark.parametrize("head", ["with its classifier", "without its classifier"])
def test_every_tensor_but_the_classifier_must_be_there(
    head: str, resnet18: torch.nn.Module, write: Write, tmp_path: Path
) -> None:
    whole = dict(resnet18.state_dict())
    if head == "without its classifier":
        whole = {name: tensor for name, tensor in whole.items() if not name.startswith("fc.")}
    load(tmp_path, weights=write(whole))

    name = "layer2.0.bn1.running_var"
    faults = {
        "lost": {n: t for n, t in whole.items() if n != name},
        "renamed": {n.replace(name, "layer2.0.bn9.running_var"): t for n, t in whole.items()},
        "misshapen": {**whole, name: torch.zeros(3)},
    }
    for tensors in faults.values():
        with pytest.raises(UserError, match=rf"'mine'.*resnet18 was not loaded.*{name}"):
            load(tmp_path, weights=write(tensors))
    with pytest.raises(UserError, match=r"'mine'.*resnet18 was not loaded.*surplus\.weight"):
        load(tmp_path, weights=write({**whole, "surplus.weight": torch.zeros(3)}))


def test_a_file_without_tensors_does_not_reach_for_the_hub(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"weights.pth holds no tensors"):
        load(tmp_path, weights=write({}))


def test_the_digest_is_the_weights(resnet18: torch.nn.Module, write: Write, tmp_path: Path) -> None:
    tensors = {name: tensor.clone() for name, tensor in resnet18.state_dict().items()}
    first = load(tmp_path, weights=write(tensors)).weights_sha256
    assert load(tmp_path, "another", weights=write(tensors)).weights_sha256 == first
    tensors["conv1.weight"][0, 0, 0, 0] += 1e-3
    assert load(tmp_path, weights=write(tensors)).weights_sha256 != first


def test_the_digest_distinguishes_names_shapes_types_and_bytes() -> None:
    zeros = torch.zeros(4)
    different = [
        {"a": zeros},
        {"b": zeros},
        {"a": zeros.reshape(2, 2)},
        {"a": zeros.to(torch.int32)},
        {"a": -zeros},
    ]
    assert len({sha256_of_tensors(tensors) for tensors in different}) == len(different)
    assert sha256_of_tensors({"a": zeros, "b": zeros + 1}) == sha256_of_tensors(
        {"b": zeros + 1, "a": zeros}
    )


def test_a_pinned_file_must_have_its_sha256(
    resnet18: torch.nn.Module, write: Write, tmp_path: Path
) -> None:
    weights = write(resnet18.state_dict())
    found = sha256_of_file(tmp_path / "weights.pth")
    load(tmp_path, weights={**weights, "sha256": found})
    with pytest.raises(UserError, match=rf"SHA-256 {found}, its entry says {'0' * 64}"):
        load(tmp_path, weights={**weights, "sha256": "0" * 64})


def test_an_absent_file_is_reported_with_where_to_get_it(tmp_path: Path) -> None:
    weights = {"file": "absent.pth", "source": "https://example.org"}
    with pytest.raises(
        UserError, match=r"'mine': .*absent.pth does not exist; get it from https://example.org"
    ):
        load(tmp_path, weights=weights)


def test_a_pickle_that_executes_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[Any, ...]:
            return (print, ("executed",))

    torch.save({"conv1.weight": Malicious()}, tmp_path / "weights.pth")
    biovil = {**REGISTRY["biovil"], "weights": {"file": "weights.pth"}}
    for spec in (biovil, {"weights": {"file": "weights.pth"}}):
        with pytest.raises(UserError, match=r"Encoder 'mine': .*(?i:weights)"):
            load(tmp_path, **spec)
    assert "executed" not in capsys.readouterr().out


def test_a_file_that_was_never_trained_is_refused(write: Write, tmp_path: Path) -> None:
    """Every tensor is there, so that strict loading alone is content."""
    weights = write(timm.create_model("resnet18", num_classes=0).state_dict())
    reported = r"'mine': its weights are those of an untrained model: .* all 20 norm layers"
    with pytest.raises(UserError, match=reported):
        load(tmp_path, weights=weights)
    floor = EncoderEntry("mine", "mine", "floor", {**RESNET18, "weights": weights})
    encoder = load_encoder(floor, HOME, tmp_path, CPU)
    assert encoder.trained == "20 of 20 norm layers are as created"
    model = timm.create_model("resnet18", num_classes=0)
    torch.nn.init.uniform_(model.layer3[0].bn2.bias)
    assert load(tmp_path, weights=write(model.state_dict())).trained.startswith("19 of 20")
    frozen = torch.nn.Sequential(torchvision.ops.FrozenBatchNorm2d(4))
    frozen[0].weight.uniform_()
    assert check_trained(entry(), frozen) == "0 of 1 norm layers are as created"


# --- Untrained, packages, own Python ---


def test_untrained_weights_depend_on_the_name_alone(images: torch.Tensor, tmp_path: Path) -> None:
    first = load(tmp_path, "floor", weights="untrained")
    torch.manual_seed(123)
    again, other = (load(tmp_path, name, weights="untrained") for name in ("floor", "storey"))
    assert first.weights_sha256 == again.weights_sha256 != other.weights_sha256
    assert torch.equal(first.encode(images), again.encode(images))


def test_loading_an_untrained_encoder_leaves_torchs_seed_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    load(tmp_path, weights="untrained")
    assert torch.equal(torch.rand(1), wanted)


def test_a_packages_weights_load_in_order_and_know_what_they_see(tmp_path: Path) -> None:
    name = "efficientnet_lite0"
    encoder = load(tmp_path, name, **REGISTRY[name])
    check_encoder(encoder)
    # What the package's ImageNet weights are: pinned, since the demo's results rest on them.
    assert encoder.weights_sha256.startswith("2522d66a40cd")
    other = {**REGISTRY[name], "model": "tf_efficientnet_lite1"}
    with pytest.raises(UserError, match=r"holds 296 tensors, the model has 386"):
        load(tmp_path, name, **other)


def test_an_absent_package_is_named(tmp_path: Path) -> None:
    weights = {"package": "no_such_package", "file": "x.pth"}
    with pytest.raises(UserError, match=r"'mine' needs the Python package 'no_such_package'"):
        load(tmp_path, weights=weights)


@pytest.mark.parametrize(
    ("library", "distribution"),
    [("open_clip", "open-clip-torch"), ("transformers", "transformers")],
)
def test_a_library_that_is_not_installed_is_named(
    library: str, distribution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"crsbench.encoders.{library}_encoder", raising=False)
    with pytest.raises(UserError, match=rf"library {library}, .*pip install {distribution}`"):
        load(tmp_path, library=library, model="x", weights={"file": "x"})


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'mine': timm has no model 'resnet18b'"):
        load(tmp_path, model="resnet18b", weights="untrained")
    with pytest.raises(UserError, match=r"'SiglipModel' .*allowed: .*SiglipVisionModel"):
        load(tmp_path, library="transformers", model="SiglipModel", weights={"file": "x"})
    with pytest.raises(UserError, match=r"open_clip has no model 'ViT-B-61'"):
        load(tmp_path, library="open_clip", model="ViT-B-61", weights={"file": "x"})


def test_a_wrong_architecture_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'mine': resnet18 was not loaded: .*depht"):
        load(tmp_path, weights="untrained", architecture={"depht": 3})
    medgemma = REGISTRY["medgemma"]
    mistyped = {**medgemma["architecture"], "hiden_size": 1152}
    with pytest.raises(UserError, match=r"'hiden_size' in architecture .*did you mean 'hidden_si"):
        load(tmp_path, **{**medgemma, "architecture": mistyped})
    with pytest.raises(UserError, match=r"architecture.num_classes has no use"):
        load(tmp_path, weights="untrained", architecture={"num_classes": 3})


def test_an_entry_without_a_library_is_only_planned(tmp_path: Path) -> None:
    planned = EncoderEntry("later", "Later", "general", {"title": "Later"})
    with pytest.raises(UserError, match=r"'later' can be planned but not run: .* no library"):
        load_encoder(planned, HOME, tmp_path, CPU)


OWN = """
import torch

def callable_encoder():
    return lambda images: images.mean(dim=(2, 3))

def module_encoder():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 4))

def torchscript_encoder():
    return torch.jit.trace(module_encoder(), torch.zeros(1, 3, 64, 64))
"""


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_encoder.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_encoder", raising=False)
    return tmp_path


def test_an_own_encoder_is_a_callable_or_a_module_by_its_import_path(
    own_home: Path, images: torch.Tensor
) -> None:
    def own(factory: str) -> LoadedEncoder:
        spec = {"library": "python", "model": f"own_encoder:{factory}"}
        return load_encoder(entry(**spec), own_home, own_home, CPU)

    plain, module, script = map(own, ("callable_encoder", "module_encoder", "torchscript_encoder"))
    for encoder in (plain, module, script):
        check_encoder(encoder)
    assert torch.equal(script.encode(images), module.encode(images))
    assert torch.equal(plain.encode(images), images.mean(dim=(2, 3)))
    assert not any(parameter.requires_grad for parameter in module.encode.parameters())
    assert plain.weights_sha256 != module.weights_sha256
    with pytest.raises(UserError, match=r"'own_encoder:absent' .*package.module:factory"):
        own("absent")


# --- The hub ---


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], Path]:
    """An offline hub cache; returns the folder of a repository at a revision."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def repository(name: str, revision: str = "main", commit: str = "a" * 40) -> Path:
        folder = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / revision).write_text(commit)
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True, exist_ok=True)
        return snapshot

    return repository


@torch.inference_mode()
def test_offline_the_hubs_cache_is_read_at_the_revision(
    hub: Callable[..., Path], resnet18: torch.nn.Module, images: torch.Tensor, tmp_path: Path
) -> None:
    tensors = dict(resnet18.state_dict())
    save_file(tensors, hub("owner/model", "v1") / "model.safetensors")
    other = {name: tensor * 0.5 for name, tensor in tensors.items()}
    save_file(other, hub("owner/model", "v2", "b" * 40) / "model.safetensors")
    weights = {"hub": "owner/model", "file": "model.safetensors"}
    first, second = (load(tmp_path, weights={**weights, "revision": r}) for r in ("v1", "v2"))
    wanted = resnet18.forward_head(resnet18.forward_features(images), pre_logits=True)
    torch.testing.assert_close(first.encode(images), wanted)
    assert first.weights_sha256 != second.weights_sha256
    assert stage(entry(weights={**weights, "revision": "v1"}), tmp_path) == [
        hub("owner/model", "v1") / "model.safetensors"
    ]
    with pytest.raises(
        UserError, match=r"at v3 is not available.*model.safetensors --revision v3`"
    ):
        load(tmp_path, weights={**weights, "revision": "v3"})


def test_any_timm_name_comes_from_its_own_hub_repository_and_strictly(
    hub: Callable[..., Path], resnet18: torch.nn.Module, images: torch.Tensor, tmp_path: Path
) -> None:
    tensors = dict(resnet18.state_dict())
    file = hub("timm/resnet18.a1_in1k") / "model.safetensors"
    save_file(tensors, file)
    with torch.inference_mode():
        features = load(tmp_path, model="resnet18.a1_in1k", weights="hub").encode(images)
        wanted = resnet18.forward_head(resnet18.forward_features(images), pre_logits=True)
    torch.testing.assert_close(features, wanted)
    lost = "layer1.1.bn2.weight"
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, file)
    with pytest.raises(UserError, match=rf"'mine': resnet18.a1_in1k was not loaded.*{lost}"):
        load(tmp_path, model="resnet18.a1_in1k", weights="hub")


def test_a_gated_model_names_its_page_and_the_command(
    hub: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(
        UserError,
        match=r"'medsiglip': .*https://huggingface.co/google/medsiglip-448, .*"
        r"`hf download google/medsiglip-448 config.json model.safetensors`",
    ):
        load(tmp_path, "medsiglip", **REGISTRY["medsiglip"])
    with pytest.raises(UserError) as reported:
        load(tmp_path, "rad_dino", **REGISTRY["rad_dino"])
    assert "accept" not in str(reported.value)


def test_staging_fetches_only_the_shards_that_hold_the_tower(
    hub: Callable[..., Path], tmp_path: Path
) -> None:
    llava = entry("llava_med", **REGISTRY["llava_med"])
    folder = hub(llava.spec["weights"]["hub"])
    shards = {"model.layers.0.weight": "1", f"{llava.prefixes[0]}x": "2", "lm_head.weight": "3"}
    index = {"weight_map": {name: f"{n}.safetensors" for name, n in shards.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"2\.safetensors of the hub's .* is not available"):
        stage(llava, tmp_path)
    (folder / "2.safetensors").touch()
    names = [file.name for file in stage(llava, tmp_path)]
    assert names == ["model.safetensors.index.json", "2.safetensors"]


def test_every_local_file_that_the_features_depend_on_is_staged(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    index = {"weight_map": {"vision_model.x": "m2.safetensors", "text_model.x": "m1.safetensors"}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("config.json", "m2.safetensors"):
        (tmp_path / "m" / name).touch()
    spec = {**REGISTRY["siglip"], "weights": {"file": "m/model.safetensors.index.json"}}
    names = [file.name for file in stage(entry(**spec), tmp_path)]
    assert names == ["model.safetensors.index.json", "config.json", "m2.safetensors"]


# --- The registry ---


TRANSFORMERS = REGISTRY["siglip"]


@pytest.mark.parametrize(
    ("spec", "reported"),
    [
        ({**TRANSFORMERS, "weights": "hub"}, "x.weights is"),
        (
            {**TRANSFORMERS, "feature": "projected"},
            "x.feature is .*allowed: pooled, class_token, mean_patches",
        ),
        ({**TRANSFORMERS, "checkpoint": "panderm"}, "'checkpoint' of x has no meaning"),
        ({**REGISTRY["clip"], "cut_to_blocks": 3}, "'cut_to_blocks' of x has no meaning"),
        ({**REGISTRY["mae"], "feature": "pooled"}, "'feature' of x has no meaning"),
        ({k: v for k, v in TRANSFORMERS.items() if k != "feature"}, "x lacks the key 'feature'"),
        ({**REGISTRY["panderm"], "checkpoint": "panderma"}, "did you mean 'panderm'"),
        ({**TRANSFORMERS, "weights": {"hub": "no-owner", "file": "f"}}, "x.weights is .*allowed"),
        ({**TRANSFORMERS, "pretraining": {"mimik": {"included": True, "source": "s"}}}, "'mimic'"),
    ],
)
def test_what_an_entry_may_not_say(
    spec: dict[str, Any],
    reported: str,
    settings: Callable[[str], dict[str, Any]],
    home: Path,
    tmp_path: Path,
) -> None:
    registry = tmp_path / "encoders.yaml"
    registry.write_text(yaml.safe_dump({**REGISTRY, "x": spec}))
    changed = {**settings("demo"), "encoders": ["x"], "encoder_registry": str(registry)}
    with pytest.raises(UserError, match=reported):
        load_config(changed, home)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"resize": "pad"}, "preprocessing lacks the key 'fill'"),
        ({"fill": [0, 0, 0]}, "'fill' of x.preprocessing has no meaning"),
        ({"resize": "squash", "resize_to": 99}, "'resize_to' of x.preprocessing has no meaning"),
        ({"resize": "crop"}, "x.preprocessing.resize is .*allowed: shortest, squash, pad"),
    ],
)
def test_what_preprocessing_may_not_say(
    change: dict[str, Any],
    reported: str,
    settings: Callable[[str], dict[str, Any]],
    home: Path,
    tmp_path: Path,
) -> None:
    spec = {**REGISTRY["mae"], "preprocessing": {**PREPROCESSING, **change}}
    test_what_an_entry_may_not_say(spec, reported, settings, home, tmp_path)


# --- Depths and conformance ---


def test_depths_are_shares_of_the_blocks() -> None:
    assert block_numbers((0.25, 0.5, 0.75, 1.0), 12) == [3, 6, 9, 12]
    assert block_numbers((0.25, 0.5, 0.75, 1.0), 23) == [6, 12, 17, 23]
    for depths in [(0,), (1.1,), (0.5, 0.25), (0.5, 0.51), (0.01,), (float("nan"),)]:
        with pytest.raises(ValueError, match="depths must be ascending"):
            block_numbers(depths, 4)


def test_a_residual_network_gives_its_stages(images: torch.Tensor, tmp_path: Path) -> None:
    encoder = load(tmp_path, weights="untrained")
    features = encoder.encode.blocks(images, (0.25, 0.5, 0.75, 1.0))
    assert [feature.shape[1] for feature in features] == [64, 128, 256, 512]
    assert torch.equal(features[-1], encoder.encode(images))
    model = encoder.encode.model
    stem = model.maxpool(model.act1(model.bn1(model.conv1(images))))
    torch.testing.assert_close(features[0], model.layer1(stem).mean(dim=(2, 3)))


@pytest.mark.parametrize("name", ["resnet18_untrained", "vit_tiny_untrained", "image_statistics"])
def test_the_shipped_floors_conform(name: str, tmp_path: Path) -> None:
    check_encoder(load(tmp_path, name, **REGISTRY[name]))


def _random(x: torch.Tensor) -> torch.Tensor:
    return x.mean(dim=(2, 3)) + torch.rand(1)


class _WrongBlocks(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=(2, 3))

    def blocks(self, x: torch.Tensor, depths: tuple[float, ...]) -> list[torch.Tensor]:
        return [self(x) * 2 for _ in depths]


@pytest.mark.parametrize(
    ("encode", "reported"),
    [
        (lambda x: x.mean(dim=(2, 3))[0], r"shape \(3,\) for 8 images; wanted is \(8, width\)"),
        (lambda x: x.mean(dim=(2, 3)).int(), "type torch.int32"),
        (lambda x: x.mean(dim=(2, 3)) / 0, "not finite"),
        (lambda x: x.new_ones(len(x), 4), "same features for every image"),
        (_random, "other features when run again"),
        (lambda x: x.mean(dim=(2, 3)) * len(x), "depend on the batch's size"),
        (lambda x: x.mean(dim=(2, 3)) - x[:1].mean() * (len(x) > 1), "depend on"),
        (lambda x: x.mean(dim=(2, 3)).sort(dim=0).values, "depend on the order"),
        (_WrongBlocks(), "at depth 1 are not its own"),
    ],
)
def test_an_encoder_that_does_not_conform_is_refused_with_the_reason(
    encode: Any, reported: str
) -> None:
    encoder = LoadedEncoder("bad", encode, Preprocessing.from_spec(PREPROCESSING), "0" * 64)
    with pytest.raises(AssertionError, match=rf"'bad'.*{reported}"):
        check_encoder(encoder)
