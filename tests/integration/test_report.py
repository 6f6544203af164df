"""The page shows what the tables hold, marks what must be marked, and executes nothing."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from crsbench.config.load import load_config
from crsbench.core.errors import UserError
from crsbench.core.files import read_json, write_json, write_table
from crsbench.core.names import AGGREGATE, SEED_MEAN
from crsbench.evaluation.runs import CONFIDENCE_COLUMNS, collect_confidence_bins
from crsbench.features.settings import ImageSettings
from crsbench.images.scaling import DEFAULT
from crsbench.report import Material, gallery, provenance, write_paper, write_report
from crsbench.report.charts import chart_rows
from crsbench.report.figures import latex_text, markdown_table
from crsbench.report.leaderboard import axis_cells, seed_interval
from crsbench.report.material import MadeStudy
from crsbench.score import load_scoring
from crsbench.score.tables import score_tables
from crsbench.studies.reproduction import COLUMNS

NO_FIGURES = pd.DataFrame(columns=COLUMNS)
WILD = "<script>alert('x')</script></script> \"Ünï\" & 🙂 שלום"


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
def made() -> dict[str, Material]:
    """What the last page was made from."""
    return {}


@pytest.fixture
def page(home: Path, tmp_path: Path, made: dict[str, Material]) -> Callable[..., str]:
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
        scored = score_tables(runs, scoring, {"d": []}, None, floors=["c"], replicates=200)
        bins = pd.DataFrame(columns=list(CONFIDENCE_COLUMNS))
        tables = {"runs": runs, "confidence_bins": bins, "reproduction": NO_FIGURES, **scored}
        made["last"] = material = Material(tables, {}, encoders, datasets, {}, scoring)
        write_report(tmp_path / "index.html", material)
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
    board = [row for row in parser.rows if row and row[0] in ("1", "2", "no rank–")][:3]
    assert [row[0] for row in board] == ["1", "2", "no rank–"]
    assert board[2][1].startswith("C")
    assert "untrained" in board[2][1]
    assert "floor" in board[2][1]


SEEN = {"d": {"included": True, "source": "its <i>card</i>"}}


def test_every_table_marks_what_pretraining_had(
    page: Callable[..., str], made: dict[str, Material], tmp_path: Path
) -> None:
    page({"a": {"pretraining": SEEN}})
    study = MadeStudy(
        pd.DataFrame({"encoder": ["a", "b", "c"], "dataset": "d", "value": 0.5}), "It is.", {}, ""
    )
    material = replace(made["last"], studies={"label_efficiency": study, "movers": study})
    write_report(tmp_path / "marked.html", material)
    html = (tmp_path / "marked.html").read_text("utf-8")
    mark = '<span class="mark" title="Pre-training included Data (its &lt;i&gt;card&lt;/i&gt;).">'
    mark += "seen</span>"
    # Both leaderboards, the encoders' legend, and the table of each study.
    assert html.count(mark) == 2 + 1 + 2
    unknown = 'title="Whether pre-training included Data is not known.">seen?</span>'
    assert html.count(unknown) == 5
    tables = [part for part in html.split("<table")[1:] if "<i>" not in part and ">A<" in part]
    assert all('class="mark"' in part.split("</table>")[0] for part in tables)
    inside = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    assert inside is not None
    data = json.loads(inside[1])
    assert {name: on["d"] for name, on in data["overlaps"].items()} == {
        **{"a": "yes", "b": "unknown", "c": "no"}
    }
    labels = {row["encoder"]: row["label"] for row in data["rows"]["ranks"]}
    assert labels["a"] == "† A"
    files = dict(re.findall(r'href="data:[^,]*base64,([^"]*)" download="([\w.]+)"', html))
    csv = {name: base64.b64decode(code).decode("utf-8") for code, name in files.items()}
    for name in ("crs.csv", "axes.csv", "label_efficiency.csv"):
        read = pd.read_csv(io.StringIO(csv[name]))
        by_encoder = read.drop_duplicates("encoder").set_index("encoder")["overlap"]
        assert by_encoder.to_dict() == {"a": "yes", "b": "unknown", "c": "no"}, name
    assert "overlap" not in csv["bootstrap_pairs.csv"]


def test_a_page_is_made_where_no_encoder_is_ranked(
    page: Callable[..., str], made: dict[str, Material], tmp_path: Path
) -> None:
    page()
    tables = made["last"].tables
    unscored = tables["crs"].assign(crs=np.nan, missing="there is one encoder")
    material = replace(made["last"], tables={**tables, "crs": unscored})
    write_report(tmp_path / "unranked.html", material)
    assert "No encoder has a score." in (tmp_path / "unranked.html").read_text("utf-8")


def test_cells_left_out_are_named_with_their_reason(
    page: Callable[..., str], made: dict[str, Material], tmp_path: Path
) -> None:
    assert "Left out of the panel" not in page()
    left_out = {("a", "d"): WILD, ("gone", "d"): "no weights"}
    write_report(tmp_path / "other.html", replace(made["last"], left_out=left_out))
    html = (tmp_path / "other.html").read_text("utf-8")
    note = html[html.index("Left out of the panel") :].split("</div>")[0]
    assert "A on Data" in note
    assert "gone on Data" in note
    assert "no weights" in note
    assert "<script" not in note


def test_weights_that_are_another_models_are_reported_on_the_first_page(
    page: Callable[..., str], made: dict[str, Material], tmp_path: Path
) -> None:
    page()
    material = made["last"]
    reported = {
        "equal": ("The weights of another model.", "equal: all of its 3 tensors are those of CLIP"),
        "not compared": ("Weights that were not compared.", "not compared: CLIP is not available"),
        "differs": (None, "differs from CLIP in 2 of 3 tensors"),
    }
    for verdict, (note, sentence) in reported.items():
        base_models = {"a": {"verdict": verdict, "told": sentence}}
        known = {"commit": "", "versions": {}, "config": "", "weights": {"a": "ab"}}
        changed = replace(material, provenance={**known, "base_models": base_models})
        write_report(tmp_path / "other.html", changed)
        html = (tmp_path / "other.html").read_text("utf-8")
        header = html[: html.index("</header>")]
        assert (sentence in header) == (note is not None)
        assert note is None or note in header
        assert sentence in html[html.index("Digests of the weights") :]


def test_names_are_shown_not_executed(page: Callable[..., str]) -> None:
    plain, wild = page(), page({"a": {"title": WILD}})
    assert wild.count("<script") == plain.count("<script") == 3
    assert wild.count("</script") == 3
    assert "&lt;script&gt;" in wild
    inside = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', wild, re.DOTALL)
    assert inside is not None
    assert json.loads(inside[1])["titles"]["a"] == WILD


def test_the_page_is_the_same_bytes_each_time(page: Callable[..., str]) -> None:
    assert page() == page()


def test_the_page_refers_to_nothing_outside(page: Callable[..., str]) -> None:
    html = re.sub(r"<script>.*?</script>", "", page(), flags=re.DOTALL)
    addresses = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"'\s>)]+)""", html)
    assert addresses
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_real_data_carry_no_synthetic_banner(page: Callable[..., str]) -> None:
    assert "Synthetic data." not in page()


