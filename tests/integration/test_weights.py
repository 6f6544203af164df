"""Weights files: where they are found, what pins them, and what a changed byte re-runs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import pytest
import timm
import torch
import transformers
import yaml
from safetensors.torch import save_file

from crsbench.config.load import load_config
from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.files import read_json
from crsbench.core.hashing import sha256_of_file
from crsbench.encoders import load_encoder
from crsbench.features.store import read_features
from crsbench.weights.files import Digests, digest_of, fetch, record, stage, version
from worlds import small_panel
from worlds.checkpoints import as_if_trained
from worlds.small_panel import SmallPanel
from worlds.workflow import HOME

CPU = torch.device("cpu")
TINY = "test_vit"
PREPROCESSING = {
    "resize": "squash",
    "size": 160,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}


def entry(weights: Any, name: str = "mine", **spec: Any) -> EncoderEntry:
    own = {"library": "timm", "model": TINY, "preprocessing": PREPROCESSING, "weights": weights}
    return EncoderEntry(name, name, "general", {**own, **spec})


@pytest.fixture(scope="module")
def tiny() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return as_if_trained(timm.create_model(TINY, num_classes=0).eval())


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))


class Cache:
    """A cache of the hub as its own client lays it out: blobs by digest, snapshots by commit."""

    def __init__(self, folder: Path, repository: str) -> None:
        self.folder = folder / f"models--{repository.replace('/', '--')}"

    def put(self, name: str, content: bytes, commit: str = "a" * 40) -> Path:
        """Put a file on `main` at a commit; returns the blob."""
        snapshot = self.folder / "snapshots" / commit
        for part in (snapshot, self.folder / "blobs", self.folder / "refs"):
            part.mkdir(parents=True, exist_ok=True)
        (self.folder / "refs/main").write_text(commit)
        scratch = self.folder / "blobs/new"
        scratch.write_bytes(content)
        blob = scratch.rename(scratch.with_name(sha256_of_file(scratch)))
        (snapshot / name).unlink(missing_ok=True)
        (snapshot / name).symlink_to(blob)
        return blob


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return Cache(tmp_path / "hub", "owner/model")


PRETRAINED = {"input_size": [3, 160, 160], "fixed_input_size": True, "num_classes": 0}
REQUIRED = yaml.safe_load((HOME / "workflow/schemas/config.schema.yaml").read_text())["required"]
HUB = {"hub": "owner/model", "file": "model.safetensors"}


# --- Local folders, as the libraries save them ---


def timms_folder(folder: Path, model: torch.nn.Module, **config: Any) -> None:
    save_file(model.state_dict(), folder / "model.safetensors")
    content = {"architecture": TINY, "num_classes": 0, "pretrained_cfg": PRETRAINED, **config}
    (folder / "config.json").write_text(json.dumps(content))


@torch.inference_mode()
def test_a_folder_of_timm_is_loaded_as_timm_loads_it(
    tiny: torch.nn.Module, images: torch.Tensor, tmp_path: Path
) -> None:
    (tmp_path / "m").mkdir()
    timms_folder(tmp_path / "m", tiny)
    encoder = load_encoder(entry({"folder": "m"}), HOME, tmp_path, CPU)
    theirs = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True, num_classes=0).eval()
    torch.testing.assert_close(encoder.encode(images), theirs(images), rtol=0, atol=1e-5)
    assert [file.name for file in stage(entry({"folder": "m"}), tmp_path)] == [
        *("model.safetensors", "config.json")
    ]

    smaller = as_if_trained(timm.create_model(TINY, num_classes=0, img_size=64))
    for saved in (
        {"model_args": {"img_size": 64}},
        {"pretrained_cfg": {**PRETRAINED, "input_size": [3, 64, 64]}},
    ):
        timms_folder(tmp_path / "m", smaller, **saved)
        encoder = load_encoder(entry({"folder": "m"}), HOME, tmp_path, CPU)
        assert torch.equal(encoder.encode.model.pos_embed, smaller.pos_embed)
    timms_folder(tmp_path / "m", tiny, architecture="resnet18")
    with pytest.raises(UserError, match=r"architecture 'resnet18', the entry's model is 'test_vit"):
        load_encoder(entry({"folder": "m"}), HOME, tmp_path, CPU)


@torch.inference_mode()
def test_a_folder_of_open_clip_is_loaded_as_open_clip_loads_it(tmp_path: Path) -> None:
    text = {"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1}
    vision = {"layers": 2, "width": 64, "head_width": 32, "image_size": 64, "patch_size": 16}
    model = as_if_trained(open_clip.CLIP(32, vision, text).eval())
    (tmp_path / "m").mkdir()
    config = {"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}
    (tmp_path / "m/open_clip_config.json").write_text(
        json.dumps({"model_cfg": config, "preprocess_cfg": {}})
    )
    save_file(model.state_dict(), tmp_path / "m/open_clip_model.safetensors")
    own = entry(
        {"folder": "m"}, library="open_clip", model="open_clip_config.json", feature="projected"
    )
    theirs = open_clip.create_model(f"local-dir:{tmp_path / 'm'}", require_pretrained=True).eval()
    x = torch.randn(2, 3, 64, 64)
    encoder = load_encoder(own, HOME, tmp_path, CPU)
    torch.testing.assert_close(encoder.encode(x), theirs.encode_image(x), rtol=0, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("shards", ["10GB", "20KB"])
def test_a_folder_of_transformers_is_loaded_as_transformers_loads_it(
    shards: str, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "image_size": 64, "patch_size": 16}
    config = transformers.ViTConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
    as_if_trained(transformers.ViTModel(config)).save_pretrained(
        tmp_path / "m", max_shard_size=shards
    )
    own = entry({"folder": "m"}, library="transformers", model="ViTModel", feature="pooled")
    names = [file.name for file in stage(own, tmp_path)]
    assert (names[0] == "model.safetensors.index.json") == (shards == "20KB") == (len(names) > 2)
    theirs = transformers.ViTModel.from_pretrained(tmp_path / "m").eval()
    x = torch.randn(2, 3, 64, 64)
    wanted = theirs(pixel_values=x).pooler_output
    found = load_encoder(own, HOME, tmp_path, CPU).encode(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_a_folder_that_is_not_there_or_holds_nothing_known_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'mine': the weights folder .*/m does not exist"):
        stage(entry({"folder": "m"}), tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m/best.pt").touch()
    with pytest.raises(UserError, match=r"holds no weights file of a known name \(allowed: model"):
        load_encoder(entry({"folder": "m"}), HOME, tmp_path, CPU)


# --- Pins ---


def test_every_file_that_is_read_can_be_pinned(tmp_path: Path, tiny: torch.nn.Module) -> None:
    (tmp_path / "m").mkdir()
    timms_folder(tmp_path / "m", tiny)
    names = ("model.safetensors", "config.json")
    pinned = {name: sha256_of_file(tmp_path / "m" / name) for name in names}
    load_encoder(entry({"folder": "m", "sha256": pinned}), HOME, tmp_path, CPU)
    load_encoder(entry({"folder": "m", "sha256": pinned[names[0]]}), HOME, tmp_path, CPU)
    timms_folder(tmp_path / "m", tiny, licence="another")
    with pytest.raises(UserError, match=r"m/config\.json has the SHA-256 [0-9a-f]{64}, its entry"):
        load_encoder(entry({"folder": "m", "sha256": pinned}), HOME, tmp_path, CPU)


def test_the_owners_md5_is_checked(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(b"what the owners hand out")
    found = digest_of(tmp_path / "w.pt", "md5")
    fetch(entry({"file": "w.pt", "md5": found}), tmp_path)
    with pytest.raises(UserError, match=rf"w\.pt has the MD5 {found}, its entry says {'0' * 32}"):
        fetch(entry({"file": "w.pt", "md5": "0" * 32}), tmp_path)


def test_a_digest_is_computed_once_as_long_as_the_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, kept = tmp_path / "w.pt", tmp_path / "kept.json"
    file.write_bytes(b"first")
    first = Digests(kept).of([file])
    assert first == {"w.pt": sha256_of_file(file)}
    monkeypatch.setattr("crsbench.weights.files.digest_of", lambda *_: pytest.fail("read again"))
    assert Digests(kept).of([file]) == first
    monkeypatch.undo()
    stamp = file.stat().st_mtime_ns
    file.write_bytes(b"other")  # of the same size
    os.utime(file, ns=(stamp + 1, stamp + 1))
    assert Digests(kept).of([file]) == {"w.pt": sha256_of_file(file)} != first
    kept.write_text("damaged")
    assert Digests(kept).of([file]) == {"w.pt": sha256_of_file(file)}


@pytest.mark.parametrize(
    ("weights", "allowed"),
    [
        ({"folder": "m", "sha256": {"model.safetensors": "0" * 64, "config.json": "1" * 64}}, True),
        ({"file": "w.pt", "md5": "0" * 32, "sha256": "0" * 64, "source": "a page"}, True),
        ({**HUB, "revision": None}, True),
        ({**HUB, "revision": "v1.0", "md5": "0" * 32}, True),
        ({"folder": "m", "file": "w.pt"}, False),
        ({"hub": "owner/model"}, False),
        ({**HUB, "revision": ""}, False),
        ({"file": "w.pt", "sha256": {"m/w.pt": "0" * 64}}, False),
        ({"file": "w.pt", "sha256": "0" * 63}, False),
    ],
)
def test_what_weights_may_say(
    weights: dict[str, Any],
    allowed: bool,
    settings: Callable[[str], dict[str, Any]],
    home: Path,
    tmp_path: Path,
) -> None:
    spec = {**dict(entry(weights).spec), "title": "x", "group": "general", "licence": "MIT"}
    registry = tmp_path / "encoders.json"
    registry.write_text(json.dumps({"x": spec}))
    bare = {key: value for key, value in settings("demo").items() if key in REQUIRED}
    bare["studies"]["baseline_encoder"] = "x"
    changed = {**bare, "encoders": ["x"], "encoder_registry": str(registry)}
    if allowed:
        assert load_config(changed, home).encoders["x"].spec["weights"] == weights
    else:
        with pytest.raises(UserError, match=r"x\.weights"):
            load_config(changed, home)


# --- What a changed byte re-runs ---


def test_the_word_changes_with_the_bytes_alone(cache: Cache, tmp_path: Path) -> None:
    own, files = entry(HUB), (tmp_path / "digests.json", tmp_path / "record.json")

    def word(of: EncoderEntry = own) -> str:
        return version(of, tmp_path, *files)

    assert word() == ""  # nothing is recorded
    with pytest.raises(UserError, match="is not available"):
        record(own, tmp_path, *files, "")
    blob = cache.put("model.safetensors", b"first")
    there = word()
    assert there != ""
    record(own, tmp_path, *files, there)
    assert word() == there
    record(own, tmp_path, *files, "")  # planned before the file was there
    assert read_json(files[1])["files"] == {"model.safetensors": blob.name}
    assert word() == ""
    os.utime(blob, ns=(1, 1))
    cache.put("model.safetensors", b"first", commit="b" * 40)
    assert word() == ""  # touched, and another commit with the same file
    assert word(entry({**HUB, "sha256": "0" * 64})) == ""  # a pin says nothing of what was made

    blob = cache.put("model.safetensors", b"other", commit="c" * 40)
    first = word()
    assert first not in ("", there)
    record(own, tmp_path, *files, first)
    assert word() == first  # made anew, it has come to rest
    blob.write_bytes(b"otheR")  # one byte, in place
    os.utime(blob, ns=(5, 5))
    assert word() not in ("", first)
    blob.unlink()
    assert word() == first  # gone: what was made still stands


def test_timms_own_weights_are_recorded_too(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, files = entry("hub", model="resnet18.a1_in1k"), (tmp_path / "d.json", tmp_path / "r.json")
    theirs = Cache(tmp_path / "hub", "timm/resnet18.a1_in1k")
    theirs.put("model.safetensors", b"first")
    record(own, tmp_path, *files, "")
    monkeypatch.setitem(sys.modules, "timm", None)  # the plan does without
    assert version(own, tmp_path, *files) == ""
    theirs.put("model.safetensors", b"other")
    assert version(own, tmp_path, *files) != ""


@pytest.fixture
def panel(tmp_path: Path) -> SmallPanel:
    """One encoder of the hub and one with a local file; neither is there."""
    made = small_panel.make(
        tmp_path / "panel", HF_HUB_CACHE=str(tmp_path / "hub"), HF_HUB_OFFLINE="1"
    )
    shared = {"title": "Tiny", "group": "general", "licence": "MIT"}
    own = {"library": "timm", "model": TINY, "preprocessing": PREPROCESSING, **shared}

    def add(registry: dict[str, Any]) -> None:
        registry |= {"of_hub": {**own, "weights": HUB}, "local": {**own, "weights": LOCAL}}

    made.edit("encoders", add)
    made.edit("config", lambda config: config.update(encoders=["of_hub", "local"]))
    made.edit("config", lambda config: config.update(weights_root="weights"))
    return made


LOCAL = {"file": "w.safetensors"}
FEATURES = {
    name: f"results/features/{name}/phantom_skin/clean.arrow" for name in ("of_hub", "local")
}


def planned(panel: SmallPanel) -> set[str]:
    """What would be made: features by encoder, and records of weights."""
    output = panel.finish("-n", "--quiet", "host", "--", *FEATURES.values())
    made = re.findall(r"^    output: (?:results/)(\w+)/(\w+)", output, re.MULTILINE)
    return {f"{kind} of {name}" for kind, name in made if kind in ("features", "weights")}


def test_a_changed_byte_extracts_that_encoder_again_and_nothing_else(
    panel: SmallPanel, cache: Cache, tiny: torch.nn.Module, tmp_path: Path
) -> None:
    save_file(tiny.state_dict(), tmp_path / "w.safetensors")
    content = (tmp_path / "w.safetensors").read_bytes()
    (panel.folder / "weights").mkdir()
    local = panel.folder / "weights/w.safetensors"
    local.write_bytes(content)
    blob = cache.put("model.safetensors", content)
    panel.finish("--", *FEATURES.values())
    first = digests_of_tensors(panel)
    assert first["of_hub"] == first["local"]

    other = content[:-1] + bytes([content[-1] ^ 1])
    local.write_bytes(other)
    os.utime(blob)  # touched and pinned: the bytes are the same
    panel.edit("encoders", lambda registry: registry["of_hub"]["weights"].update(sha256=blob.name))
    assert planned(panel) == {"features of local", "weights of local"}

    panel.edit("encoders", lambda registry: registry["of_hub"]["weights"].pop("sha256"))
    local.write_bytes(content)
    blob.write_bytes(other)
    stamp = (panel.folder / FEATURES["local"]).stat().st_mtime_ns
    panel.finish("--", *FEATURES.values())
    assert (panel.folder / FEATURES["local"]).stat().st_mtime_ns == stamp
    second = digests_of_tensors(panel)
    assert (second["local"], second["of_hub"] != first["of_hub"]) == (first["local"], True)
    assert planned(panel) == set()


def digests_of_tensors(panel: SmallPanel) -> dict[str, str]:
    return {
        name: read_features(panel.folder / file).metadata["weights_sha256"]
        for name, file in FEATURES.items()
    }
