"""How encoders that know nothing score: an encoder with nothing to lose loses nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd

from crsbench.core.names import AGGREGATE, SEED_MEAN
from crsbench.core.plotting import COLOURS, GREY
from crsbench.score import AXES
from crsbench.score.crs import FloatArray, Panel
from crsbench.studies.base import mean_by_encoder
from crsbench.studies.figures import Figure, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Finding, Study, fields, not_run, study

COMPONENTS = ("dominance", "proximity", "worst_axis")


@study(
    title="Better than an untrained network?",
    theme="floors",
    needs=("tables",),
    columns=fields(str, "dataset axis encoder")
    | fields(float, "value")
    | fields(str, "best_floor")
    | fields(float, "floor_value advantage")
    | fields(bool, "exceeds_floor"),
    limit="Being above a floor is the least that can be asked for, axis by axis.",
)
def floors(inputs: Inputs) -> Study:
    """Each encoder's advantage over the best floor, axis by axis and data set by data set.

    Values are the normalised axes of the seed means, so an axis may be clipped for both.
    """
    if not inputs.floors:
        return not_run("the panel has no floor encoder")
    means = inputs.axes[inputs.axes["seed"] == SEED_MEAN]
    records = []
    for dataset, rows in means.groupby("dataset", sort=True):
        for axis in AXES:
            values = rows.set_index("encoder")[f"axis_{axis}"].dropna().sort_index()
            of_floors = values[values.index.isin(inputs.floors)]
            if of_floors.empty:
                continue
            best, level = of_floors.idxmax(), of_floors.max()
            for encoder, value in values.drop(of_floors.index).items():
                row = {"dataset": dataset, "axis": axis, "encoder": encoder, "value": value}
                row |= {"best_floor": best, "floor_value": level, "advantage": value - level}
                records.append(row | {"exceeds_floor": value > level})
    table = pd.DataFrame(records)
    if table.empty:
        return not_run("no floor shares a data set with a ranked encoder")
    findings: dict[str, Finding] = {}
    sentences = []
    for axis in AXES:
        rows = table[table["axis"] == axis]
        findings[f"cells.{axis}"] = len(rows)
        findings[f"not_above_floor.{axis}"] = int((~rows["exceeds_floor"]).sum())
        sentences.append(f"{findings[f'not_above_floor.{axis}']} of {len(rows)} on {axis}")
    sentence = (
        "Encoder × data set cells that do not exceed the best floor (an encoder that never learnt "
        f"anything): {', '.join(sentences)}."
    )
    return Study(table, sentence, findings, lambda figure: _draw_axes(figure, inputs, table))


@study(
    title="How a floor comes by its score",
    theme="floors",
    needs=("tables",),
    columns=fields(str, "encoder dataset")
    | fields(bool, "floor")
    | fields(float, "from_dominance from_proximity from_worst_axis crs")
    | fields(int, "place place_by_proximity place_without_dominance")
    | fields(float, "dominated_by")
    | fields(int, "n_ranked"),
    limit="Floors lose little and promise little, so a CRS near theirs deserves no trust.",
)
def floor_scores(inputs: Inputs) -> Study:
    """What the three components of the CRS are worth to a floor, beside the ranked encoders.

    ``from_…`` are the weighted components, which add up to the CRS. The places count how many
    ranked encoders stand above, by the CRS, by proximity alone, and by proximity and worst axis
    with their weights: what the worst axis and dominance do to a floor is the step from one place
    to the next. ``dominated_by`` is the share of the other ranked encoders that Pareto-dominate the
    row's encoder (its mean over data sets in the aggregate).
    """
    if not inputs.floors:
        return not_run("the panel has no floor encoder")
    table = inputs.crs[inputs.crs["crs"].notna()][
        ["encoder", "dataset", "floor", *COMPONENTS, "crs"]
    ]
    if not table["floor"].any() or table["floor"].all():
        return not_run("there are not both a floor and a ranked encoder with a score")
    weights = inputs.scoring.weights
    for name in COMPONENTS:
        table[f"from_{name}"] = table[name] * getattr(weights, name)
    table["without_dominance"] = table["from_proximity"] + table["from_worst_axis"]
    by = {"crs": "place", "proximity": "place_by_proximity"}
    for measure, place in (by | {"without_dominance": "place_without_dominance"}).items():
        table[place] = _places(table, measure)
    n_ranked = (~table["floor"]).groupby(table["dataset"]).sum()
    table["n_ranked"] = table["dataset"].map(n_ranked)
    table = table.merge(_dominated_by(inputs.panel, inputs.floors), on=["encoder", "dataset"])
    table = table.sort_values(
        ["dataset", "floor", "crs", "encoder"], ascending=[True, False, False, True],
        ignore_index=True,
    )  # fmt: skip
    shown = table[table["dataset"] == AGGREGATE]
    sentences, findings = [], {}
    for row in shown[shown["floor"]].itertuples():
        findings[f"crs.{row.encoder}"] = row.crs
        findings[f"place.{row.encoder}"] = row.place
        sentences.append(
            f"{inputs.title(row.encoder)} has a CRS of {row.crs:.3f} ({row.from_dominance:.3f} "
            f"from dominance, {row.from_proximity:.3f} from proximity, {row.from_worst_axis:.3f} "
            f"from its worst axis) and would stand at {row.place} among {row.n_ranked + 1} (at "
            f"{row.place_by_proximity} by proximity alone, at {row.place_without_dominance} with "
            f"the worst axis but without dominance); {100 * row.dominated_by:.0f} % of the ranked "
            "encoders dominate it"
        )
    sentence = "; ".join(sentences) + "."
    return Study(table, sentence, findings, lambda figure: _draw_scores(figure, inputs, shown))


def _places(table: pd.DataFrame, measure: str) -> pd.Series:
    """1 + the number of ranked encoders of the data set with a higher value."""
    places = [
        1
        + int(
            ((table["dataset"] == row.dataset) & ~table["floor"] & (table[measure] > value)).sum()
        )
        for row, value in zip(table.itertuples(), table[measure], strict=True)
    ]
    return pd.Series(places, index=table.index)


def _dominated_by(panel: Panel, floor_names: list[str]) -> pd.DataFrame:
    parts = []
    for dataset in panel.datasets:
        rows, values, _, _ = panel.values(dataset)
        is_ranked = ~rows["encoder"].isin(floor_names).to_numpy() & ~np.isnan(values).any(axis=1)
        share = [
            _share_that_dominate(values[i], values[is_ranked & (np.arange(len(rows)) != i)])
            for i in range(len(rows))
        ]
        frame = pd.DataFrame({"encoder": rows["encoder"], "dataset": dataset})
        parts.append(frame.assign(dominated_by=share))
    single = pd.concat(parts, ignore_index=True)
    whole = mean_by_encoder(single, "dominated_by").rename("dominated_by").reset_index()
    return pd.concat([single, whole.assign(dataset=AGGREGATE)], ignore_index=True)


def _share_that_dominate(own: FloatArray, others: FloatArray) -> float:
    if not len(others):
        return float("nan")
    return float(((others >= own).all(axis=1) & (others > own).any(axis=1)).mean())


def _draw_axes(figure: Figure, inputs: Inputs, table: pd.DataFrame) -> None:
    datasets = list(table.groupby("dataset", sort=True))
    row = panels(figure, len(datasets), (4.2, 3.8), share=True)
    for panel, (dataset, rows) in zip(row, datasets, strict=True):
        for place, axis in enumerate(AXES):
            own = rows[rows["axis"] == axis]
            for exceeds, colour in ((True, COLOURS[0]), (False, COLOURS[1])):
                values = own.loc[own["exceeds_floor"] == exceeds, "value"]
                panel.plot([place] * len(values), values, "o", color=colour, alpha=0.8)
            if len(own):
                level = own["floor_value"].iloc[0]
                panel.plot([place - 0.3, place + 0.3], [level] * 2, color=GREY, linewidth=2)
        panel.set_xticks(range(len(AXES)), AXES, rotation=20)
        panel.set_ylim(-0.03, 1.03)
        panel.set_title(inputs.title(dataset))
        panel.grid(axis="y", alpha=0.25)
    row[0].set_ylabel("normalised axis (1 = best)")
    row[0].plot([], [], "o", color=COLOURS[0], label="above the best floor")
    row[0].plot([], [], "o", color=COLOURS[1], label="not above it")
    row[0].plot([], [], color=GREY, linewidth=2, label="the best floor")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)


def _draw_scores(figure: Figure, inputs: Inputs, shown: pd.DataFrame) -> None:
    (panel,) = panels(figure, 1, (7, 1.5 + 0.3 * len(shown)))
    rows = shown.sort_values(["crs", "encoder"], ignore_index=True)
    left = np.zeros(len(rows))
    for place, name in enumerate(COMPONENTS):
        width = rows[f"from_{name}"].to_numpy()
        label = name.replace("_", " ")
        panel.barh(rows.index, width, left=left, color=COLOURS[place], label=label)
        left = left + width
    names = [
        inputs.label(row.encoder) + (" (floor)" if row.floor else "") for row in rows.itertuples()
    ]
    panel.set_yticks(rows.index, names)
    panel.set_xlabel("aggregate CRS, by what it is made of")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
