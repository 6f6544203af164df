"""`snakemake conformance`: every encoder of the config in one table, and a status that says so."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from crsbench.config.load import load_config
from crsbench.core.threads import use_one_thread
from crsbench.encoders import load_encoder
from crsbench.encoders.contract import RULES, check_encoder
from crsbench.operations.conformance import conformance
from crsbench.operations.doctor import formatted, missing

OWN = """
import torch

def good():
    return lambda images: images.mean(dim=(2, 3))

def batch():
    return lambda images: images.mean(dim=(2, 3)) * len(images)

def infinite():
    return lambda images: images.mean(dim=(2, 3)) / 0

def crash():
    return lambda images: images @ torch.ones(7, 7)

def exported():
    return torch.export.load("program.pt2").module()

def script():
    return torch.jit.load("script.pt")
"""
NAMES = ("good", "batch", "infinite", "crash", "absent", "exported", "script")


@pytest.fixture
def checkout(
    home: Path,
    settings: Callable[[str], dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The workflow with own encoders beside its Snakefile; the registry has them all."""
    use_one_thread()
    for name in ("Snakefile", "config", "workflow", "src", "profiles"):
        (tmp_path / name).symlink_to(home / name)
    (tmp_path / "own_conformance.py").write_text(OWN)
    registry = yaml.safe_load((home / "config/encoders.yaml").read_text("utf-8"))
    floor = registry["resnet18_untrained"]
    for name in NAMES:
        own = {key: floor[key] for key in ("title", "group", "licence", "preprocessing")}
        own |= {"library": "python", "model": f"own_conformance:{name}"}
        registry[name] = own
    (tmp_path / "encoders.yaml").write_text(yaml.safe_dump(registry))
    content = settings("demo") | {"encoder_registry": str(tmp_path / "encoders.yaml")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def configured(checkout: Path, home: Path, encoders: list[str]) -> Any:
    content = yaml.safe_load((checkout / "config.yaml").read_text())
    return load_config(content | {"encoders": encoders}, home)


def test_each_encoder_has_a_row_with_its_numbers_or_its_fault(checkout: Path, home: Path) -> None:
    names = ["good", "batch", "infinite", "crash", "absent", "resnet18_untrained"]
    report = conformance(configured(checkout, home, names))
    (rows,) = report.values()
    by_name = {row.cells["encoder"]: row for row in rows}
    assert [row.light for row in rows] == ["green", *["red"] * 4, "green"]
    assert missing(report) == ["batch", "infinite", "crash", "absent"]
    good, batch = by_name["good"].cells, by_name["batch"].cells
    assert list(good) == ["encoder", *RULES]
    assert (good["shape"], good["finite"], good["differing"]) == ("(8, 3)", "yes", "8 of 8")
    assert (good["repeated"], good["order"], good["depth 1"]) == ("same bits", "0.0e+00", "-")
    assert batch["alone"] == "8.8e-01"
    assert batch["order"] == "0.0e+00"
    assert "'batch' depend on the batch's size: they differ by 8.8e-01" in by_name["batch"].advice
    assert "24 features that are not finite" in by_name["infinite"].advice
    assert by_name["infinite"].cells["repeated"] == "-"
    assert "'crash' fails on eight images (RuntimeError" in by_name["crash"].advice
    assert "can't be imported from 'own_conformance:absent'" in by_name["absent"].advice
    assert by_name["resnet18_untrained"].cells["depth 1"] == "0.0e+00"
    text = formatted(report)
    assert re.search(r"^red +batch +\(8, 3\) +yes +8 of 8 +same bits +8\.8e-01", text, re.MULTILINE)


def test_a_script_and_an_exported_program_are_encoders(checkout: Path, home: Path) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.AdaptiveAvgPool2d(1)]
    model = torch.nn.Sequential(*layers, torch.nn.Flatten()).eval()
    sample = torch.zeros(2, 3, 64, 64)
    dynamic = ({0: torch.export.Dim("n")},)
    program = torch.export.export(model, (sample,), dynamic_shapes=dynamic)
    torch.export.save(program, checkout / "program.pt2")
    torch.jit.script(model).save(checkout / "script.pt")
    config = configured(checkout, home, ["exported", "script"])
    images = torch.randn(3, 3, 64, 64)
    digests = set()
    for entry in config.encoders.values():
        encoder = load_encoder(entry, config.home, Path(), torch.device("cpu"))
        check_encoder(encoder)
        assert not any(parameter.requires_grad for parameter in encoder.encode.parameters())
        with torch.inference_mode():
            torch.testing.assert_close(encoder.encode(images), model(images))
        digests.add(encoder.weights_sha256)
    assert len(digests) == 1  # the same tensors out of the same file


def test_snakemake_conformance_prints_the_table_and_its_status_says(
    checkout: Path, snakemake: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    own = ["--snakefile", str(checkout / "Snakefile"), "--configfile", "config.yaml"]
    arguments = ["--cores", "1", *own, "--config", "encoders=[good,batch]", "--", "conformance"]
    ended = snakemake(*arguments, cwd=checkout)
    output = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "crsbench: What is red above does not conform: batch." in output
    assert re.search(r"^green +good +\(8, 3\) +yes", ended.stdout, re.MULTILINE)
    assert output.count("Left out, for the panel lacks them: ") == 1
    assert "depth_sweep is not made, without lite0_128px" in output
    assert "Traceback (most recent call last)" not in output
