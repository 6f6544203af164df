"""The page shows what the tables hold, marks what must be marked, and executes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from crsbench.report import write_report
from crsbench.report.page import Tables
from crsbench.score import load_scoring
from crsbench.tables import score_tables

WILD = "<script>alert('x')</script> \"Ünï\" & 🙂"


def synthetic_runs(encoders: list[str], datasets: list[str], seed: int = 0) -> pd.DataFrame:
    """A seeded, made-up table of runs: three seeds, two fractions, two conditions."""
    random = np.random.default_rng(seed)
    rows = []
    for encoder in encoders:
        for dataset in datasets:
            for number in range(3):
                for condition in ("clean", "jpeg-1"):
                    for percent in (10, 100):
                        rows.append(
                            {
                                **{"encoder": encoder, "dataset": dataset, "seed": number},
                                **{"condition": condition, "percent": percent, "n_test": 50},
                                "macro_auroc": random.uniform(0.6, 0.9),
                                **dict.fromkeys(("ece", "classwise_ece", "adaptive_ece"), 0.1),
                                **{"brier": 0.3, "log_loss": 0.7, "n_classes": 2},
                                **{"n_classes_defined": 2, "c": 1.0},
                                **{"converged": True, "capped": False},
                            }
                        )
    return pd.DataFrame(rows)


@pytest.fixture
def page(home: Path, tmp_path: Path) -> Callable[..., str]:
    """The page of three encoders, one of them a floor, with changes of their entries."""

    def make(changes: dict[str, dict[str, Any]] | None = None) -> str:
        encoders: dict[str, dict[str, Any]] = {
            name: {"title": name.upper(), "group": "general", "licence": "MIT"} for name in "abc"
        }
        encoders["c"] |= {"group": "floor", "weights": "untrained"}
        for name, change in (changes or {}).items():
            encoders[name] |= change
        datasets = {
            "d": {"title": "Data", "task": "multiclass", "classes": ["0", "1"], "licence": "MIT"}
        }
        runs = synthetic_runs(list(encoders), list(datasets))
        scoring = load_scoring(home / "config/scoring.yaml")
        made = score_tables(runs, scoring, {"d": []}, None, floors=["c"], replicates=200)
        tables = Tables(runs, made["axes"], made["crs"], made["bootstrap"])
        audits: list[dict[str, Any]] = []
        write_report(tmp_path / "index.html", tables, encoders, datasets, {}, "They agree.", audits)
        return (tmp_path / "index.html").read_text("utf-8")

    return make


class Rows(HTMLParser):
    """The cells' texts of every table row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and self.get_starttag_text():
            self.rows[-1][-1] += data.strip()


def test_floors_come_last_without_a_rank_and_untrained_weights_are_marked(
    page: Callable[..., str],
) -> None:
    parser = Rows()
    parser.feed(page())
    board = [row for row in parser.rows if row and row[0] in ("1", "2", "–")][:3]
    assert [row[0] for row in board] == ["1", "2", "–"]
    assert board[2][1].startswith("C")
    assert "untrained" in board[2][1]
    assert "floor" in board[2][1]


def test_names_are_shown_not_executed(page: Callable[..., str]) -> None:
    html = page({"a": {"title": WILD}})
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_the_page_is_the_same_bytes_each_time(page: Callable[..., str]) -> None:
    assert page() == page()


def test_the_page_refers_to_nothing_outside(page: Callable[..., str]) -> None:
    html = page()
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!#)[\w/.]""", html)
    assert "<link" not in html
    assert "@import" not in html


def test_real_data_carry_no_synthetic_banner(page: Callable[..., str]) -> None:
    assert "Synthetic data." not in page()
