"""The plan counts the jobs that Snakemake would run, and its hours are sums that can be redone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from crsbench.config.load import load_config
from crsbench.config.model import Config
from crsbench.core.errors import UserError
from crsbench.core.files import write_table
from crsbench.operations.plan import formatted, planned


def rows(config: Config) -> pd.DataFrame:
    return planned(config).set_index("rule")


def test_the_published_panel_is_about_fourteen_million_forwards(published: Config) -> None:
    plan = rows(published)
    assert plan["jobs"].to_dict() == {
        **{"manifest": 4, "test_set": 3, "split": 15, "audit": 4, "features": 43},
        **{"shift_features": 15, "probes": 215, "run": 17200, "shift_run": 375},
        **{"depth_features": 8, "depth_runs": 8, "adapt": 43 * 3 * 5, "adapted_runs": 43 * 3 * 5},
    }
    # ISIC and CheXpert for 15 encoders, APTOS for 13: every image, 15 views of a fifth
    isic, aptos, chexpert = (n + 15 * round(0.2 * n) for n in (25331, 3662, 191229))
    assert plan.loc["features", "forwards"] == 15 * isic + 13 * aptos + 15 * chexpert
    assert plan.loc["shift_features", "forwards"] == 15 * 50_000
    extracted = plan.loc[["features", "shift_features"], "forwards"]
    assert extracted.sum() == pytest.approx(14e6, rel=0.01)
    assert plan.loc["depth_features", "forwards"] == 4 * (25331 + 191229)
    # Eight epochs, three seeds, 1.41 of the labelled images; a fifth of those is only validated on
    passes = 8 * 3 * 1.41 * 0.8 * 0.875 * (0.8 * 3 + 0.2)
    clean = 15 * 25331 + 13 * 3662 + 15 * 191229
    assert plan.loc["adapt", "forwards"] == pytest.approx(passes * clean, rel=1e-6)
    # Clean test images at five fractions, and at 100 % 15 degraded views and MIMIC
    tested = [15 * round(0.2 * 25331), 13 * round(0.2 * 3662), 15 * round(0.2 * 191229)]
    assert plan.loc["adapted_runs", "forwards"] == 3 * (sum(tested) * 20 + 15 * 50_000)


def own_config(
    plain_demo: Callable[[], dict[str, Any]], home: Path, folder: Path, **changes: Any
) -> Config:
    content = plain_demo() | {
        "encoders": ["vit_tiny_untrained", "image_statistics"],
        "datasets": ["phantom_skin"],
        "results": str(folder),
    }
    content["extraction"] |= {"together": False} | changes
    return load_config(content, home)


def test_hours_and_disk_are_the_sums_of_their_parts(
    plain_demo: Callable[[], dict[str, Any]], home: Path, tmp_path: Path
) -> None:
    rates = yaml.safe_load((home / "config/throughput.yaml").read_text("utf-8"))
    images, encoders = rates["images"], rates["encoders"]
    kinds = ("gaussian_blur", "jpeg", "contrast", "rician_noise", "fov_crop")
    scale = (128 / 512) ** 2
    once = 280 * (images["decode"] + scale * images["canonical"])
    once += 56 * 3 * scale * sum(images[kind] for kind in kinds)
    views = 280 + 15 * 56
    each = views * images["preprocess"] * sum(0.5 + 0.5 * (n / 224) ** 2 for n in (64, 128))
    names = ("vit_tiny_untrained", "image_statistics")
    forward = {
        n: views * encoders[n]["gigaflops"] / rates["teraflops"]["cpu"]["float32"] for n in names
    }
    alone = rows(own_config(plain_demo, home, tmp_path)).loc["features"]
    assert alone["cpu_hours"] == pytest.approx((2 * once + each + sum(forward.values())) / 3.6e6)
    assert alone["gigabytes"] == pytest.approx(
        4e-9 * views * sum(encoders[n]["width"] for n in names)
    )
    beside = rows(own_config(plain_demo, home, tmp_path, together=True)).loc["features_together"]
    assert alone["cpu_hours"] - beside["cpu_hours"] == pytest.approx(once / 3.6e6)
    assert (alone["gpu_hours"], beside["jobs"]) == (0, 1)
    gpu = rows(own_config(plain_demo, home, tmp_path, device="cuda", precision="bfloat16"))
    speed = rates["teraflops"]["cuda"]["bfloat16"]
    wanted = sum(views * encoders[n]["gigaflops"] for n in names) / speed / 3.6e6
    assert gpu.loc["features", "gpu_hours"] == pytest.approx(wanted)


def test_a_manifest_that_is_there_is_counted(
    plain_demo: Callable[[], dict[str, Any]], home: Path, tmp_path: Path
) -> None:
    write_table(
        tmp_path / "data/phantom_skin/manifest.parquet", pd.DataFrame({"image_id": ["a"] * 30})
    )
    plan = rows(own_config(plain_demo, home, tmp_path))
    assert plan.loc["features", "images"] == 2 * 30
    assert plan.loc["features", "forwards"] == 2 * (30 + 15 * 6)


def test_what_is_not_known_is_reported(
    settings: Callable[[str], dict[str, Any]], home: Path, tmp_path: Path, published: Config
) -> None:
    text = formatted(published)
    assert "total 19,180" in " ".join(text.split())
    assert "Of unknown size, taken as 50,000 images: mimic." in text
    assert "unknown speed" not in text
    content = settings("samples") | {"encoders": ["efficientnet_lite0", "panderm_base"]}
    assert "Of unknown speed, taken as 'default': panderm_base." in formatted(
        load_config(content, home)
    )


def test_an_unknown_rate_is_reported_by_its_name(
    settings: Callable[[str], dict[str, Any]], home: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "home"
    for folder in ("config", "workflow"):
        (copy / folder).parent.mkdir(exist_ok=True)
        (copy / folder).symlink_to(home / folder) if folder == "workflow" else (
            copy / folder
        ).mkdir()
    for name in ("encoders", "datasets", "scoring"):
        (copy / "config" / f"{name}.yaml").symlink_to(home / "config" / f"{name}.yaml")
    rates = yaml.safe_load((home / "config/throughput.yaml").read_text("utf-8"))
    rates["probe_second"] = rates["probe_seconds"]
    (copy / "config" / "throughput.yaml").write_text(yaml.safe_dump(rates), "utf-8")
    with pytest.raises(
        UserError, match=r"throughput.yaml: unknown key 'probe_second'.*probe_seconds"
    ):
        planned(load_config(settings("demo"), copy))
