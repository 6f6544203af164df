"""The page in a real browser, headless Chromium: it works, offline, narrow, dark, printed.

The panel is SYNTHETIC (15 encoders × 3 data sets × 5 seeds), and some of its names are hostile.
"""

from __future__ import annotations

import gzip
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from crsbench.config.model import Config
from crsbench.core.names import AGGREGATE
from crsbench.metrics.statistics import competition_rank
from crsbench.report import Material, write_report
from worlds.report import synthetic_material
from worlds.studies import World

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="the extra `test` is not installed")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium (Debian: chromium)"),
]

SCRIPT = "<script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
HOSTILE = {
    "clip": SCRIPT,
    "siglip": "\"Quoted\" & 'quoted' </script><!-- 🙂",
    "mae": "מקודד תמונות רפואיות",
    "dinov2": "A name of sixty letters, as long as the longest one may be!!",
    "vit_b16": "Unbroken" * 7 + "1234",
}


@dataclass
class Opened:
    """A page with what went wrong on it."""

    page: Any
    wrong: list[str] = field(default_factory=list)

    def rows(self, selector: str) -> list[list[str]]:
        script = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
        found: list[list[str]] = self.page.locator(f"{selector} tbody tr").evaluate_all(script)
        return found

    def choose(self, name: str, value: str) -> None:
        self.page.locator(f'input[name="{name}"][value="{value}"] + span').click()


@pytest.fixture(scope="module")
def material(published: Config, tmp_path_factory: pytest.TempPathFactory) -> Material:
    world = World.of(published)
    changed = {name: {**world.encoders[name], "title": title} for name, title in HOSTILE.items()}
    world = replace(world, encoders={**world.encoders, **changed}).with_floors(["resnet50"])
    return synthetic_material(published, tmp_path_factory.mktemp("studies"), world)


@pytest.fixture(scope="module")
def file(material: Material, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "index.html"
    start = time.process_time()
    write_report(file, material)
    assert time.process_time() - start < 30
    assert file.stat().st_size < 10e6
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(browser: Any, file: Path, width: int = 1280, scheme: str = "light") -> Opened:
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
    )
    opened = Opened(page)
    note = opened.wrong.append
    page.on("console", lambda message: note(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: note(str(error)))
    page.on("dialog", lambda dialog: note("a dialog"))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:")) else note(request.url),
    )
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    return opened


@pytest.fixture(scope="module")
def wide(browser: Any, file: Path) -> Opened:
    return open_page(browser, file)


def test_the_page_opens_without_an_error_or_a_request_and_draws_every_chart(wide: Opened) -> None:
    assert wide.page.locator(".chart[data-drawn] svg").count() == 7
    assert wide.page.locator(".chart-problem").count() == 0
    assert wide.wrong == []


def test_names_are_shown_as_they_are_and_run_nothing(wide: Opened) -> None:
    assert wide.page.evaluate("window.broken") is None
    names = wide.page.locator(".board[data-board=aggregate] .encoder").all_inner_texts()
    assert set(HOSTILE.values()) <= set(names)
    assert SCRIPT[:20] in wide.page.locator('[data-chart="rank_probability"]').inner_text()


def test_columns_sort_by_click_and_by_key_and_missing_values_stay_last(wide: Opened) -> None:
    board = '.board[data-board="aggregate"]'
    header = wide.page.locator(f"{board} thead th", has_text="proximity")
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    column = [float(row[6]) for row in wide.rows(board)]
    assert column == sorted(column, reverse=True)
    header.locator("button").focus()
    wide.page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert [float(row[6]) for row in wide.rows(board)] == sorted(column)
    assert wide.page.locator(f"{board} th[aria-sort]").count() == 1
    wide.choose("ds-board", "aptos2019")
    board = '.board[data-board="aptos2019"]'
    assert wide.page.locator(board).is_visible()
    assert not wide.page.locator('.board[data-board="aggregate"]').is_visible()
    for _ in range(2):  # up and down
        wide.page.locator(f"{board} thead th", has_text="tier").locator("button").click()
        last = wide.rows(board)[-2:]
        assert {row[1].split("\n")[0] for row in last} == {"BioViL", "CheXzero"}
        assert all("No cell" in row[2] for row in last)
    wide.choose("ds-board", "aggregate")


