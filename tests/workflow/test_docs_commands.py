"""Every command of the documentation is run by a test, or needs data that no test has."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from crsbench.config.load import load_config
from crsbench.encoders import load_encoder
from crsbench.encoders.contract import check_encoder

CPU = torch.device("cpu")
PLAN = ("--cores", "1", "-n", "--quiet", "rules")
CREDENTIALED = "needs credentialed data"
RUN_BY = {
    r"make demo": "tests/workflow/test_docs_commands.py::test_the_makefile_runs_what_the_docs_say",
    r"make test": "tests/workflow/test_docs_commands.py::test_the_makefile_runs_what_the_docs_say",
    r"sed 's/image_stat.*": (
        "tests/workflow/test_docs_commands.py::test_the_readme_scores_an_own_encoder"
    ),
    r"\.venv/bin/snakemake --cores all --configfile config/my-demo\.yaml": (
        "tests/workflow/test_docs_commands.py::test_the_readme_scores_an_own_encoder"
    ),
    r"\.venv/bin/snakemake --cores all --configfile config/samples\.yaml .*": (
        "tests/workflow/test_samples.py::*"
    ),
    r"\.venv/bin/snakemake -n": (
        "tests/workflow/test_workflow.py::test_the_published_grid_is_planned_without_any_data"
    ),
    r"\.venv/bin/snakemake --cores 1 plan": "tests/unit/test_plan.py::*",
    r"(\.venv/bin/)?snakemake --cores 1 (doctor|stage)": "tests/integration/test_doctor.py::*",
    r"\.venv/bin/snakemake .* -- conformance": "tests/workflow/test_conformance.py::*",
    r"\.venv/bin/snakemake --cores all --configfile config/demo\.yaml -- results/demo/runs/.*": (
        "tests/workflow/test_workflow.py::test_a_deleted_run_asked_by_its_path_is_the_only_job"
    ),
    r"\.venv/bin/snakemake --cores all --configfile config/demo\.yaml -- (report|figures)": (
        "tests/workflow/test_docs_commands.py::test_named_targets_of_the_docs_are_planned"
    ),
    r"\.venv/bin/snakemake --configfile config/demo\.yaml --report .*": (
        "tests/workflow/test_docs_commands.py::test_named_targets_of_the_docs_are_planned"
    ),
    r"\.venv/bin/snakemake --cores 1 external_predictions .*": (
        "tests/unit/test_external_predictions.py::*"
    ),
    r"(\.venv/bin/)?snakemake --profile profiles/slurm .*": "tests/workflow/test_slurm.py::*",
    r"python tests/worlds/slurm\.py .*": "tests/workflow/test_slurm.py::*",
    r"\.venv/bin/pip install .*'\.\[slurm\]'": "tests/workflow/test_slurm.py::*",
    r"(\.venv/bin/)?snakemake --cores all --forcerun .*": (
        "tests/workflow/test_docs_commands.py::test_rules_to_force_exist"
    ),
    r"\.venv/bin/snakemake --unlock .*": "tests/workflow/test_workflow.py::*",
    r"snakemake --cores all --batch .*": (
        "tests/workflow/test_workflow.py::test_runs_made_in_batches_are_those_of_one_run"
    ),
}
"""Every command of the docs, as a pattern, with the test that runs it or what it stands for."""


def commands_of(document: Path) -> list[str]:
    """The command lines in a document's blocks, joined where a backslash continues them."""
    text = re.sub(r"\\\n\s*", "", document.read_text("utf-8"))
    starts = r"^(?: {3,}|)((?:\.venv/bin/|)(?:snakemake|make|sed|pip|python) .*)$"
    blocks = re.findall(r"^```sh\n(.*?)^```|^   ```sh\n(.*?)^   ```", text, re.DOTALL | re.M)
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    lines += [line for pair in blocks for part in pair for line in part.splitlines()]
    found = (re.match(starts, line) for line in dict.fromkeys(lines))
    return [match[1].rstrip() for match in found if match]


def test_every_command_of_the_docs_is_run_by_a_test_or_marked(home: Path) -> None:
    documents = [home / "README.md", *sorted(home.glob("docs/*.md"))]
    commands = [(one.name, line) for one in documents for line in commands_of(one)]
    assert len(commands) >= 16
    for document, line in commands:
        if CREDENTIALED in line:
            continue
        command = re.sub(r"\s+#.*$", "", line)
        tests = [test for pattern, test in RUN_BY.items() if re.fullmatch(pattern, command)]
        assert tests, f"{document}: no test runs `{command}`; add one, or mark it: {CREDENTIALED}"


