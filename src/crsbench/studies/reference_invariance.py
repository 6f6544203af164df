"""What newcomers do to published scores: with fixed anchors nothing, with cohort ones a lot."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd

from crsbench.core.hashing import sha256_number
from crsbench.core.names import AGGREGATE, SEED_MEAN
from crsbench.core.plotting import COLOURS
from crsbench.score import Reference, Scoring, crs_components, crs_table
from crsbench.studies.base import mean_by_encoder
from crsbench.studies.figures import Figure, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Study, fields, not_run, study


@study(
    title="Do newcomers move published scores?",
    theme="choices",
    needs=("tables",),
    columns=fields(int, "trial")
    | fields(str, "newcomers encoder")
    | fields(
        float,
        "cohort_before cohort_after cohort_shift anchored_before anchored_after anchored_shift",
    ),
    limit="That a score stays put makes it comparable, not right.",
)
def reference_invariance(inputs: Inputs) -> Study:
    """Take encoders out of the panel, publish the rest, let them in as newcomers, and compare.

    Two ways of scoring, both with the same three components: *cohort* maps each axis from the worst
    to the best encoder present and makes everyone present a peer; *anchored* is this project's way,
    fixed anchors and the rest as frozen reference. Shifts are absolute, of the aggregate CRS. A
    panel of fewer than five times the configured newcomers gives up a fifth of itself, at least
    one. Which encoders leave follows from a SHA-256 hash, without repetition; where there are fewer
    choices than trials, each is made once.
    """
    axes = inputs.panel.axes
    axes = axes[axes["encoder"].isin(inputs.aggregate.index)].drop(columns="missing")
    axes = axes.assign(missing=None)
    encoders = sorted(axes["encoder"].unique())
    if len(encoders) < 3:
        reason = f"of {len(encoders)} ranked encoders none can leave a panel of two behind"
        return not_run(reason)
    wanted = inputs.settings["studies"]["reference_invariance"]
    n_newcomers = min(wanted["newcomers"], max(1, len(encoders) // 5))
    choices = list(combinations(encoders, n_newcomers))
    generator = np.random.default_rng(sha256_number("reference invariance"))
    n_trials = min(wanted["trials"], len(choices))
    chosen = sorted(generator.choice(len(choices), size=n_trials, replace=False).tolist())
    trials = [_trial(axes, choices[choice], inputs.scoring) for choice in chosen]
    table = pd.concat(
        [trial.assign(trial=place) for place, trial in enumerate(trials)], ignore_index=True
    )
    findings = {
        "trials": n_trials,
        "panel": len(encoders) - n_newcomers,
        "newcomers": n_newcomers,
        "cohort_shift_mean": float(table["cohort_shift"].mean()),
        "cohort_shift_max": float(table["cohort_shift"].max()),
        "anchored_shift": float(table["anchored_shift"].max()),
    }
    anchored = findings["anchored_shift"]
    sentence = (
        f"In {n_trials} trials, {n_newcomers} of {len(encoders)} encoders joining the other "
        f"{findings['panel']} move published scores by {findings['cohort_shift_mean']:.3f} on "
        f"average and up to {findings['cohort_shift_max']:.3f} if axes are renormalised over the "
        f"cohort, and by {anchored or 'exactly 0'} with fixed anchors and a frozen "
        "reference."
    )
    return Study(table, sentence, findings, lambda figure: _draw(figure, table))


def cohort_crs(axes: pd.DataFrame, scoring: Scoring) -> pd.Series:
    """Aggregate CRS by encoder if axes were renormalised over, and peers were, all encoders given.

    An axis on which all are equal is 1 for everyone.

    Args:
        axes: seed-mean rows of the table ``axes``.
        scoring: its weights are used; its anchors have made ``axes`` and no longer matter where
            they clip nothing.
    """
    names = [f"axis_{name}" for name in scoring.axes]
    parts = []
    for dataset, rows in axes.groupby("dataset", sort=True):
        values = rows[names].to_numpy(np.float64)
        low, high = values.min(axis=0), values.max(axis=0)
        spread = np.where(high > low, high - low, 1.0)
        cohort = np.where(high > low, (values - low) / spread, 1.0)
        crs = crs_components(cohort, cohort, np.eye(len(rows), dtype=bool), scoring.weights).crs
        parts.append(pd.DataFrame({"encoder": rows["encoder"], "dataset": dataset, "crs": crs}))
    return mean_by_encoder(pd.concat(parts), "crs")


def _trial(axes: pd.DataFrame, newcomers: tuple[str, ...], scoring: Scoring) -> pd.DataFrame:
    is_new = axes["encoder"].isin(newcomers)
    published = axes[~is_new].reset_index(drop=True)
    arriving = axes[is_new & axes["dataset"].isin(published["dataset"])]
    frozen = Reference("published", scoring, published, {})
    means = axes[axes["seed"] == SEED_MEAN]
    before = published[published["seed"] == SEED_MEAN]
    columns = {
        "cohort_before": cohort_crs(before, scoring),
        "cohort_after": cohort_crs(means, scoring),
        "anchored_before": _aggregate(crs_table(published, scoring)),
        "anchored_after": _aggregate(crs_table(arriving, scoring, frozen)),
    }
    table = pd.DataFrame(columns).loc[sorted(published["encoder"].unique())].dropna()
    for way in ("cohort", "anchored"):
        table[f"{way}_shift"] = (table[f"{way}_after"] - table[f"{way}_before"]).abs()
    return table.rename_axis("encoder").reset_index().assign(newcomers=", ".join(newcomers))


def _aggregate(crs: pd.DataFrame) -> pd.Series:
    return crs[crs["dataset"] == AGGREGATE].set_index("encoder")["crs"]


def _draw(figure: Figure, table: pd.DataFrame) -> None:
    from matplotlib.ticker import MaxNLocator

    (panel,) = panels(figure, 1, (6, 3.6))
    rows = table.sort_values("trial")
    panel.plot(
        rows["trial"] + 1,
        rows["cohort_shift"],
        "o",
        markersize=4,
        alpha=0.6,
        color=COLOURS[1],
        label="renormalised over the cohort",
    )
    panel.plot(
        rows["trial"] + 1,
        rows["anchored_shift"],
        "_",
        color=COLOURS[0],
        label="fixed anchors, frozen reference",
    )
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set(xlabel="trial", ylabel="|shift| of a published CRS")
    panel.set_ylim(bottom=-0.005)
    panel.grid(axis="y", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