def test_intervals_of_axes_are_students_over_seeds() -> None:
    values = np.array([0.50, 0.52, 0.57, 0.49, 0.55])
    low, high = stats.t.interval(0.95, 4, values.mean(), stats.sem(values))
    assert seed_interval(values) == pytest.approx((low, high))
    assert seed_interval(np.array([0.999, 0.2])) == (0.0, 1.0)
    assert seed_interval(np.array([0.5])) is None
    assert seed_interval(np.array([0.5, np.nan])) is None


def test_an_aggregate_axis_is_the_mean_over_data_sets_or_missing() -> None:
    names = [f"axis_{name}" for name in ("discrimination", "calibration")]
    names += ["axis_supervision", "axis_robustness"]
    rows = [
        {"encoder": encoder, "dataset": dataset, "seed": seed, **dict.fromkeys(names, value)}
        for encoder, dataset, seed, value in [
            ("a", "x", 0, 0.2), ("a", "x", 1, 0.4), ("a", "x", SEED_MEAN, 0.3),
            ("a", "y", 0, 0.6), ("a", "y", 1, 0.4), ("a", "y", SEED_MEAN, 0.5),
            ("b", "x", 0, 0.1), ("b", "x", 1, np.nan), ("b", "x", SEED_MEAN, np.nan),
        ]
    ]  # fmt: skip
    cells = axis_cells(pd.DataFrame(rows), AGGREGATE)
    assert cells["a"][names[0]].value == pytest.approx(0.4)
    assert cells["a"][names[0]].low == cells["a"][names[0]].high == pytest.approx(0.4)
    assert cells["b"][names[0]].value is None
    assert axis_cells(pd.DataFrame(rows), "y")["a"][names[1]].value == pytest.approx(0.5)


