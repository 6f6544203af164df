"""Adding a study is adding one file; what is registered is what the documentation says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crsbench.config.model import Config
from crsbench.studies import studies
from crsbench.studies.registry import THEMES, Study, study
from worlds.studies import STUDIES, World

SNAKEMAKE = [sys.executable, "-m", "snakemake"]

NEW = """
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Study, fields, study
import pandas as pd

@study(title="How many runs", theme="sure", needs=("tables",), limit="A count, no more.",
       columns=fields(str, "encoder") | fields(int, "runs"))
def count_of_runs(inputs: Inputs) -> Study:
    counts = inputs.runs.groupby("encoder").size()
    return Study(counts.rename("runs").reset_index(), f"{counts.sum()} runs were made.")
"""


def test_a_study_is_one_file(home: Path, tmp_path: Path) -> None:
    for part in ("src", "workflow", "config", "profiles", "Snakefile"):
        copy = shutil.copytree if (home / part).is_dir() else shutil.copy
        copy(home / part, tmp_path / part)
    (tmp_path / "src/crsbench/studies/count_of_runs.py").write_text(NEW, "utf-8")
    listed = subprocess.run(
        [*SNAKEMAKE, "-n", "--summary", "--configfile", "config/demo.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "results/demo/studies/count_of_runs.parquet" in listed.stdout, listed.stderr
    code = """
from pathlib import Path
import yaml
from worlds.report import synthetic_material
from crsbench.config.load import load_config
from crsbench.report import write_report
home = Path.cwd()
config = load_config(yaml.safe_load((home / "config/config.yaml").read_text("utf-8")), home)
write_report(home / "page.html", synthetic_material(config, home))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": f"{tmp_path / 'src'}:{home / 'tests'}", "PATH": ""}, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "page.html").read_text("utf-8")
    for said in ("How many runs", "A count, no more.", "17575 runs were made."):
        assert said in page


def test_the_workflows_process_loads_no_drawing_library() -> None:
    code = (
        "import sys; from crsbench.studies import studies; studies(); "
        "print({'matplotlib', 'scipy.stats', 'scipy.optimize', 'torch'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


def test_a_study_of_no_theme_or_a_taken_name_is_refused() -> None:
    said = {"title": "", "limit": "", "columns": {}}
    with pytest.raises(ValueError, match="no theme or need"):
        study(theme="none", needs=("tables",), **said)
    with pytest.raises(ValueError, match="no theme or need"):
        study(theme="sure", needs=("images",), **said)

    def floors(inputs: object) -> Study:
        raise NotImplementedError

    with pytest.raises(ValueError, match="two studies are called floors"):
        study(theme="sure", needs=("tables",), **said)(floors)


@pytest.mark.parametrize("name", STUDIES)
def test_a_table_has_the_declared_columns_and_types(name: str, published: Config) -> None:
    of = World.of(published)
    full, empty = (one.inputs() for one in (of.with_floors(["mae"]), of.only(["vit_b16"])))
    for inputs in (full, empty):
        table = STUDIES[name](inputs).table
        assert list(table) == list(STUDIES[name].columns)
        wanted = [
            str(kind) if isinstance(kind, str) else kind for kind in STUDIES[name].columns.values()
        ]
        assert (table.dtypes == wanted).all()


def test_the_documentation_names_every_study_with_its_columns(home: Path) -> None:
    rows: dict[str, str] = {}
    for line in (home / "docs/tables.md").read_text("utf-8").partition("## Studies")[2].split("\n"):
        cells = line.split("|")
        if len(cells) == 5:
            rows |= dict.fromkeys(re.findall(r"`(\w+)`", cells[1]), line)
    known = studies()
    assert set(known) <= set(rows)
    for name, one in known.items():
        named = set(re.findall(r"\w+", rows[name]))
        for column in one.columns:
            stem = re.sub(r"_(low|high)$", "", column)
            spoken = {"encoder", "dataset", "condition", "target", "percent", "method", "trial"}
            assert {column, stem} & (named | spoken), f"docs/tables.md: {name} lacks {column}"


def test_every_study_has_a_place_in_the_report() -> None:
    for name, one in studies().items():
        assert one.theme in THEMES, name
        assert one.title, name
        assert one.limit.endswith("."), name