def test_the_tests_that_run_the_docs_commands_exist(home: Path) -> None:
    for node in RUN_BY.values():
        file, _, name = node.partition("::")
        text = (home / file).read_text("utf-8")
        assert name == "*" or f"def {name}(" in text, node


def test_the_makefile_runs_what_the_docs_say(home: Path) -> None:
    ended = subprocess.run(
        ["make", "--dry-run", "demo", "test"], cwd=home, capture_output=True, text=True, check=True
    )
    assert "snakemake --cores all --configfile config/demo.yaml" in ended.stdout
    assert "-m pytest" in ended.stdout


@pytest.fixture(scope="module")
def checkout(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, as a reader of the README has it after the clone."""
    folder = tmp_path_factory.mktemp("clone") / "crs-bench"
    for name in ("config", "examples", "profiles", "src", "workflow", "envs"):
        shutil.copytree(home / name, folder / name)
    shutil.copy(home / "Snakefile", folder)
    return folder


def blocks_of(document: Path, language: str) -> list[str]:
    """The fenced blocks of a language, without their indentation."""
    found = re.findall(
        rf"^( *)```{language}\n(.*?)^\1```", document.read_text("utf-8"), re.S | re.M
    )
    return [textwrap.dedent(content) for _, content in found]


def test_the_readme_scores_an_own_encoder(
    home: Path, checkout: Path, snakemake: Callable[..., Any]
) -> None:
    readme = home / "README.md"
    (source,), (entry,), (commands,) = (blocks_of(readme, of) for of in ("python", "yaml", "sh"))
    assert len(source.splitlines()) + len(entry.splitlines()) <= 20
    (checkout / "examples/my_encoder.py").write_text(source, "utf-8")
    with (checkout / "config/encoders.yaml").open("a", encoding="utf-8") as registry:
        registry.write("\n" + entry)
    sed, run = commands.splitlines()
    subprocess.run(sed, shell=True, cwd=checkout, check=True)
    settings = yaml.safe_load((checkout / "config/my-demo.yaml").read_text("utf-8"))
    assert settings["encoders"][-1] == "mine"
    config = load_config(settings, checkout)
    check_encoder(load_encoder(config.encoders["mine"], checkout, Path("weights"), CPU))
    assert run == ".venv/bin/snakemake --cores all --configfile config/my-demo.yaml"
    small_config(checkout / "small.yaml", settings, encoders=["mine"])
    own = ["--snakefile", str(checkout / "Snakefile"), "--configfile", "small.yaml"]
    ended = snakemake(*own, *PLAN, "--", "runs", cwd=checkout)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"features\s+1\n", ended.stdout)


def small_config(file: Path, settings: dict[str, Any], **changes: Any) -> None:
    small = {"datasets": ["phantom_skin"], "seeds": [0], "fractions": [100], **changes}
    file.write_text(yaml.safe_dump({**settings, **small}), "utf-8")


def test_named_targets_of_the_docs_are_planned(
    snakemake: Callable[..., Any], settings: Callable[..., Any], home: Path, tmp_path: Path
) -> None:
    small_config(tmp_path / "small.yaml", settings("demo"))
    words = [*PLAN, "--configfile", "small.yaml", "--", "report", "figures"]
    ended = snakemake(*words, cwd=tmp_path)
    assert re.search(r"^report\s+1$", ended.stdout, re.M), ended.stdout + ended.stderr
    assert re.search(r"^figures\s+1$", ended.stdout, re.M)
    for caption in ("workflow", "page", "study", "scorecard", "paper"):
        assert (home / f"workflow/report/{caption}.rst").is_file()


def test_rules_to_force_exist(home: Path) -> None:
    rules = "".join(file.read_text("utf-8") for file in home.glob("workflow/rules/*.smk"))
    for document in home.glob("docs/*.md"):
        for line in commands_of(document):
            if "--forcerun" in line:
                for name in re.sub(r"\s+#.*$", "", line).split("--forcerun ")[1].split():
                    assert re.search(
                        rf"^ *(?:rule|use rule \w+ as) {name}(?::| with:)", rules, re.MULTILINE
                    ), (document, name)
