"""The interactive charts: Vega-Lite specifications and the rows that they draw.

The page draws them with the Vega libraries that `vl-convert-python` ships. Colours are the page's
own CSS variables, so that light, dark and print need no redrawing. Which encoders stand out, which
data set and which measure are shown are parameters that the page's controls set.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from crsbench.config.overlap import summary
from crsbench.core.names import AGGREGATE, CLEAN
from crsbench.core.plotting import COLOURS, GREY
from crsbench.report.leaderboard import AXIS_COLUMNS
from crsbench.report.material import Material, kind_title

Spec = dict[str, Any]
Rows = list[dict[str, Any]]

DEFAULT_CHOSEN = 3
"""How many of the best encoders stand out at first, beside the best floor."""

OWN_COLOUR: Spec = {"field": "colour", "type": "nominal", "scale": None}
CHOSEN = "indexof(chosen, datum.encoder) >= 0"
SHOWN_PROBABILITY = "datum.probability >= 0.005"
NAMED = "titles[datum.value]"


def encoder_entries(material: Material) -> Rows:
    """The encoders, best CRS first and floors last, with a colour and dashes of their own."""
    crs = material.tables["crs"]
    order = crs[crs["dataset"] == AGGREGATE].sort_values(
        ["floor", "crs", "encoder"], ascending=[True, False, True], na_position="last"
    )
    entries = []
    for place, row in enumerate(order.itertuples(index=False)):
        spec = material.known[row.encoder]
        entries.append(
            {
                "encoder": row.encoder,
                "title": str(spec["title"]),
                "group": spec["group"],
                "floor": bool(row.floor),
                "colour": GREY if row.floor else COLOURS[place % len(COLOURS)],
                "dash": place // len(COLOURS) % 3,
                "chosen": not row.floor and place < DEFAULT_CHOSEN,
            }
        )
    first_floor = next((entry for entry in entries if entry["floor"]), None)
    if first_floor:
        first_floor["chosen"] = True
    return entries


def chart_rows(material: Material) -> dict[str, Rows]:
    """The rows of every chart, by the name that the specifications call them."""
    tables = material.tables
    return {
        "profile": _profile(material),
        "ranks": _ranks(material),
        "rank_probability": _records(tables["bootstrap_ranks"]),
        "pairs": _pairs(tables["bootstrap_pairs"]),
        "stress": _stress(tables["rows"]),
        "labels": _labels(tables["rows"]),
        "reliability": _reliability(material),
    }


def components(material: Material) -> Rows:
    """The ranked encoders' three components in the aggregate, unrounded, in order of name."""
    crs = material.tables["crs"]
    own = crs[(crs["dataset"] == AGGREGATE) & ~crs["floor"] & crs["crs"].notna()]
    columns = ["encoder", "dominance", "proximity", "worst_axis", "crs_rank"]
    return own.sort_values("encoder")[columns].to_dict("records")


def specifications() -> dict[str, Spec]:
    """The Vega-Lite specifications by chart; their data are named, and the page gives them."""
    return {
        "profile": _profile_chart(),
        "slopes": _slope_chart(),
        "rank_probability": _rank_heat_map(),
        "pairs": _separability_matrix(),
        "stress": _stress_chart(),
        "labels": _label_chart(),
        "reliability": _reliability_chart(),
    }


# --- rows ----------------------------------------------------------------------------------------


def _records(frame: pd.DataFrame, columns: list[str] | None = None) -> Rows:
    frame = frame if columns is None else frame[columns]
    rounded = frame.round(5).astype(object)
    return rounded.where(frame.notna(), None).to_dict("records")


def _profile(material: Material) -> Rows:
    axes = material.seed_means[["encoder", "dataset", *AXIS_COLUMNS]]
    long = axes.melt(["encoder", "dataset"], var_name="axis", value_name="value")
    long["axis"] = long["axis"].map(AXIS_COLUMNS)
    return _records(long)


