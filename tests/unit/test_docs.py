"""The documentation names what there is."""

import importlib
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import crsbench


def keys_of(schema: dict[str, Any]) -> set[str]:
    """Every property that a schema names, at any depth."""
    found = set(schema.get("properties", {}))
    children = [*schema.get("properties", {}).values(), schema.get("additionalProperties")]
    children += [*schema.get("oneOf", []), *schema.get("$defs", {}).values()]
    for child in children:
        if isinstance(child, dict):
            found |= keys_of(child)
    return found


@pytest.mark.parametrize("name", ["config", "encoders", "datasets"])
def test_every_config_key_is_explained(name: str, home: Path) -> None:
    schema = yaml.safe_load((home / f"workflow/schemas/{name}.schema.yaml").read_text("utf-8"))
    text = (home / "config/README.md").read_text("utf-8")
    explained = {
        part for code in re.findall(r"`([^`]+)`", text) for part in re.split(r"[.\s]", code)
    }
    assert keys_of(schema) - explained == set()


def test_links_between_the_documents_lead_somewhere(home: Path) -> None:
    for document in documents(home):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), (document.name, target)


def test_the_readme_names_config_files_that_exist(home: Path) -> None:
    text = (home / "README.md").read_text("utf-8")
    named = set(re.findall(r"(?:config|examples)/[\w-]+\.(?:yaml|py)", text))
    own = {"config/my-demo.yaml", "examples/my_encoder.py"}
    assert {file for file in named - own if not (home / file).is_file()} == set()


def documents(home: Path) -> list[Path]:
    folders = [home, *(home / name for name in ("config", "results", "docs", "docs/decisions"))]
    return [document for folder in folders for document in sorted(folder.glob("*.md"))]


def test_every_file_that_the_documents_name_exists(home: Path) -> None:
    """From the repository's folder, from the library's, or from the document's own."""
    own = {"examples/my_encoder.py", "my.yaml", "partitions.yaml"}  # what a reader is to write
    name = re.compile(r"(?<![\w{}*./-])[\w./-]+\.(?:py|smk|yaml|md|toml|j2|js|css)(?![\w*-])")
    for document in documents(home):
        for code in re.findall(r"`([^`\n]+)`", document.read_text("utf-8")):
            for file in set(name.findall(code)) - own:
                places = (home, home / "src/crsbench", document.parent)
                assert any((place / file).is_file() for place in places), (document.name, file)


def test_every_name_of_the_library_in_the_documents_exists(home: Path) -> None:
    for document in documents(home):
        for name in set(re.findall(r"`(crsbench(?:\.\w+)+)", document.read_text("utf-8"))):
            module, found = name.rsplit(".", 1)
            spec = importlib.util.find_spec(name) if is_package(module) else None
            assert spec or hasattr(importlib.import_module(module), found), (document.name, name)


def is_package(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


def test_the_architecture_names_every_package_and_no_other(home: Path) -> None:
    text = (home / "docs/architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    packages = {file.parent.name for file in (home / "src/crsbench").glob("*/__init__.py")}
    assert sorted(package for _, package in rows) == sorted(packages)
    lines = tomllib.loads((home / "pyproject.toml").read_text("utf-8"))
    layers = lines["tool"]["importlinter"]["contracts"][0]["layers"]
    wanted = {
        (str(number), package)
        for number, layer in enumerate(reversed(layers), 1)
        for package in layer.split(" | ")
    }
    assert set(rows) == wanted


def test_every_decision_is_listed(home: Path) -> None:
    folder = home / "docs/decisions"
    table = (folder / "README.md").read_text("utf-8")
    listed = re.findall(r"^\| \[(\d+)\]\((\S+)\) \|", table, re.MULTILINE)
    records = sorted(file.name for file in folder.glob("*.md") if file.name != "README.md")
    assert [file for _, file in listed] == records
    for number, file in listed:
        title = (folder / file).read_text("utf-8").splitlines()[0]
        assert title.startswith(f"# {number}. ")
        assert file.startswith(f"{int(number):04d}-")


def test_the_version_is_the_librarys(home: Path) -> None:
    citation = yaml.safe_load((home / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == crsbench.__version__
    assert f"## {crsbench.__version__} " in (home / "CHANGELOG.md").read_text("utf-8")
