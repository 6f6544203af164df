"""The depth sweep: one forward pass for all depths, and gains against a hand-made table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from crsbench.config.load import load_config
from crsbench.config.model import Config
from crsbench.core.errors import UserError
from crsbench.core.files import read_table
from crsbench.core.threads import use_one_thread
from crsbench.data.manifest import write_manifest
from crsbench.data.splits import write_split, write_test
from crsbench.evaluation.depth import probe_depths
from crsbench.evaluation.runs import RUN_COLUMNS
from crsbench.features.depths import extract_depths
from crsbench.features.jobs import extract_features
from crsbench.features.settings import ExtractionSettings
from crsbench.features.store import read_features
from crsbench.probes import ProbeSettings
from crsbench.studies.base import write_study
from crsbench.studies.depth_sweep import depth_sweep
from crsbench.studies.inputs import Inputs

DEPTHS = [25, 50, 75, 100]
SEEDS = [0, 1]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    use_one_thread()


@pytest.fixture(scope="module")
def small(
    tmp_path_factory: pytest.TempPathFactory,
    home: Path,
    plain_demo: Callable[[], dict[str, Any]],
    image_set: Callable[..., Path],
) -> tuple[Config, Path]:
    """Forty noise images of two classes, their manifest and splits, and a config of the floors."""
    folder = tmp_path_factory.mktemp("small")
    rows = [{"id": f"i{n:02d}", "path": f"{n}.png", "label": "ab"[n % 2]} for n in range(40)]
    image_set(folder / "set", rows)
    (folder / "datasets.yaml").write_text(
        "small: {title: Small, licence: CC0-1.0, task: multiclass, classes: [a, b], reader: table,"
        " root: set, table: table.csv, columns: {id: id, path: path, label: label}}\n"
    )
    content = plain_demo() | {
        "data_root": str(folder),
        "dataset_registry": str(folder / "datasets.yaml"),
        "encoders": ["lite0_128px", "resnet18_untrained", "vit_tiny_untrained", "image_statistics"],
        "datasets": ["small"],
        "depth_sweep": {
            "encoders": ["resnet18_untrained", "vit_tiny_untrained"],
            "datasets": ["small"],
            "depths": DEPTHS,
            "without_norm": ["vit_tiny_untrained"],
        },
    }
    config = load_config(content, home)
    files = [folder / name for name in ("manifest.parquet", "images.parquet", "test.parquet")]
    root = folder / "set"
    write_manifest(*files[:2], config.datasets["small"], root, max_pixels=10**6, workers=1)
    write_test(files[2], files[0], 0.25)
    for seed in SEEDS:
        write_split(folder / f"seed{seed}.parquet", files[0], files[2], seed, [100], 0.125)
    return config, folder


def settings_of(config: Config, encoder: str) -> ExtractionSettings:
    return ExtractionSettings.of(config, [encoder], ["small"])


def sweep(small: tuple[Config, Path], encoder: str, folder: Path) -> dict[int, Path]:
    config, data = small
    outputs = {depth: folder / f"depth{depth}.arrow" for depth in DEPTHS}
    extract_depths(
        settings_of(config, encoder),
        without_norm=encoder in config.settings["depth_sweep"]["without_norm"],
        manifest_file=data / "manifest.parquet",
        outputs=outputs,
        workers=0,
    )
    return outputs


def test_the_last_depth_is_the_frozen_feature_and_the_runs_are_those_of_the_probe(
    small: tuple[Config, Path], tmp_path: Path
) -> None:
    config, data = small
    outputs = sweep(small, "resnet18_untrained", tmp_path)
    frozen = tmp_path / "resnet18_untrained" / "small" / "clean.arrow"
    extract_features(
        settings_of(config, "resnet18_untrained"),
        manifest_file=data / "manifest.parquet",
        test_file=None,
        outputs=[frozen],
        workers=0,
    )
    at = {depth: read_features(file) for depth, file in outputs.items()}
    assert [at[depth].matrix.shape for depth in DEPTHS] == [(40, w) for w in (64, 128, 256, 512)]
    assert np.array_equal(at[100].matrix, read_features(frozen).matrix)
    assert at[25].metadata["norm"] == "has none"
    assert sorted(tmp_path.glob("*.arrow")) == sorted(outputs.values())

    splits = {seed: data / f"seed{seed}.parquet" for seed in SEEDS}
    arguments = "resnet18_untrained", outputs, data / "manifest.parquet", splits, ProbeSettings()
    for name in ("once", "again"):
        probe_depths(tmp_path / name, *arguments)
    assert (tmp_path / "once").read_bytes() == (tmp_path / "again").read_bytes()
    runs, _ = read_table(tmp_path / "once")
    assert set(RUN_COLUMNS) <= set(runs)
    assert len(runs) == len(DEPTHS) * len(SEEDS)
    assert set(runs["percent"]) == {100}


def test_a_norm_is_left_out_where_the_config_says_so(
    small: tuple[Config, Path], tmp_path: Path
) -> None:
    at = {
        depth: read_features(file)
        for depth, file in sweep(small, "vit_tiny_untrained", tmp_path).items()
    }
    assert at[50].metadata["norm"] == "left out"
    # A normed class token of an untrained network has mean 0 and variance 1; another has neither.
    spread = {depth: float(features.matrix.std()) for depth, features in at.items()}
    assert spread[100] == pytest.approx(1, abs=0.01)
    assert abs(spread[50] - 1) > 0.1


@pytest.mark.parametrize("name", ["resnet18_untrained", "vit_tiny_untrained", "lite0_128px"])
def test_all_depths_come_from_one_forward_pass(name: str, small: tuple[Config, Path]) -> None:
    from crsbench.encoders import load_encoder

    config, _ = small
    encode = load_encoder(config.encoders[name], config.home, Path(), torch.device("cpu")).encode
    calls: list[str] = []
    for path, module in encode.named_modules():
        if not list(module.children()) and list(module.parameters()):
            module.register_forward_hook(lambda *_, path=path: calls.append(path))
    size = config.encoders[name].spec["preprocessing"]["size"]
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        features = encode.blocks(images, [0.25, 0.5, 0.75, 1])
        twice = {path for path in calls if calls.count(path) > 1}
        assert twice <= {"model.norm"}  # the final norm alone is applied to each depth
        assert torch.allclose(features[-1], encode(images), atol=1e-5)


def test_an_encoder_without_blocks_or_with_too_few_is_reported(
    small: tuple[Config, Path], tmp_path: Path
) -> None:
    config, data = small
    arguments: dict[str, Any] = {
        "without_norm": False,
        "manifest_file": data / "manifest.parquet",
        "workers": 0,
    }
    with pytest.raises(UserError, match=r"'image_statistics' .*no method `blocks`"):
        extract_depths(
            settings_of(config, "image_statistics"),
            outputs={100: tmp_path / "x.arrow"},
            **arguments,
        )
    with pytest.raises(UserError, match=r"'resnet18_untrained' .*each a block of its own"):
        extract_depths(
            settings_of(config, "resnet18_untrained"),
            outputs={d: tmp_path / f"{d}.arrow" for d in (50, 55, 100)},
            **arguments,
        )
    assert not list(tmp_path.glob("[!.]*"))


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"encoders": ["lite0"]}, r"depth_sweep.encoders names 'lite0' \(did you mean 'lite0_128"),
        ({"datasets": ["phantom"]}, r"depth_sweep.datasets names 'phantom'.*not in datasets"),
        ({"without_norm": ["lite1_128px"]}, r"without_norm names 'lite1_128px'.*of the sweep"),
        ({"depths": [25, 50]}, r"depth_sweep.depths"),
        ({"depth": [100]}, r"unknown key 'depth' in depth_sweep \(did you mean 'depths'"),
    ],
)
def test_a_wrong_sweep_is_reported(
    changes: dict[str, Any], reported: str, settings: Callable[[str], dict[str, Any]], home: Path
) -> None:
    content = settings("demo")
    content["depth_sweep"] = content["depth_sweep"] | changes
    with pytest.raises(UserError, match=reported):
        load_config(content, home)


# --- the study ----------------------------------------------------------------------------------

AUROC = {  # by encoder and data set: depth: one value a seed
    ("deep", "d1"): {50: [0.70, 0.72, 0.71], 100: [0.80, 0.81, 0.82]},
    ("shallow", "d1"): {50: [0.75, 0.77, 0.79], 100: [0.74, 0.74, 0.77]},
    ("shallow", "d2"): {50: [0.90, 0.91, 0.92], 100: [0.90, 0.90, 0.90]},
}
TITLES = {name: {"title": name.upper(), "group": "general"} for name in ("deep", "shallow")}
SETS = {name: {"title": name.upper()} for name in ("d1", "d2")}


def runs_of(auroc: dict[tuple[str, str], dict[int, list[float]]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"encoder": e, "dataset": d, "depth": depth, "seed": seed, "norm": "applied"}
            | {"width": 8, "macro_auroc": value, "ece": 0.1 + seed / 100}
            for (e, d), depths in auroc.items()
            for depth, values in depths.items()
            for seed, value in enumerate(values)
        ]
    )


def inputs_of(runs: pd.DataFrame) -> Inputs:
    return Inputs(TITLES, SETS, {}, {}).having(depth_runs=runs)


def test_gains_are_paired_by_seed_and_findings_count_them(tmp_path: Path) -> None:
    shuffled = runs_of(AUROC).sample(frac=1, random_state=0)
    study = depth_sweep(inputs_of(shuffled))
    table = study.table.set_index(["encoder", "dataset", "depth"])
    row = table.loc[("shallow", "d1", 50)]
    differences = np.array([0.01, 0.03, 0.02])
    assert row["gain"] == pytest.approx(differences.mean())
    low, high = stats.t.interval(0.95, 2, differences.mean(), stats.sem(differences))
    assert (row["gain_low"], row["gain_high"]) == pytest.approx((low, high))
    assert study.findings["sweeps"] == 3
    assert study.findings["intermediate_better"] == 2
    assert study.findings["gain_points.shallow.low"] == pytest.approx(1.0)
    assert study.findings["gain_points.shallow.high"] == pytest.approx(2.0)
    assert study.findings["best_depth.shallow"] == 0.5
    assert study.findings["best_depth.deep"] == 1.0
    assert study.table.loc[study.table["best"], "depth"].tolist() == [100, 50, 50]
    assert "in 2 of 3 sweeps" in study.sentence
    write_study(tmp_path / "a.parquet", tmp_path / "a.svg", "depth_sweep", study)


def test_one_seed_has_no_interval_and_an_undefined_depth_no_sweep() -> None:
    one = depth_sweep(inputs_of(runs_of({("deep", "d1"): {50: [0.7], 100: [0.7]}})))
    assert one.table["gain_low"].isna().all()
    assert one.findings["intermediate_better"] == 0
    assert one.table.loc[one.table["best"], "depth"].tolist() == [100]  # equal: the deepest
    undefined = {("deep", "d1"): {50: [0.7, float("nan")], 100: [0.8, 0.8]}}
    assert depth_sweep(inputs_of(runs_of(undefined))).findings["sweeps"] == 0
