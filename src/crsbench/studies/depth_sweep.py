"""Is the last block the best clinical representation?"""

from __future__ import annotations

import pandas as pd

from crsbench.metrics.statistics import t_interval
from crsbench.studies.figures import Figure, line_style, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Finding, Study, fields, study

FINAL = 100
POINTS = 100
"""AUROC points in an AUROC of 1."""


@study(
    title="Which block's features are best",
    theme="adapted",
    needs=("depth_runs",),
    columns=fields(str, "encoder group dataset")
    | fields(int, "depth")
    | fields(str, "norm")
    | fields(int, "width")
    | fields(float, "macro_auroc macro_auroc_low macro_auroc_high ece ece_low ece_high")
    | fields(float, "gain gain_low gain_high")
    | fields(int, "n_seeds")
    | fields(bool, "best"),
    limit="The best depth is picked on the test images that it is reported on.",
    wanted=lambda settings: "depth_sweep" in settings,
)
def depth_sweep(inputs: Inputs) -> Study:
    """Macro-AUROC and ECE by depth, and what an intermediate layer gains over the final one.

    Intervals are Student's over seeds at 95 %; the gain is paired by seed. The best depth is the
    one of the highest mean AUROC on the test set itself (of equal ones the deepest).
    """
    sweeps = inputs.depth_runs.sort_values(["encoder", "dataset", "depth", "seed"]).groupby(
        ["encoder", "dataset"], sort=True
    )
    table = pd.concat([_of_sweep(rows) for _, rows in sweeps], ignore_index=True)
    table.insert(1, "group", [inputs.group(name) for name in table["encoder"]])
    return Study(
        table,
        _sentence(inputs, table),
        _findings(table),
        lambda figure: _draw(figure, inputs, table),
    )


def _of_sweep(runs: pd.DataFrame) -> pd.DataFrame:
    final = runs[runs["depth"] == FINAL].set_index("seed")["macro_auroc"]
    rows = []
    for depth, of_depth in runs.groupby("depth", sort=True):
        first = of_depth.iloc[0]
        row = {name: first[name] for name in ("encoder", "dataset", "norm", "width")}
        row |= {"depth": depth, "n_seeds": len(of_depth)}
        gains = of_depth.set_index("seed")["macro_auroc"] - final
        measures = {"macro_auroc": of_depth["macro_auroc"], "ece": of_depth["ece"], "gain": gains}
        for name, values in measures.items():
            undefined = values.isna().any()
            found = (float("nan"),) * 3 if undefined else t_interval(values.to_numpy())
            row |= dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))
        rows.append(row)
    table = pd.DataFrame(rows)
    table["best"] = False
    highest = table.index[table["macro_auroc"] == table["macro_auroc"].max()]
    table.loc[highest[-1:], "best"] = True
    return table


def _best_intermediate(table: pd.DataFrame) -> pd.DataFrame:
    """The row of the best depth below 100 % of each sweep that is defined at every depth."""
    sweeps = table.groupby(["encoder", "dataset"], sort=True)
    defined = sweeps["macro_auroc"].transform(lambda of: of.notna().all())
    below = table[defined & (table["depth"] < FINAL)]
    at = below.groupby(["encoder", "dataset"], sort=True)["macro_auroc"].idxmax()
    return table.loc[at]


def _findings(table: pd.DataFrame) -> dict[str, Finding]:
    best = _best_intermediate(table)
    found: dict[str, Finding] = {
        "sweeps": len(best),
        "intermediate_better": int((best["gain"] > 0).sum()),
    }
    for encoder, rows in best.groupby("encoder", sort=True):
        points = rows["gain"] * POINTS
        found |= {
            f"gain_points.{encoder}.low": float(points.min()),
            f"gain_points.{encoder}.high": float(points.max()),
        }
        means = table[table["encoder"] == encoder].groupby("depth")["macro_auroc"].mean()
        found[f"best_depth.{encoder}"] = float(means.iloc[::-1].idxmax()) / 100
    return found


def _sentence(inputs: Inputs, table: pd.DataFrame) -> str:
    best = _best_intermediate(table)
    better = best[best["gain"] > 0]
    sentences = [
        f"{inputs.title(row.encoder)} on {inputs.title(row.dataset)} at {row.depth} % "
        f"({row.gain * POINTS:+.1f} points)"
        for row in better.itertuples()
    ]
    sure = int((better["gain_low"] > 0).sum())
    counted = f"An intermediate layer beats the final one in {len(better)} of {len(best)} sweeps"
    if not sentences:
        return f"{counted}."
    return (
        f"{counted}, in {sure} of them by more than the seeds' 95 % interval: "
        f"{'; '.join(sentences)}. "
        "The best depth is chosen on the test set that it is shown on."
    )


def _draw(figure: Figure, inputs: Inputs, table: pd.DataFrame) -> None:
    shown = list(table.groupby("dataset", sort=True))
    names = sorted(table["encoder"].unique())
    row = panels(figure, 2 * len(shown), (3.4, 3.4))
    for number, (dataset, rows) in enumerate(shown):
        for panel, measure in zip(
            row[2 * number : 2 * number + 2], ("macro_auroc", "ece"), strict=True
        ):
            for encoder, curve in rows.groupby("encoder", sort=True):
                style = line_style(names.index(encoder))
                panel.plot(
                    curve["depth"],
                    curve[measure],
                    marker="o",
                    markersize=3,
                    label=inputs.title(encoder),
                    **style,
                )
                low, high = curve[f"{measure}_low"], curve[f"{measure}_high"]
                panel.fill_between(curve["depth"], low, high, alpha=0.15, color=style["color"])
            panel.set_title(inputs.title(dataset), fontsize=9)
            panel.set(xlabel="depth (%)", ylabel={"macro_auroc": "macro-AUROC"}.get(measure, "ECE"))
            panel.set_xticks(sorted(rows["depth"].unique()))
            panel.grid(alpha=0.25)
    handles, labels = row[0].get_legend_handles_labels()
    columns = min(4, len(labels))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