def _ranks(material: Material) -> Rows:
    """Both ranks of every ranked encoder; the first of those that share a CRS rank bears all their
    names as its label, with a † where pre-training had the images."""
    crs = material.tables["crs"]
    own = crs[~crs["floor"] & crs["crs"].notna()].sort_values(["dataset", "crs_rank", "encoder"])
    answers = pd.Series(map(summary, map(dict.values, material.overlaps.of_rows(own))), own.index)
    seen = answers.eq("yes")
    titles = own["encoder"].map(material.titles)
    shared = own.assign(title=titles.mask(seen, "† " + titles))
    labels = shared.groupby(["dataset", "crs_rank"])["title"].transform(" = ".join)
    repeated = own.duplicated(["dataset", "crs_rank"])
    own = own.assign(label=labels.mask(repeated, ""))
    return _records(own, ["encoder", "dataset", "auroc_rank", "crs_rank", "label"])


def _pairs(pairs: pd.DataFrame) -> Rows:
    """Both directions of each pair: the row's encoder minus the column's."""
    columns = ["dataset", "encoder_a", "encoder_b", "difference", "low", "high", "separated"]
    own = pairs[columns]
    other = own.rename(
        columns={"encoder_a": "encoder_b", "encoder_b": "encoder_a", "low": "high", "high": "low"}
    )
    other = other.assign(**{name: -other[name] for name in ("difference", "low", "high")})
    both = pd.concat([own, other], ignore_index=True)
    verdict = both["difference"].map(lambda of: "above" if of > 0 else "below")
    both["verdict"] = verdict.where(both["separated"].astype(bool), "not separated")
    return _records(both.drop(columns="separated"))


def _stress(rows: pd.DataFrame) -> Rows:
    """AUROC and ECE of full labels by kind and severity; clean is severity 0 of every kind."""
    full = rows[rows["percent"] == 100]
    parts = full["condition"].str.extract(r"^(?P<kind>.+)-(?P<severity>\d)$")
    degraded = full.assign(kind=parts["kind"], severity=parts["severity"])
    degraded = degraded[degraded["kind"].notna()]
    clean = full[full["condition"] == CLEAN].assign(severity=0)
    kinds = pd.DataFrame({"kind": degraded["kind"].unique()})
    both = pd.concat([clean.merge(kinds, how="cross"), degraded], ignore_index=True)
    both["severity"] = both["severity"].astype(int)
    both["kind"] = both["kind"].map(kind_title)
    both = both.rename(columns={"macro_auroc_mean": "macro_auroc", "ece_mean": "ece"})
    return _records(both, ["encoder", "dataset", "kind", "severity", "macro_auroc", "ece"])


def _labels(rows: pd.DataFrame) -> Rows:
    clean = rows[rows["condition"] == CLEAN]
    clean = clean.rename(columns={"macro_auroc_mean": "auroc", "macro_auroc_sd": "sd"})
    low, high = clean["auroc"] - clean["sd"], clean["auroc"] + clean["sd"]
    columns = ["encoder", "dataset", "percent", "auroc", "low", "high"]
    return _records(clean.assign(low=low, high=high), columns)


def _reliability(material: Material) -> Rows:
    """Clean test set, all labels: the bins as they are and, where a map was fitted, after it."""
    columns = ["encoder", "dataset", "condition", "bin"]
    before = material.tables["confidence_bins"].assign(state="before")
    after = material.tables.get("reliability")
    if after is not None:
        after = after[after["method"] == "chosen"].rename(columns={"mean_confidence": "confidence"})
        parts = after.assign(
            confidence=after["confidence"] * after["count"],
            accuracy=after["accuracy"] * after["count"],
        )
        sums = parts.groupby(columns, as_index=False)[["count", "confidence", "accuracy"]].sum()
        for name in ("confidence", "accuracy"):
            sums[name] = sums[name] / sums["count"].where(sums["count"] > 0)
        before = pd.concat([before, sums.assign(state="after")], ignore_index=True)
    shown = before[(before["condition"] == CLEAN) & (before["count"] > 0)]
    kept = ["encoder", "dataset", "bin", "confidence", "accuracy", "count", "state"]
    return _records(shown, kept)