# --- provenance, gallery, figures for papers ----------------------------------------------------


def test_the_gallery_shows_the_image_under_every_condition(
    image_set: Callable[..., Path], home: Path, tmp_path: Path, settings: Callable[..., Any]
) -> None:
    image_set(tmp_path / "small", [{"id": "a", "path": "a.png", "label": "x"}])
    config = load_config(settings("demo"), home)
    images = replace(
        ImageSettings.of(config, []),
        roots={"small": tmp_path / "small"},
        scalings={"small": DEFAULT},
    )
    frame = pd.DataFrame(
        {"image_id": ["a"], "path": ["a.png"], "group": ["g"], "labels": [[1, 0]],
         "dropped": [False], "content_sha256": ["0"]}
    )  # fmt: skip
    metadata = {"dataset": "small", "task": "multiclass", "classes": ["x", "y"]}
    write_table(
        tmp_path / "m.parquet", frame, metadata | {"group_namespace": "small", "left_out": {}}
    )
    arguments = images, {"small": tmp_path / "m.parquet"}, {"small": "Small set"}
    shown = gallery(*arguments)
    (only,) = shown
    assert len(only["tiles"]) == 16
    assert [tile["label"] for tile in only["tiles"][:2]] == ["clean", "Gaussian blur 1: 1"]
    assert "JPEG 3: 10" in [tile["label"] for tile in only["tiles"]]
    assert all(tile["src"].startswith("data:image/webp;base64,") for tile in only["tiles"])
    assert len({tile["src"] for tile in only["tiles"]}) > 10
    assert shown[0]["title"] == "Small set"
    assert gallery(*arguments) == shown


def test_only_data_sets_of_the_panel_can_be_shown(home: Path, settings: Callable[..., Any]) -> None:
    changed = settings("demo") | {"report": {"gallery": ["phantom_skn"]}}
    with pytest.raises(UserError, match=r"'phantom_skn' \(did you mean 'phantom_skin'\?\)"):
        load_config(changed, home)


def test_bins_are_pooled_over_seeds_and_labels(tmp_path: Path) -> None:
    def run(seed: int, percent: int, counts: list[int], confidence: list[float | None]) -> Path:
        bins = {"count": counts, "mean_confidence": confidence, "accuracy": confidence[::-1]}
        content = {"encoder": "e", "dataset": "d", "condition": "clean"}
        file = tmp_path / f"seed{seed}" / f"frac{percent:03d}.json"
        write_json(file, content | {"reliability": {"x": bins, "y": bins} if seed else {"x": bins}})
        return file

    files = [run(0, 100, [10, 0], [0.2, None]), run(1, 100, [30, 5], [0.6, 0.9])]
    files += [run(0, 1, [99, 99], [0.1, 0.1])]
    write_json(files[0], read_json(files[0]) | {"reliability": {"x": {
        "count": [10, 0], "mean_confidence": [0.2, None], "accuracy": [0.5, None]}}})  # fmt: skip
    bins = collect_confidence_bins(files)
    assert bins["count"].tolist() == [70, 10]
    assert bins["confidence"].tolist() == pytest.approx([(10 * 0.2 + 60 * 0.6) / 70, 0.9])
    assert bins["accuracy"].tolist() == pytest.approx([(10 * 0.5 + 60 * 0.9) / 70, 0.6])