def test_the_filter_keeps_what_it_names(wide: Opened) -> None:
    wide.page.locator("#filter").fill("specialist seen")
    shown = wide.page.locator('.board[data-board="aggregate"] tbody tr:visible .group')
    assert set(shown.all_inner_texts()) == {"specialist"}
    found = wide.page.locator("#found").inner_text()
    assert found == f"{shown.count()} encoders shown"
    wide.page.locator("#filter").fill("")
    assert wide.page.locator('.board[data-board="aggregate"] tbody tr:visible').count() == 15


def test_measures_stand_beside_the_score_on_a_data_set(wide: Opened) -> None:
    wide.choose("ds-board", "chexpert")
    header = wide.page.locator('.board[data-board="chexpert"] thead th', has_text="shift drop")
    assert not header.is_visible()
    wide.choose("columns", "measures")
    assert header.is_visible()
    wide.choose("columns", "axes")
    wide.choose("ds-board", "aggregate")


def test_chosen_encoders_stand_out_in_the_charts(wide: Opened) -> None:
    points = '[data-chart="profile"] .mark-symbol path'
    before = wide.page.locator(points).count()
    assert before > 0
    wide.page.locator("#chooser summary").click()
    box = wide.page.locator("#chooser input:checked").first
    box.uncheck()
    wide.page.wait_for_function(
        f"document.querySelectorAll('{points}').length < {before}", timeout=10_000
    )
    box = wide.page.locator("#chooser input").first
    box.check()
    wide.page.wait_for_function(
        f"document.querySelectorAll('{points}').length === {before}", timeout=10_000
    )
    wide.page.locator("#chooser summary").click()


def ranking(material: Material, weights: np.ndarray) -> dict[str, int]:
    """The ranks by title, from the table `crs`."""
    crs = material.tables["crs"]
    own = crs[(crs["dataset"] == AGGREGATE) & ~crs["floor"]]
    parts = own[["dominance", "proximity", "worst_axis"]].to_numpy(float)
    ranks = competition_rank(pd.Series(sum(weights[k] * parts[:, k] for k in range(3))))
    return {material.titles[e]: int(r) for e, r in zip(own["encoder"], ranks, strict=True)}


def moved(weights: np.ndarray, part: int, to: float) -> np.ndarray:
    """One weight set, the others in their ratio."""
    others = weights * (1 - to) / (1 - weights[part])
    others[part] = to
    return others


def test_the_triangle_ranks_as_python_does(wide: Opened, material: Material) -> None:

    def shown() -> dict[str, int]:
        unmarked = lambda name: re.sub(r" seen\??$", "", name)  # noqa: E731
        return {unmarked(row[1]): int(row[0]) for row in wide.rows("#reranked")}

    assert any(row[1].endswith(" seen") for row in wide.rows("#reranked"))
    used = np.array([0.60, 0.25, 0.15])
    assert shown() == ranking(material, used)
    for part, to in [(0, 0.05), (1, 0.9), (2, 0.7), (0, 1.0)]:
        wide.page.locator(f"#w{part}").fill(str(round(100 * to)))
        assert shown() == ranking(material, moved(used, part, to)), (part, to)
        wide.page.locator("#reset-weights").click()
    assert shown() == ranking(material, used)
    wide.page.locator("#w2").focus()
    wide.page.keyboard.press("ArrowRight")
    assert wide.page.locator("#o2").inner_text() == "0.16"
    box = wide.page.locator("#triangle").bounding_box()
    left, top = box["x"] + box["width"] * 46 / 392, box["y"] + box["height"] * 34 / 330
    unit = box["width"] / 392
    wide.page.mouse.move(left + 100 * unit, top + 250 * unit)
    wide.page.mouse.down()
    wide.page.mouse.move(left + 150 * unit, top + 65 * unit, steps=3)  # 3/4 for the worst axis
    wide.page.mouse.up()
    reported = [float(wide.page.locator(f"#o{part}").inner_text()) for part in range(3)]
    assert reported == pytest.approx([0.125, 0.125, 0.75], abs=0.02)
    assert shown() == ranking(material, np.array([0.125, 0.125, 0.75]))


