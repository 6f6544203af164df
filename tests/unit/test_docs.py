"""The documentation names what there is."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml


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
    for document in [home / "README.md", *home.glob("*/README.md"), *home.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), (document.name, target)


def test_the_readme_names_config_files_that_exist(home: Path) -> None:
    text = (home / "README.md").read_text("utf-8")
    named = set(re.findall(r"(?:config|examples)/[\w-]+\.(?:yaml|py)", text))
    own = {"config/my-demo.yaml", "examples/my_encoder.py"}
    assert {file for file in named - own if not (home / file).is_file()} == set()
