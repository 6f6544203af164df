"""The word list finds its words in names, in prose over lines, and nothing else."""

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it is Sold\nto sold_apples", [(1, "Sold"), (2, "sold")]),
        ("def test_a_file_is_sold() -> None:", [(1, "sold")]),
        ("class SoldCases: is_sold = 1", [(1, "Sold"), (1, "sold")]),
        ("one\n# what is right\n# over here", [(2, "right # over")]),
        ("unsold soldier SOLDS rightover", []),
    ],
)
def test_places(text: str, found: list[tuple[int, str]], home: Path) -> None:
    spec = importlib.util.spec_from_file_location("wordlist", home / "tools/wordlist.py")
    wordlist = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wordlist)
    assert wordlist.places(text, "sold|right over") == found