def test_who_stays_on_top_is_what_the_study_says(wide: Opened, material: Material) -> None:
    leaders = material.studies["weight_sensitivity"].table["leader"].str.split(", ").explode()
    reported = wide.page.locator("#stays").inner_text()
    for encoder, count in leaders.value_counts().items():
        assert f"{material.titles[encoder]} {int(100 * count / 231 + 0.5)} %" in reported


def test_the_stress_charts_follow_data_set_and_measure(wide: Opened) -> None:
    chart = wide.page.locator('[data-chart="stress"]')
    drawn = [chart.inner_html()]
    for name, value in [("measure", "ece"), ("ds-stress", "aptos2019")]:
        wide.choose(name, value)
        wide.page.wait_for_timeout(700)
        drawn.append(chart.inner_html())
    assert len(set(drawn)) == 3
    assert wide.wrong == []


def test_tables_download_as_they_are(wide: Opened, material: Material, tmp_path: Path) -> None:
    for name, table in [("movers", material.studies["movers"].table), ("runs", None)]:
        table = material.tables["runs"] if table is None else table
        link = wide.page.locator(f'a[download^="{name}.csv"]')
        with wide.page.expect_download() as waiting:
            link.evaluate("link => link.click()")
        waiting.value.save_as(tmp_path / name)
        content = (tmp_path / name).read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        table = material.overlaps.add_to(table)
        assert ("overlap" in table) == (name == "runs")
        assert content.decode("utf-8") == table.to_csv(index=False)


def test_tables_and_pictures_speak_to_a_screen_reader(wide: Opened) -> None:
    unnamed = wide.page.evaluate(
        """() => [
          ...[...document.querySelectorAll('table')].filter(
            (t) => !t.querySelector('thead th[scope=col]')),
          ...[...document.querySelectorAll('img')].filter((i) => !i.alt),
          ...[...document.querySelectorAll('[role=img], [role=region]')].filter(
            (e) => !e.getAttribute('aria-label')),
          ...[...document.querySelectorAll('input')].filter(
            (i) => !i.closest('label') && !i.getAttribute('aria-label')),
          ...[...document.querySelectorAll('[id]')].filter(
            (e) => document.querySelectorAll('#' + CSS.escape(e.id)).length > 1),
        ].map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []


def test_every_figure_says_what_it_does_not(wide: Opened) -> None:
    charts = wide.page.locator("figure.chart-card")
    assert charts.count() == 7
    for number in range(7):
        assert "What this does not say." in charts.nth(number).inner_text()
    for card in wide.page.locator("article.study:has(img)").all():
        assert "What this does not say." in card.inner_text()


def test_a_phone_scrolls_down_only_and_dark_is_dark(browser: Any, file: Path) -> None:
    phone = open_page(browser, file, width=375, scheme="dark")
    assert phone.page.evaluate("document.documentElement.scrollWidth") == 375
    assert phone.page.locator(".chart[data-drawn] svg").count() == 7
    shade = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
    assert max(phone.page.evaluate(shade)) < 60
    assert min(phone.page.evaluate(shade.replace("backgroundColor", "color"))) > 180
    phone.page.locator("#theme").click()
    assert min(phone.page.evaluate(shade)) > 200
    assert phone.wrong == []
    phone.page.close()


def test_it_prints_every_leaderboard(browser: Any, file: Path) -> None:
    paper = open_page(browser, file, scheme="dark")
    pdf = paper.page.pdf(prefer_css_page_size=True, print_background=True)
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") >= 5
    paper.page.emulate_media(media="print")
    assert paper.page.locator(".board:visible").count() == 4
    white = "getComputedStyle(document.body).backgroundColor"
    assert paper.page.evaluate(white) == "rgb(255, 255, 255)"
    paper.page.close()