def test_provenance_names_commit_versions_and_weights(home: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"weights_sha256": "ab"})
    found = provenance(home, {"seeds": [0]}, {"e": tmp_path / "run.json"})
    assert found["weights"] == {"e": "ab"}
    assert found["base_models"] == {}
    base_model = {"verdict": "equal", "told": "equal: all"}
    write_json(tmp_path / "run.json", {"weights_sha256": "ab", "base_model": base_model})
    assert provenance(home, {}, {"e": tmp_path / "run.json"})["base_models"] == {"e": base_model}
    assert found["config"] == "seeds:\n- 0\n"
    assert found["versions"]["numpy"] == np.__version__
    assert provenance(tmp_path, {}, {})["commit"] == ""


def test_latex_and_markdown_escape_names() -> None:
    assert latex_text(r"50 % & $x_1$ {#}") == r"50 \% \& \$x\_1\$ \{\#\}"
    assert (
        latex_text("~^\\–<") == r"\textasciitilde{}\textasciicircum{}\textbackslash{}--\textless{}"
    )
    assert markdown_table(["a", "b"], [["1", "x|y"]]) == "| a | b |\n| --: | --- |\n| 1 | x\\|y |\n"


def test_figures_for_papers_are_the_same_bytes_each_time(
    page: Callable[..., str], tmp_path: Path, made: dict[str, Material]
) -> None:
    page({"a": {"title": "$ \\ " + WILD}})
    for folder in ("one", "two"):
        write_paper(tmp_path / folder, made["last"])
    names = {file.name for file in (tmp_path / "one").iterdir()}
    stems = ("profiles", "ranks", "rank_probability")
    drawn = {f"{stem}.{kind}" for stem in stems for kind in ("svg", "pdf")}
    assert names == drawn | {"leaderboard.md", "leaderboard.tex"}
    for name in names:
        content = (tmp_path / "one" / name).read_bytes()
        assert content == (tmp_path / "two" / name).read_bytes(), name
    rows = (tmp_path / "one/leaderboard.md").read_text("utf-8").splitlines()
    assert len(rows) == 2 + 3
    assert rows[-1].startswith("| – | C (floor) | – |")
    assert [row.split(" | ")[-1] for row in rows[2:]] == ["unknown |", "unknown |", "no |"]


def test_reliability_after_recalibration_pools_labels_by_their_cases(
    page: Callable[..., str], made: dict[str, Material]
) -> None:
    page()
    cell = {"encoder": "a", "dataset": "d", "condition": "clean", "bin": 3}
    counts = ((10, 0.2, 0.4), (30, 0.24, 0.0), (0, np.nan, np.nan))
    bins = [
        {**cell, "method": method, "label": str(place), "count": count}
        | {"mean_confidence": confidence, "accuracy": accuracy}
        for place, (count, confidence, accuracy) in enumerate(counts)
        for method in ("none", "chosen")
    ]
    before = {**cell, "count": 40, "confidence": 0.23, "accuracy": 0.5}
    tables = {"confidence_bins": pd.DataFrame([before]), "reliability": pd.DataFrame(bins)}
    material = replace(made["last"], tables={**made["last"].tables, **tables})
    rows = {row["state"]: row for row in chart_rows(material)["reliability"]}
    assert rows["before"]["accuracy"] == 0.5
    assert rows["after"]["count"] == 40
    assert rows["after"]["confidence"] == pytest.approx(0.23)
    assert rows["after"]["accuracy"] == pytest.approx(0.1)
