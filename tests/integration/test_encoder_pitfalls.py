"""The twenty-two known ways to get these encoders wrong, and the test that each has.

The table names for every pitfall the tests that fail where it is not avoided; those that are tests
of nothing else stand below it.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from packaging.version import Version

from crsbench.config.load import load_config
from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.encoders import load_encoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.weights.files import stage
from worlds import checkpoints as panel
from worlds.workflow import HOME

TESTS = HOME / "tests"

PITFALLS: dict[int, tuple[str, Mapping[str, tuple[str, ...]]]] = {
    1: (
        "a load that failed leaves a random model",
        {
            "encoders": (
                "test_a_file_without_tensors_does_not_reach_for_the_hub",
                "test_a_file_that_was_never_trained_is_refused",
                "test_an_absent_file_is_reported_with_where_to_get_it",
            ),
            "encoders_panel": ("test_a_checkpoint_without_the_tower_is_reported",),
        },
    ),
    2: (
        "strict=False hides what is missing",
        {"encoders_panel": ("test_a_lost_or_renamed_tensor_is_reported_by_its_name",)},
    ),
    3: (
        "a silent miss leaves the ordinary weights",
        {
            "encoders_panel": (
                "test_the_weights_are_compared_with_the_general_model",
                "test_positions_that_are_resampled_in_two_ways_hide_no_base_model",
            )
        },
    ),
    4: (
        "GELU in place of QuickGELU",
        {
            "encoders_panel": ("test_quickgelu_is_not_gelu",),
            "encoder_registry": ("test_the_architecture_is_that_of_the_same_network_elsewhere",),
        },
    ),
    5: ("another encoder's normalisation", {"preprocessing": ("test_the_pixels_are_the_owners",)}),
    6: (
        "squash, short side and crop, or pad",
        {"preprocessing": ("test_the_pixels_are_the_owners", "test_the_comparison_sees_each_rule")},
    ),
    7: (
        "interpolation and antialiasing",
        {"preprocessing": ("test_the_pixels_are_the_owners", "test_the_comparison_sees_each_rule")},
    ),
    8: (
        "a library's default preprocessing for a local file",
        {"encoder_pitfalls": ("test_no_librarys_default_preprocessing_is_ever_taken",)},
    ),
    9: (
        "position embeddings resized in each library's own way",
        {
            "encoders_panel": (
                "test_retfounds_positions_are_interpolated_as_its_owners_do",
                "test_the_features_are_those_of_the_reference_model",  # DINOv2, RAD-DINO at 84 px
            )
        },
    ),
    10: (
        "DINOv2 by transformers (256, 224) and by timm (518)",
        {"preprocessing": ("test_what_other_libraries_do_is_a_rule_away",)},
    ),
    11: (
        "transformers 5 has no .vision_model, and an object where a tensor was",
        {"encoders_panel": ("test_the_features_are_those_of_the_reference_model",)},
    ),
    12: (
        "hidden states before or after the final norm",
        {"encoders_any": ("test_depths_are_the_librarys_hidden_states_pooled_alike",)},
    ),
    13: (
        "gated models answer 401 or 403",
        {"encoder_pitfalls": ("test_a_gate_is_reported_with_its_page_and_what_to_do",)},
    ),
    14: (
        "training arguments in a checkpoint, which weights_only refuses",
        {"encoder_pitfalls": ("test_mae_as_its_owners_hand_it_out",)},
    ),
    15: (
        "BiomedCLIP fetches a text configuration where there is no network",
        {"encoder_pitfalls": ("test_biomedclips_image_tower_asks_nobody_for_its_text_model",)},
    ),
    16: (
        "PubMedBERT was renamed, position_ids are unused",
        {"encoder_pitfalls": ("test_biomedclips_image_tower_asks_nobody_for_its_text_model",)},
    ),
    17: (
        "AutoModel gives BioViL's text model",
        {"encoder_pitfalls": ("test_the_text_model_is_not_taken_for_biovil",)},
    ),
    18: (
        "half of BioViL-T's vector is the same for every image",
        {"encoder_pitfalls": ("test_no_part_of_biovil_ts_feature_is_the_same_for_every_image",)},
    ),
    19: (
        "Image.ANTIALIAS is gone from Pillow",
        {"preprocessing": ("test_the_pixels_are_the_owners",)},  # CheXzero's Lanczos
    ),
    20: (
        "float16 overflows",
        {
            "precision": (
                "test_an_overflow_of_float16_is_reported",
                "test_a_reduced_precision_that_loses_the_feature_is_reported",
            )
        },
    ),
    21: (
        "weights that only a link on a page hands out",
        {
            "encoders": (
                "test_an_absent_file_is_reported_with_where_to_get_it",
                "test_a_pinned_file_must_have_its_sha256",
            ),
            "doctor": ("test_every_published_encoder_has_its_licence_gate_and_command",),
        },
    ),
    22: (
        "the owners' code wants libraries of years ago",
        {"encoder_pitfalls": ("test_no_owners_code_and_no_old_library_is_needed",)},
    ),
}


def test_each_of_the_pitfalls_has_its_tests() -> None:
    assert list(PITFALLS) == list(range(1, 23))
    for what, tests in PITFALLS.values():
        assert tests, what
        for file, names in tests.items():
            text = next(TESTS.glob(f"*/test_{file}.py")).read_text("utf-8")
            assert [name for name in names if f"\ndef {name}(" not in text] == [], what


# --- 8 ---


def test_no_librarys_default_preprocessing_is_ever_taken(
    settings: Callable[[str], dict[str, Any]], home: Path, tmp_path: Path
) -> None:
    """Not the one beside the weights, nor the library's for a file: the entry's, which must be."""
    checkpoint = panel.biomedclip()
    entry = panel.entry_of("biomedclip", tmp_path, checkpoint, checkpoint.tensors)
    file = tmp_path / "open_clip_config.json"
    beside = {"mean": [0.1] * 3, "std": [0.2] * 3, "interpolation": "bilinear"}
    config = {**json.loads(file.read_text()), "preprocess_cfg": beside}
    file.write_text(json.dumps(config))
    found = load_encoder(entry, panel.HOME, tmp_path, panel.CPU).preprocessing
    assert found == Preprocessing.from_spec(panel.REGISTRY["biomedclip"]["preprocessing"])
    for name in ("clip", "siglip", "mae"):
        spec = {k: v for k, v in panel.REGISTRY[name].items() if k != "preprocessing"}
        registry = tmp_path / "encoders.json"
        registry.write_text(json.dumps({"x": spec}))
        changed = {**settings("demo"), "encoders": ["x"], "encoder_registry": str(registry)}
        with pytest.raises(UserError, match=r"lacks the key 'preprocessing'"):
            load_config(changed, home)


# --- 13, and what is asked of the hub at all ---


@dataclass
class Hub:
    """What a hub answers on this machine: a status with its headers, or a file."""

    status: int
    headers: Mapping[str, str]
    content: bytes = b""
    asked: list[str] = field(default_factory=list)


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            self.send_response(hub.status)
            for name, value in hub.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(hub.content)))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(hub.content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def connected(monkeypatch: pytest.MonkeyPatch, address: str, cache: Path, offline: bool) -> None:
    constants = "huggingface_hub.constants"
    where = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(f"{constants}.ENDPOINT", address)
    monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", where)
    monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", offline)


GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."}


@pytest.mark.parametrize(
    ("status", "headers", "reported"),
    [
        (401, GATED, "the hub wants a login, 401"),
        (403, GATED, "has not granted access to this login, 403; a fine-grained token also needs"),
    ],
)
def test_a_gate_is_reported_with_its_page_and_what_to_do(
    status: int,
    headers: Mapping[str, str],
    reported: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = panel.REGISTRY["retfound"]
    with serving(Hub(status, headers)) as address:
        connected(monkeypatch, address, tmp_path, offline=False)
        # also of a model whose entry does not know that it is gated
        for gated in (True, False):
            entry = EncoderEntry("mine", "Mine", "specialist", {**spec, "gated": gated})
            with pytest.raises(UserError) as error:
                stage(entry, tmp_path)
            sentence = str(error.value)
            assert reported in sentence
            page = "https://huggingface.co/YukunZhou/RETFound_mae_natureCFP"
            assert f"accept its terms at {page}, log in with `hf auth login`, and" in sentence
            assert sentence.endswith(
                "stage it with `hf download YukunZhou/RETFound_mae_natureCFP "
                "RETFound_mae_natureCFP.pth`."
            )
            assert "\n" not in sentence


@pytest.mark.parametrize(
    ("status", "headers", "reported"),
    [
        (401, {"X-Error-Code": "RepoNotFound"}, "no such repository, or it is private"),
        (404, {"X-Error-Code": "RepoNotFound"}, "the hub knows no such repository"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "the repository has no such revision"),
        (404, {"X-Error-Code": "EntryNotFound"}, "the repository has no such file"),
    ],
)
def test_what_the_hub_refuses_without_a_gate(
    status: int,
    headers: Mapping[str, str],
    reported: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = EncoderEntry("mine", "Mine", "specialist", panel.REGISTRY["biovil"])
    with serving(Hub(status, headers)) as address:
        connected(monkeypatch, address, tmp_path, offline=False)
        with pytest.raises(UserError, match=reported) as error:
            stage(entry, tmp_path)
    assert "accept its terms" not in str(error.value)


def test_offline_and_doctor_ask_nothing_and_staging_asks_for_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"hub": "owner/model", "file": "model.safetensors"}
    entry = EncoderEntry("mine", "Mine", "general", {"library": "timm", "weights": weights})
    headers = {"ETag": f'"{"e" * 40}"', "X-Repo-Commit": "c" * 40}
    hub = Hub(200, headers, content=b"weights")
    with serving(hub) as address:
        for offline, download in ((True, True), (False, False)):
            connected(monkeypatch, address, tmp_path, offline=offline)
            with pytest.raises(UserError, match="not in the local cache"):
                stage(entry, tmp_path, download=download)
        assert hub.asked == []
        connected(monkeypatch, address, tmp_path, offline=False)
        (file,) = stage(entry, tmp_path)
        assert file.read_bytes() == b"weights"
        assert {line.split("/")[0] for line in hub.asked} == {"HEAD ", "GET "}
        asked = len(hub.asked)
        connected(monkeypatch, address, tmp_path, offline=True)
        assert stage(entry, tmp_path) == [file]
        assert len(hub.asked) == asked


# --- 14 ---


@torch.inference_mode()
def test_mae_as_its_owners_hand_it_out(tmp_path: Path) -> None:
    """The tensors below `model`, beside optimizer state and an argparse.Namespace."""
    write = panel.as_torch("mae_pretrain_vit_base.pth", "model", **panel.MAE_ARGUMENTS)
    checkpoint = replace(panel.mae(), write=write)
    encoder = panel.load("mae", tmp_path, checkpoint, checkpoint.tensors)
    x = panel.images(224)
    torch.testing.assert_close(encoder.encode(x), checkpoint.reference(x), rtol=0, atol=1e-5)
    lost = {n: t for n, t in checkpoint.tensors.items() if n != checkpoint.vital}
    with pytest.raises(UserError, match=checkpoint.vital):
        panel.load("mae", tmp_path, checkpoint, lost)


# --- 15, 16 ---


@pytest.mark.parametrize(
    "text_model",
    [
        "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract",
        "microsoft/BiomedNLP-PubMedBERT-base-uncased-abstract",  # its name before
    ],
)
def test_biomedclips_image_tower_asks_nobody_for_its_text_model(
    text_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = panel.biomedclip()
    bert = {"text.transformer.embeddings.position_ids": torch.arange(512)[None]}
    bert |= {"text.transformer.embeddings.word_embeddings.weight": torch.zeros(30, 8)}
    entry = panel.entry_of("biomedclip", tmp_path, checkpoint, {**checkpoint.tensors, **bert})
    file = tmp_path / "open_clip_config.json"
    config = json.loads(file.read_text())
    names = {"hf_model_name": text_model, "hf_tokenizer_name": text_model}
    text = {**names, "hf_proj_type": "mlp", "hf_pooler_type": "cls_last_hidden_state_pooler"}
    config["model_cfg"]["text_cfg"] = {**text, "context_length": 256}
    file.write_text(json.dumps(config))

    def refused(*asked: Any, **_: Any) -> None:
        raise AssertionError(f"asked for {asked}")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", refused)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refused)
    x = panel.images(224)
    with torch.inference_mode():
        found = load_encoder(entry, panel.HOME, tmp_path, panel.CPU).encode(x)
        torch.testing.assert_close(found, checkpoint.reference(x), rtol=0, atol=1e-5)


# --- 17, 18 ---


@pytest.mark.parametrize("name", ["biovil", "biovil_t"])
def test_the_text_model_is_not_taken_for_biovil(name: str, tmp_path: Path) -> None:
    """What AutoModel makes of the repository: `pytorch_model.bin`, with a BERT in it."""
    text = {"bert.embeddings.word_embeddings.weight": torch.zeros(30, 8)}
    text |= {"cls_projection_head.dense_to_hidden.weight": torch.zeros(8, 8)}
    with pytest.raises(UserError, match=rf"'{name}': its weights lack .*bert\.embeddings\.word"):
        panel.load(name, tmp_path, panel.CHECKPOINTS[name](), text)
    assert panel.REGISTRY[name]["weights"]["file"].startswith("biovil_")


@torch.inference_mode()
def test_no_part_of_biovil_ts_feature_is_the_same_for_every_image(tmp_path: Path) -> None:
    checkpoint = panel.biovil_t()
    encoder = panel.load("biovil_t", tmp_path, checkpoint, checkpoint.tensors)
    features = encoder.encode(panel.images(64) * torch.tensor([1, 50])[:, None, None, None])
    assert features.shape[1] == 256  # of the owners' 512
    assert (features[0] != features[1]).all()


# --- 22 ---


def test_no_owners_code_and_no_old_library_is_needed(tmp_path: Path) -> None:
    """The libraries of today read what was written with timm 0.9, transformers 4.36 and before."""
    for name in ("llava_med", "panderm", "retfound", "chexzero"):
        checkpoint = panel.CHECKPOINTS[name]()
        folder = tmp_path / name
        folder.mkdir()
        panel.load(name, folder, checkpoint, checkpoint.tensors)
    assert Version(timm.__version__) >= Version("1.0")
    assert Version(transformers.__version__) >= Version("5.0")
    owners = ("llava", "health_multimodal", "models_vit", "furnace", "clip", "medsiglip")
    assert [name for name in owners if name in sys.modules] == []
    # torchvision's tensor resize had no antialiasing when CheXzero's owners used it
    assert panel.REGISTRY["chexzero"]["preprocessing"]["antialias"] is False
