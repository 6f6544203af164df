"""What a job in a process of its own takes for its config, and the features that it reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from crsbench.config.load import load_config
from crsbench.config.planned import FOLDER, VARIABLE, keep_planned, load_planned
from crsbench.core.errors import UserError
from crsbench.features.settings import ExtractionSettings
from crsbench.features.store import FeatureWriter, read_features

ENCODER = "vit_tiny_untrained"


@pytest.fixture
def kept(
    plain_demo: Callable[[], dict[str, Any]],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """The demo's settings with registries of a folder's own, kept for the jobs of a run there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")  # which keep_planned sets for all that this process starts
    content = plain_demo()
    for name in ("encoder_registry", "dataset_registry"):
        own = tmp_path / f"{name}.yaml"
        own.write_text((home / content[name]).read_text("utf-8"), "utf-8")
        content[name] = str(own)
    keep_planned(content, load_config(content, home))
    return content


def test_a_job_has_the_settings_planned_whatever_the_registries_say_now(
    kept: dict[str, Any], home: Path
) -> None:
    before = load_config(kept, home)
    for name in ("encoder_registry", "dataset_registry"):
        Path(kept[name]).write_text("nothing: any more\n", "utf-8")
    planned = load_planned(home)
    assert planned.settings == before.settings
    assert planned.encoders == before.encoders
    assert planned.datasets == before.datasets
    assert planned.targets == before.targets


def test_a_job_without_the_settings_planned_ends_in_one_sentence(
    kept: dict[str, Any], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = FOLDER.glob("*.json")
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"seeds"', b'"sedes"', 1))
    with pytest.raises(UserError, match=rf"^{file}, the settings that .*gone or was changed; run"):
        load_planned(home)
    file.unlink()
    with pytest.raises(UserError, match=rf"^{file}, the settings that .*gone or was changed; run"):
        load_planned(home)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(UserError, match=f"lacks the environment variable {VARIABLE}, .*pass"):
        load_planned(home)


def made_by(content: dict[str, Any], home: Path) -> dict[str, Any]:
    config = load_config(content, home)
    return ExtractionSettings.of(config, [ENCODER], []).made_by[ENCODER]


def in_entry(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def edit(content: dict[str, Any]) -> None:
        file = Path(content["encoder_registry"])
        registry = yaml.safe_load(file.read_text("utf-8"))
        change(registry[ENCODER])
        file.write_text(yaml.safe_dump(registry), "utf-8")

    return edit


@pytest.mark.parametrize(
    ("change", "key", "wanted"),
    [
        (lambda c: c["perturbations"].update(jpeg=[7]), "perturbations.jpeg", [7]),
        (lambda c: c["perturbations"].pop("jpeg"), "perturbations.jpeg", None),
        (lambda c: c["image"].update(short_side=33), "short_side", 33),
        (lambda c: c["image"].update(max_pixels=1234567), "max_pixels", 1234567),
        (lambda c: c["extraction"].update(batch_size=3), "batch_size", 3),
        (
            in_entry(lambda e: e["preprocessing"].update(std=[0.5, 0.5, 0.4])),
            "encoder.preprocessing.std",
            [0.5, 0.5, 0.4],
        ),
    ],
)
def test_features_made_by_other_settings_are_refused(
    change: Callable[[dict[str, Any]], None],
    key: str,
    wanted: Any,
    kept: dict[str, Any],
    home: Path,
) -> None:
    before = made_by(kept, home)
    path = Path("clean.arrow")
    with FeatureWriter(path, {"made_by": before}) as writer:
        writer.append("a", np.ones(3, np.float32))
    assert read_features(path, before).image_ids.tolist() == ["a"]
    change(kept)
    now = made_by(kept, home)
    found: Any = before
    for name in key.split("."):
        found = found[name]
    with pytest.raises(UserError) as error:
        read_features(path, now)
    assert str(error.value) == (
        f"{path} was made with {key} {json.dumps(found)}, the run wants {json.dumps(wanted)}; "
        f"make it again with `--forcerun {path}`."
    )
    assert read_features(path).image_ids.tolist() == ["a"]


def test_where_things_lie_is_no_part_of_what_made_a_feature(
    kept: dict[str, Any], home: Path
) -> None:
    before = made_by(kept, home)
    kept.update(weights_root="elsewhere", data_root="elsewhere", results="elsewhere")
    assert made_by(kept, home) == before


def test_features_that_do_not_say_what_made_them_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.arrow"
    with FeatureWriter(path, {}) as writer:
        writer.append("a", np.ones(3, np.float32))
    with pytest.raises(UserError, match=rf"{path} was made with settings null, the run wants"):
        read_features(path, {"short_side": 224})
