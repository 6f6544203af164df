"""The doctor and the staging: what a run needs is reported before it starts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.torch import save_file
from torch import zeros

from crsbench.config.layout import Layout
from crsbench.config.load import load_config
from crsbench.config.model import Config, DatasetEntry, EncoderEntry
from crsbench.config.overlap import Overlaps
from crsbench.core.errors import UserError
from crsbench.core.hashing import sha256_of_file
from crsbench.features.store import FeatureWriter
from crsbench.operations import doctor
from crsbench.operations.doctor import Images, Row
from crsbench.weights.files import digest_of, stage, stage_all

Settings = Callable[[str], dict[str, Any]]

LOCAL = {
    "title": "Local",
    "group": "general",
    "licence": "MIT",
    "library": "timm",
    "model": "resnet18",
    "weights": {"file": "local.safetensors", "source": "https://example.org/weights"},
    "preprocessing": {
        "resize": "squash",
        "size": 32,
        "interpolation": "bicubic",
        "mean": [0, 0, 0],
        "std": [1, 1, 1],
    },
}


@pytest.fixture
def configured(
    plain_demo: Callable[[], dict[str, Any]], home: Path, tmp_path: Path
) -> Callable[..., Config]:
    """The demo's configuration with encoders and data sets of the test's own added."""

    def make(
        encoders: dict[str, Any] | None = None,
        datasets: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Config:
        roots = ("weights_root", "data_root")
        content = plain_demo() | dict.fromkeys(roots, str(tmp_path))
        content |= {"results": str(tmp_path / "results")}
        for kind, own in (("encoder", encoders or {}), ("dataset", datasets or {})):
            shipped = yaml.safe_load((home / content[f"{kind}_registry"]).read_text("utf-8"))
            file = tmp_path / f"{kind}s.yaml"
            file.write_text(yaml.safe_dump({**shipped, **own}), "utf-8")
            content |= {f"{kind}_registry": str(file)}
            if own:
                content |= {f"{kind}s": list(own)}
        return load_config({**content, **changes}, home)

    return make


def encoder_row(config: Config, name: str) -> Row:
    return doctor.encoder_row(config, config.encoders[name])


# --- Encoders ---


def test_absent_weights_are_red_and_say_where_to_get_them(
    configured: Callable[..., Config], tmp_path: Path
) -> None:
    config = configured({"local": LOCAL})
    row = encoder_row(config, "local")
    assert (row.light, row.cells["weights"], row.cells["SHA-256"]) == ("red", "missing", "-")
    assert row.cells["from"] == "https://example.org/weights"
    assert row.advice.endswith("does not exist; get it from https://example.org/weights.")

    save_file({"x": zeros(3)}, tmp_path / "local.safetensors")
    row = encoder_row(config, "local")
    digest = sha256_of_file(tmp_path / "local.safetensors")
    assert (row.light, row.cells["SHA-256"]) == ("green", f"{digest[:12]}…")
    assert (
        row.advice == f"The encoder 'local': pin what you have in its weights, `sha256: {digest}`."
    )
    assert row.cells["weights"] == f"found ({(tmp_path / 'local.safetensors').stat().st_size} B)"


def test_a_pinned_digest_is_checked(configured: Callable[..., Config], tmp_path: Path) -> None:
    save_file({"x": zeros(3)}, tmp_path / "local.safetensors")
    digest = sha256_of_file(tmp_path / "local.safetensors")
    weights = {"file": "local.safetensors", "sha256": digest}
    row = encoder_row(configured({"local": {**LOCAL, "weights": weights}}), "local")
    assert (row.light, row.cells["pinned"], row.advice) == ("green", "yes", "")
    by_name = {**weights, "sha256": {"local.safetensors": digest}}
    row = encoder_row(configured({"local": {**LOCAL, "weights": by_name}}), "local")
    assert (row.light, row.cells["pinned"], row.advice) == ("green", "yes", "")
    owners = {"file": "local.safetensors", "md5": digest_of(tmp_path / "local.safetensors", "md5")}
    row = encoder_row(configured({"local": {**LOCAL, "weights": owners}}), "local")
    assert (row.light, row.cells["pinned"]) == ("green", "by MD5")
    assert f"`sha256: {digest}`" in row.advice
    owners["md5"] = "0" * 32
    row = encoder_row(configured({"local": {**LOCAL, "weights": owners}}), "local")
    assert (row.light, row.cells["weights"]) == ("red", "missing")
    assert "has the MD5" in row.advice
    weights["sha256"] = "0" * 64
    row = encoder_row(configured({"local": {**LOCAL, "weights": weights}}), "local")
    assert row.light == "red"
    assert f"has the SHA-256 {digest}" in row.advice


def test_what_the_general_model_is_to_the_weights_is_reported(
    configured: Callable[..., Config], tmp_path: Path
) -> None:
    save_file({"x": zeros(3)}, tmp_path / "local.safetensors")
    base_model = {"title": "General", "weights": {"file": "general.safetensors"}}
    config = configured({"local": {**LOCAL, "base_model": base_model}})

    def reported() -> tuple[str, str, str]:
        row = encoder_row(config, "local")
        return row.light, row.cells["its general model"], row.advice.split(";")[0]

    light, verdict, advice = reported()
    assert (light, verdict) == ("yellow", "not yet compared")
    assert (
        "can't be compared with General, which is not available: `snakemake --cores 1 st" in advice
    )
    save_file({"x": zeros(3)}, tmp_path / "general.safetensors")
    assert reported()[:2] == ("green", "not yet compared")
    layout, (dataset, *_) = Layout(config.results), config.datasets
    clean = {"encoder": "local", "dataset": dataset, "condition": "clean"}
    for verdict, light, advice in [
        ("differs", "green", "pin what you have"),
        ("equal", "yellow", "The encoder 'local' is General: its weights are equal to that"),
        ("not compared", "yellow", "was not compared with General, which is available now"),
    ]:
        made = {"base_model": {"verdict": verdict}}
        with FeatureWriter(layout.at(layout.features, **clean), made) as writer:
            writer.append("a", np.zeros(2, np.float32))
        found = reported()
        assert found[:2] == (light, verdict)
        assert advice in found[2]


def test_every_published_encoder_has_its_licence_gate_and_command(
    settings: Settings, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    config = load_config({**settings("config"), "weights_root": str(tmp_path)}, home)
    rows = {name: encoder_row(config, name) for name in config.encoders}
    assert len(rows) == 15
    assert {row.light for row in rows.values()} == {"red"}
    assert {name for name, row in rows.items() if row.cells["gated"] == "yes"} == {
        *("medsiglip", "medgemma", "retfound")
    }
    assert rows["biovil"].cells["from"] == "hub microsoft/BiomedVLP-CXR-BERT-specialized at v1.1"
    assert rows["mae"].cells["licence"] == "CC-BY-NC-4.0"
    page = "accept its terms at https://huggingface.co/google/medsiglip-448"
    assert page in rows["medsiglip"].advice
    assert "`hf download microsoft/rad-dino config.json model.saf" in rows["rad_dino"].advice
    assert "`snakemake --cores 1 stage`" in rows["llava_med"].advice
    assert "get it from https://github.com/SiyuanYan1/PanDerm" in rows["panderm"].advice
    overlaps = rows["rad_dino"].cells["pre-training had"]
    assert overlaps == "chexpert, mimic, isic2019?, aptos2019?"


@pytest.mark.parametrize(
    ("changes", "light", "found"),
    [
        ({"library": "timm", "weights": "untrained"}, "green", "none (untrained)"),
        ({"library": "python", "model": "examples.image_statistics:load"}, "green", "module "),
        ({"library": "python", "model": "examples.nothing:load"}, "red", "missing"),
        ({"library": "python", "model": "json.decoder.nothing:load"}, "red", "missing"),
    ],
)
def test_an_encoder_without_weights_needs_its_module_alone(
    changes: dict[str, Any], light: str, found: str, configured: Callable[..., Config]
) -> None:
    spec = {key: value for key, value in LOCAL.items() if key != "weights"} | changes
    row = encoder_row(configured({"own": spec}), "own")
    assert row.light == light
    assert row.cells["weights"].startswith(found)
    assert row.cells["SHA-256"] == "-"
    assert ("there is no Python module" in row.advice) == (light == "red")


def test_an_encoder_that_can_only_be_planned_is_red(configured: Callable[..., Config]) -> None:
    planned = {key: LOCAL[key] for key in ("title", "group", "licence")}
    row = encoder_row(configured({"planned": planned}), "planned")
    assert row.light == "red"
    assert "can be planned but not run" in row.advice


# --- Data sets ---


def test_a_data_set_is_read_counted_and_its_images_are_looked_for(
    configured: Callable[..., Config],
    table_entry: Callable[..., DatasetEntry],
    image_set: Callable[..., Path],
    tmp_path: Path,
) -> None:
    rows = [{"id": str(n), "path": f"{n}.png", "label": "ab"[n % 2]} for n in range(6)]
    spec = {**table_entry().spec, "expected_images": 6}
    config = configured(datasets={"small": spec})
    entry = config.datasets["small"]

    row = doctor.dataset_row(entry, doctor.find_images(config, entry))
    assert row.light == "red"
    assert "The image root" in row.advice

    image_set(tmp_path / "small", rows)
    found = doctor.find_images(config, entry)
    assert found == Images(str(tmp_path / "small"), 6)
    assert doctor.dataset_row(entry, found).light == "green"

    (tmp_path / "small" / "4.png").unlink()
    row = doctor.dataset_row(entry, doctor.find_images(config, entry))
    assert row.light == "red"
    first = tmp_path / "small" / "4.png"
    assert f"1 of 6 images that were looked for are missing, the first is {first}." in row.advice


def test_a_count_that_is_not_the_publishers_is_yellow(
    table_entry: Callable[..., DatasetEntry],
) -> None:
    entry = table_entry(expected_images={"train": 5, "valid": 2})
    found = Images("there", 7, {"train": 5, "valid": 2})
    assert doctor.dataset_row(entry, found).light == "green"
    row = doctor.dataset_row(entry, Images("there", 7, {"train": 6, "valid": 1}))
    assert row.light == "yellow"
    assert "has 6 train + 1 valid images" in row.advice
    assert "release has 5 train + 2 valid." in row.advice


def test_quarantine_makes_absent_images_yellow(table_entry: Callable[..., DatasetEntry]) -> None:
    entry = table_entry(damaged_images="quarantine")
    assert doctor.dataset_row(entry, Images("there", 7, fault="1 is missing.")).light == "yellow"
    assert doctor.dataset_row(entry, Images("there", fault="No table.")).light == "red"


# --- The machine ---


def test_the_features_of_the_published_panel_are_estimated(published: Config) -> None:
    counts = {"isic2019": 25331, "aptos2019": 3662, "chexpert": 191229, "mimic": 50000}
    images = {name: Images("", count) for name, count in counts.items()}
    # 15 × ISIC and CheXpert, 13 × APTOS, each clean and 15 times its fifth; 15 × MIMIC clean
    rows = (15 * (25331 + 191229) + 13 * 3662) * 4 + 15 * 50000
    row = doctor.disk_row(published, images)
    assert row.cells["needed"] == f"about {rows * 4096 / 1e9:.0f} GB of features"


def test_a_full_disk_is_yellow(
    configured: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(results=str(tmp_path / "not" / "yet"))
    images = {name: Images("", 100) for name in [*config.datasets, *config.targets]}
    assert doctor.disk_row(config, images).light == "green"
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage)
    row = doctor.disk_row(config, images)
    assert (row.light, row.cells["found"][:9]) == ("yellow", "1 kB free")


def test_shared_memory_counts_only_for_worker_processes(tmp_path: Path) -> None:
    assert doctor.shared_memory_row(0, tmp_path / "none").light == "green"
    assert doctor.shared_memory_row(2, tmp_path / "none").light == "yellow"
    assert doctor.shared_memory_row(2, tmp_path).light == "green"


def test_cuda_is_asked_for_by_the_config_alone(
    configured: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    extraction = {"device": "cuda", "precision": "bfloat16", "batch_size": 4, "workers": 0}
    red = doctor.missing(doctor.examine(configured(extraction=extraction)))
    assert red == ["CUDA"]
    assert doctor.missing(doctor.examine(configured())) == []


def test_the_table_lines_up_and_ends_in_its_advice() -> None:
    rows = [Row("green", {"what": "a", "found": "yes"}), Row("red", {"what": "bcd", "found": "no"})]
    rows.append(Row("yellow", {"what": "e", "found": "?"}))
    report = {"Things": [rows[0], Row("red", rows[1].cells, "Get it."), rows[2]]}
    assert doctor.formatted(report).splitlines() == [
        "Things",
        "        what  found",
        "green   a     yes",
        "red     bcd   no",
        "yellow  e     ?",
        "  red: Get it.",
    ]
    assert doctor.missing(report) == ["bcd"]


# --- Overlap with pre-training ---


def test_overlap_is_yes_no_or_unknown_for_each_data_set_and_its_targets(home: Path) -> None:
    def registry(name: str) -> dict[str, Any]:
        return yaml.safe_load((home / f"config/{name}.yaml").read_text("utf-8"))

    encoders = {name: registry("encoders")[name] for name in ("biovil", "vit_tiny_untrained")}
    encoders["biovil"]["pretraining"]["isic2019"] = {"included": False, "source": "its paper"}
    names = ("isic2019", "aptos2019", "chexpert", "phantom_skin")
    datasets = {name: registry("datasets")[name] for name in names}
    targets = {"mimic": registry("datasets")["mimic"]}
    found = Overlaps(encoders, datasets, targets).table()
    cell = "BiomedVLP-CXR-BERT-specialized model card; Boecking et al., ECCV 2022"
    assert found[found["encoder"] == "biovil"].iloc[:, 1:].values.tolist() == [
        ["isic2019", "isic2019", "no", "its paper"],
        ["chexpert", "chexpert", "unknown", ""],
        ["chexpert", "mimic", "yes", cell],
        ["phantom_skin", "phantom_skin", "no", "synthetic images"],
    ]
    untrained = found[found["encoder"] == "vit_tiny_untrained"]
    assert untrained["images"].tolist() == [*names[:3], "mimic", "phantom_skin"]
    assert set(untrained["included"]) == {"no"}


# --- Staging ---


def test_every_encoder_is_staged_or_reported_before_staging_fails(
    configured: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"x": zeros(3)}, tmp_path / "there.safetensors")
    own = {
        "absent": LOCAL,
        "there": {**LOCAL, "weights": {"file": "there.safetensors"}},
        "untrained": {**LOCAL, "weights": "untrained"},
    }
    own["there"]["base_model"] = {"title": "General", "weights": {"file": "there.safetensors"}}
    with pytest.raises(UserError, match="1 of 4 encoders were not staged: absent; each says"):
        stage_all(configured(own))
    kept = json.loads((tmp_path / "results/weights/.digests.cache.json").read_text("utf-8"))
    assert str(tmp_path / "there.safetensors") in kept
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("not staged: Encoder 'absent': the weights file")
    assert lines[1:] == [
        f"staged: there, available in {tmp_path}",
        "staged: untrained, needs no weights",
        f"staged: General, available in {tmp_path}",
    ]


def test_timms_own_weights_are_staged_where_timm_looks_for_them(
    configured: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--timm--resnet18.a1_in1k"
    entry = EncoderEntry("own", "Own", "general", {**LOCAL, "weights": "hub"})
    with pytest.raises(UserError, match=r"`hf download timm/resnet18.a1_in1k model.safetensors`"):
        stage(entry, tmp_path)
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    (snapshot / "model.safetensors").touch()
    assert stage(entry, tmp_path) == [snapshot / "model.safetensors"]
    row = encoder_row(configured({"own": dict(entry.spec)}), "own")
    pinned = f"file: model.safetensors, sha256: {sha256_of_file(snapshot / 'model.safetensors')}"
    assert (row.light, row.cells["pinned"]) == ("green", "no")
    assert row.advice.endswith(f"`weights: {{hub: timm/resnet18.a1_in1k, {pinned}}}`.")
    unknown = EncoderEntry("own", "Own", "general", {**LOCAL, "weights": "hub", "model": "none"})
    with pytest.raises(UserError, match="timm knows no weights on the hub for 'none'"):
        stage(unknown, tmp_path)


# --- Through the workflow ---


def test_snakemake_doctor_prints_the_table_and_its_status_says(
    snakemake: Callable[..., subprocess.CompletedProcess[str]],
    settings: Callable[[str], dict[str, Any]],
    tmp_path: Path,
) -> None:
    content = settings("demo") | {"encoders": ["lite0_128px", "panderm"]}
    content["studies"]["baseline_encoder"] = "lite0_128px"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    ended = snakemake("--cores", "1", "--configfile", "config.yaml", "--", "doctor", cwd=tmp_path)
    output = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "crsbench: `all` can't end without what is red above: panderm." in output
    assert "green  lite0_128px  found (19 MB)" in ended.stdout
    assert "Traceback (most recent call last)" not in output
    made = {path.name for path in (tmp_path / "results/demo").rglob("*") if path.is_file()}
    assert made == {"doctor.log", ".digests.cache.json"}