# --- specifications ------------------------------------------------------------------------------


def _params(**values: Any) -> list[Spec]:
    """Parameters that the page sets; `titles`, `chosen` and `order` are there for every chart."""
    given = {"titles": {}, "chosen": [], **values}
    return [{"name": name, "value": value} for name, value in given.items()]


def _nominal(field: str, **more: Any) -> Spec:
    return {"field": field, "type": "nominal", **more}


def _quantitative(field: str, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", **more}


def _y(field: str, title: str, domain: list[float] | None = None, **more: Any) -> Spec:
    # A domain that ends on one of the axis's own ticks: else titles stand at different heights.
    scale: Spec = {"zero": False, "nice": 6} if domain is None else {"domain": domain}
    return _quantitative(field, title=title, scale=scale, **more)


def _where(test: str, value: str, otherwise: str) -> Spec:
    return {"condition": {"test": test, "value": value}, "value": otherwise}


def _tooltip(*fields: tuple[str, str]) -> list[Spec]:
    shown: list[Spec] = [{"field": "title", "type": "nominal", "title": "encoder"}]
    for field, title in fields:
        number = field not in ("axis", "kind", "verdict", "other")
        form: Spec = {"format": ".3~f"} if number else {}
        kind = "quantitative" if number else "nominal"
        shown.append({"field": field, "title": title, "type": kind, **form})
    return shown


def _lines(
    x: Spec,
    y: Spec,
    tooltip: list[Spec],
    *layers: Spec,
    order: str | None = None,
    where: str = "true",
) -> Spec:
    """All encoders as faint lines, the chosen ones in their colours above them, with points.

    layers: what lies between; order: the field that lines follow, else x; where: a filter of rows.
    """
    detail = {"field": "encoder", "type": "nominal"}
    along = {"order": {"field": order, "type": "quantitative"}} if order else {}
    faint = {
        "transform": [{"filter": where}],
        "mark": {"type": "line", "color": "var(--faint)", "strokeWidth": 1, "tooltip": None},
        "encoding": {"detail": detail, **along},
    }
    dashes = {"domain": [0, 1, 2], "range": [[1, 0], [6, 3], [2, 2]]}
    strong = {
        "transform": [{"filter": f"{where} && {CHOSEN}"}],
        "mark": {"type": "line", "strokeWidth": 2.4},
        "encoding": {
            "color": OWN_COLOUR,
            "strokeDash": _nominal("dash", legend=None, scale=dashes),
            "detail": detail,
            **along,
        },
    }
    points = {
        "transform": [{"filter": f"{where} && {CHOSEN}"}],
        "mark": {"type": "point", "filled": True, "size": 46, "opacity": 1},
        "encoding": {"color": OWN_COLOUR, "tooltip": tooltip},
    }
    return {"encoding": {"x": x, "y": y}, "layer": [faint, *layers, strong, points]}


def _facets(field: str, view: Spec, **more: Any) -> Spec:
    header = {"title": None, "labelFontWeight": "bold", "labelFontSize": 13, "labelPadding": 4}
    return {
        "facet": {"field": field, "type": "nominal", "header": header | more, "sort": None},
        "align": "all",
        "spec": view | {"height": 210},
        "bounds": "flush",
        "spacing": {"row": 76, "column": 62},
        "resolve": {"axis": {"x": "independent", "y": "independent"}},
    }


def _profile_chart() -> Spec:
    scale = {"type": "point", "padding": 0.25}
    axis = {"labelAngle": 0, "labelExpr": "split(datum.label, ' ')"}
    x = _nominal("axis", sort=None, title=None, scale=scale, axis=axis)
    tooltip = _tooltip(("axis", "axis"), ("value", "normalised value"))
    y = _y("value", "normalised axis, 1 is best", [0, 1])
    return {
        "data": {"name": "profile"},
        "params": _params(),
        **_facets("dataset", _lines(x, y, tooltip), labelExpr=NAMED),
    }


def _slope_chart() -> Spec:
    scale: Spec = {"type": "point", "padding": 0.1}
    axis: Spec = {"labelAngle": 0, "orient": "top", "labelFontSize": 13, "labelFontWeight": "bold"}
    x = _nominal("side", sort=["AUROC", "CRS"], title=None, scale=scale, axis=axis)
    scale = {"reverse": True, "zero": False, "nice": False, "padding": 12}
    axis = {"tickMinStep": 1, "format": "d", "grid": False}
    y = _quantitative("rank", scale=scale, title="rank", axis=axis)
    view = _lines(x, y, _tooltip(("auroc_rank", "AUROC rank"), ("crs_rank", "CRS rank")))
    names = {
        "mark": {"type": "text", "align": "left", "dx": 9, "limit": 150},
        "transform": [{"filter": "datum.side == 'CRS'"}],
        "encoding": {
            "text": _nominal("label"),
            "color": _where(CHOSEN, "var(--ink)", "var(--quiet)"),
        },
    }
    view["layer"].append(names)
    return {
        "data": {"name": "ranks"},
        "params": _params(dataset=AGGREGATE),
        "transform": [
            {"filter": "datum.dataset == dataset"},
            {"calculate": "datum.auroc_rank", "as": "AUROC"},
            {"calculate": "datum.crs_rank", "as": "CRS"},
            {"fold": ["AUROC", "CRS"], "as": ["side", "rank"]},
        ],
        "height": {"step": 22},
        "usermeta": {"rows": "ranks", "rowHeight": 24, "rightMargin": 160, "maxWidth": 620},
        **view,
    }


def _heat(rows: str, x: Spec, y_field: str, colour: Spec, tooltip: list[Spec]) -> Spec:
    """Coloured cells, whose text is left to the chart."""
    axis = {"labelExpr": NAMED, "labelLimit": 150, "ticks": False, "domain": False}
    y = _nominal(y_field, title=None, sort={"field": "order", "op": "min"}, axis=axis)
    return {
        "data": {"name": rows},
        "params": _params(dataset=AGGREGATE),
        "transform": [{"filter": "datum.dataset == dataset"}],
        "encoding": {"x": x, "y": y, "tooltip": tooltip},
        "layer": [
            {"mark": {"type": "rect", "cornerRadius": 2}, "encoding": {"color": colour}},
            {"mark": {"type": "text", "fontSize": 10.5}, "encoding": {"text": {"value": ""}}},
        ],
        "usermeta": {"rows": rows, "rowHeight": 24, "maxWidth": 760},
    }


def _rank_heat_map() -> Spec:
    axis = {"orient": "top", "labelAngle": 0, "ticks": False, "domain": False}
    x = {"field": "rank", "type": "ordinal", "title": "rank", "axis": axis}
    scale = {"domain": [0, 1], "range": ["#d9e8f5", "#08519c"]}
    colour = _quantitative("probability", title=None, scale=scale, legend=None)
    tooltip = _tooltip(("rank", "rank"), ("probability", "share of resamples"))
    spec = _heat("rank_probability", x, "encoder", colour, tooltip)
    never = {"mark": {"type": "rect", "cornerRadius": 2, "color": "var(--cell)"}}
    spec["layer"][0]["transform"] = [{"filter": SHOWN_PROBABILITY}]
    spec["layer"].insert(0, never)
    spec["layer"][2] = {
        "transform": [{"filter": SHOWN_PROBABILITY}],
        "mark": {"type": "text", "fontSize": 10.5},
        "encoding": {
            "text": _quantitative("probability", format=".0%"),
            "color": _where("datum.probability > 0.55", "white", "#10243a"),
        },
    }
    return spec


def _separability_matrix() -> Spec:
    axis: Spec = {"orient": "top", "labelExpr": NAMED, "labelLimit": 110, "labelAngle": -50}
    axis |= {"ticks": False, "domain": False}
    x = _nominal("encoder_b", title=None, sort={"field": "other_order", "op": "min"}, axis=axis)
    colours = {"above": "#0072B2", "not separated": "var(--cell)", "below": "#E69F00"}
    scale = {"domain": list(colours), "range": list(colours.values())}
    legend = {"orient": "bottom", "direction": "horizontal", "symbolType": "square"}
    colour = _nominal("verdict", title=None, scale=scale, legend=legend)
    tooltip = _tooltip(
        ("other", "compared with"),
        ("difference", "difference of CRS"),
        ("low", "from"),
        ("high", "to"),
        ("verdict", "verdict"),
    )
    spec = _heat("pairs", x, "encoder_a", colour, tooltip)
    spec["layer"][1]["encoding"] = {
        "text": {
            "condition": [
                {"test": "datum.verdict == 'above'", "value": "▲"},
                {"test": "datum.verdict == 'below'", "value": "▽"},
            ],
            "value": "",
        },
        "color": _where("datum.verdict == 'above'", "white", "black"),
    }
    return spec


def _stress_chart() -> Spec:
    axis = {"values": [0, 1, 2, 3], "labelExpr": "datum.value == 0 ? 'clean' : datum.label"}
    x = _quantitative("severity", title="severity", axis=axis, scale={"nice": False})
    measures = ("macro_auroc", "macro-AUROC"), ("ece", "ECE")
    tooltip = _tooltip(("kind", "perturbation"), ("severity", "severity"), *measures)
    chart = _facets("kind", _lines(x, _y("shown", ""), tooltip))
    chart["resolve"] = {"axis": {"x": "independent"}, "scale": {"y": "shared"}}
    chart["spacing"]["column"] = 36
    chart["usermeta"] = {"cell": 150, "between": 36}
    return {
        "data": {"name": "stress"},
        "params": _params(dataset="", measure="macro_auroc"),
        "transform": [
            {"filter": "datum.dataset == dataset"},
            {"calculate": "datum[measure]", "as": "shown"},
            {"filter": "isValid(datum.shown)"},
        ],
        **chart,
    }


def _label_chart() -> Spec:
    scale = {"type": "log", "nice": False}
    axis = {"values": [1, 5, 10, 25, 100], "format": "d", "grid": False}
    x = _quantitative("percent", title="% of the labels", scale=scale, axis=axis)
    bars = {
        "transform": [{"filter": CHOSEN}],
        "mark": {"type": "rule", "strokeWidth": 1.2, "opacity": 0.7},
        "encoding": {
            "y": _quantitative("low", title="macro-AUROC"),
            "y2": {"field": "high"},
            "color": OWN_COLOUR,
        },
    }
    tooltip = _tooltip(("percent", "% of the labels"), ("auroc", "macro-AUROC"))
    view = _lines(x, _y("auroc", "macro-AUROC"), tooltip, bars)
    chart = _facets("dataset", view, labelExpr=NAMED)
    chart["resolve"]["scale"] = {"y": "independent"}
    return {"data": {"name": "labels"}, "params": _params(), **chart}


def _reliability_chart() -> Spec:
    x = _y("confidence", "stated probability", [0, 1], axis={"tickCount": 5})
    y = _y("accuracy", "what happened", [0, 1], axis={"tickCount": 5})
    tooltip = _tooltip(
        ("confidence", "stated"), ("accuracy", "happened"), ("count", "test cases, all seeds")
    )
    after = {
        "transform": [{"filter": f"datum.state == 'after' && {CHOSEN}"}],
        "mark": {"type": "line", "strokeDash": [2, 3], "strokeWidth": 1.6},
        "encoding": {
            "color": OWN_COLOUR,
            "detail": _nominal("encoder"),
            "order": _quantitative("bin"),
        },
    }
    view = _lines(x, y, tooltip, after, order="bin", where="datum.state == 'before'")
    ends = [{"confidence": at, "accuracy": at} for at in (0, 1)]
    mark = {"type": "line", "color": "var(--quiet)", "strokeDash": [4, 4], "strokeWidth": 1}
    view["layer"].insert(0, {"data": {"values": ends}, "mark": mark})
    view["layer"][-1]["mark"]["size"] = 30
    chart = _facets("dataset", view, labelExpr=NAMED)
    return {"data": {"name": "reliability"}, "params": _params(), **chart}
