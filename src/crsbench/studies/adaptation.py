"""Does the frozen ranking hold once the encoders are adapted?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from crsbench.core.names import AGGREGATE, CLEAN, SEED_MEAN, number
from crsbench.core.plotting import GROUP_COLOURS
from crsbench.metrics.statistics import (
    competition_rank,
    kendall_tau,
    mean_absolute_rank_shift,
    t_interval,
    top_k_overlap,
)
from crsbench.score import axes_table, crs_table
from crsbench.studies.base import MIN_ENCODERS
from crsbench.studies.figures import Figure, group_legend, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Finding, Study, fields, not_run, study

FROZEN, ADAPTED = "frozen", "adapted"
KEY = ["encoder", "dataset", "seed", "condition", "percent"]


def states(inputs: Inputs) -> dict[str, pd.DataFrame]:
    """The same runs of the frozen and of the adapted encoders; ValueError where they are not."""
    found = {FROZEN: inputs.frozen_runs, ADAPTED: inputs.adapted_runs}
    frozen, adapted = (set(map(tuple, runs[KEY].to_numpy())) for runs in found.values())
    if frozen != adapted:
        raise ValueError(f"frozen and adapted runs differ: {sorted(frozen ^ adapted)[:3]}")
    return found


@study(
    title="Frozen against adapted",
    theme="adapted",
    needs=("adapted_runs",),
    columns=fields(str, "encoder group dataset")
    | fields(int, "n_seeds")
    | fields(float, "frozen_auroc adapted_auroc gain gain_low gain_high")
    | fields("Int64", "frozen_rank adapted_rank")
    | fields(float, "frozen_ece adapted_ece"),
    limit="One recipe of adaptation. Frozen rankings do not survive adaptation unchanged.",
    wanted=lambda settings: "adaptation" in settings,
)
def adaptation(inputs: Inputs) -> Study:
    """Macro-AUROC of frozen and adapted encoders on the clean test set with all labels.

    Both are means over the seeds of the adaptation; the gain is paired by seed, its interval
    Student's at 95 %. Floors are left out. The findings hold those of the four axes, too.
    """
    clean = {
        state: inputs.without_floors(runs[(runs["condition"] == CLEAN) & (runs["percent"] == 100)])
        .set_index(KEY[:3])
        .sort_index()
        for state, runs in states(inputs).items()
    }
    if clean[FROZEN].empty:
        return not_run("no encoder but floors is adapted")
    rows = [
        _of_cell(encoder, dataset, clean)
        for encoder, dataset in sorted({key[:2] for key in clean[FROZEN].index})
    ]
    table = pd.DataFrame(rows)
    table.insert(1, "group", [inputs.group(name) for name in table["encoder"]])
    for state in (FROZEN, ADAPTED):
        ranks = table.groupby("dataset")[f"{state}_auroc"].transform(
            lambda of: competition_rank(of)
        )
        table[f"{state}_rank"] = ranks.astype("Int64")
    table = table.sort_values(["dataset", "encoder"], ignore_index=True)
    recipe = inputs.settings["adaptation"]
    lora = {
        "lora.rank": recipe["rank"],
        "lora.alpha": recipe["alpha"],
        "lora.epochs": recipe["epochs"],
        "lora.seeds": len(recipe["seeds"]),
    }
    findings = lora | _findings(table) | _axes_findings(_aggregate(inputs))
    sentence = _sentence(table, findings, inputs)
    return Study(table, sentence, findings, _drawing(table, inputs))


def _of_cell(encoder: str, dataset: str, clean: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    frozen, adapted = (clean[state].loc[(encoder, dataset)].sort_index() for state in clean)
    gains = adapted["macro_auroc"] - frozen["macro_auroc"]
    undefined = gains.isna().any()
    gain = (float("nan"),) * 3 if undefined else t_interval(gains.to_numpy())
    return {
        "encoder": encoder,
        "dataset": dataset,
        "n_seeds": len(frozen),
        "frozen_auroc": frozen["macro_auroc"].mean(skipna=False),
        "adapted_auroc": adapted["macro_auroc"].mean(skipna=False),
        **dict(zip(("gain", "gain_low", "gain_high"), gain, strict=True)),
        "frozen_ece": frozen["ece"].mean(skipna=False),
        "adapted_ece": adapted["ece"].mean(skipna=False),
    }


def _findings(table: pd.DataFrame) -> dict[str, Finding]:
    found: dict[str, Finding] = {}
    for dataset, rows in table.groupby("dataset", sort=True):
        rows = rows[rows["gain"].notna()]
        if rows.empty:
            continue
        found[f"auroc_gain.{dataset}"] = float(rows["gain"].mean())
        if len(rows) >= MIN_ENCODERS:
            tau = kendall_tau(rows["frozen_auroc"], rows["adapted_auroc"])
            found[f"kendall_tau_frozen_vs_adapted.{dataset}"] = tau
        for state in (FROZEN, ADAPTED):
            leader = rows.loc[rows[f"{state}_auroc"].idxmax(), "encoder"]
            found[f"leader_{state}.{dataset}"] = str(leader)
    return found


@study(
    title="All four axes after adaptation",
    theme="adapted",
    needs=("adapted_runs",),
    columns=fields(str, "encoder group dataset state")
    | fields(float, "macro_auroc ece retention drop crs")
    | fields("Int64", "crs_rank move"),
    limit="One recipe of adaptation, with few seeds. The bench's other choices stay as they are.",
    wanted=lambda settings: "adaptation" in settings,
)
def adaptation_axes(inputs: Inputs) -> Study:
    """The four axes and the CRS of the same runs before and after adaptation.

    Each state is scored against its own panel. `move` is the places gained by adapting.
    """
    table = _scored(inputs)
    aggregate = _aggregate(inputs)
    if aggregate.empty:
        return not_run("the runs do not give all four axes of every state")
    findings = {
        name.removeprefix("four_axis."): value for name, value in _axes_findings(aggregate).items()
    }
    return Study(
        table,
        _axes_sentence(aggregate, findings, inputs),
        findings,
        lambda figure: _draw_ranks(figure, aggregate, inputs),
    )


def _scored(inputs: Inputs) -> pd.DataFrame:
    parts = []
    for state, runs in states(inputs).items():
        conditions = set(runs["condition"])
        shift = {
            name: [target for target in spec.get("shift", ()) if target in conditions]
            for name, spec in inputs.datasets.items()
        }
        axes = axes_table(runs, inputs.scoring, shift)
        crs = crs_table(axes, inputs.scoring, None, inputs.floors)
        crs = crs[~crs["floor"]].drop(columns="macro_auroc")
        means = axes[axes["seed"] == SEED_MEAN]
        measures = ["encoder", "dataset", "macro_auroc", "ece", "retention", "drop"]
        parts.append(crs.merge(means[measures], on=["encoder", "dataset"], how="left"))
        parts[-1]["state"] = state
    table = pd.concat(parts, ignore_index=True)
    table["group"] = [inputs.group(name) for name in table["encoder"]]
    ranks = table.pivot(index=["encoder", "dataset"], columns="state", values="crs_rank")
    ranks = ranks.reindex(columns=[FROZEN, ADAPTED])  # without a ranked encoder there are none
    moves = (ranks[FROZEN] - ranks[ADAPTED]).rename("move").reset_index()
    table = table.merge(moves, on=["encoder", "dataset"])
    order = ["dataset", "encoder", "state"]
    return table.sort_values(order, ascending=[True, True, False], ignore_index=True)


def _aggregate(inputs: Inputs) -> pd.DataFrame:
    """CRS and rank in the aggregate: a row an encoder that has both, columns `<what>_<state>`."""
    table = _scored(inputs)
    rows = table[table["dataset"] == AGGREGATE]
    wide = rows.pivot(index="encoder", columns="state", values=["crs", "crs_rank"])
    wide.columns = [f"{what}_{state}" for what, state in wide.columns]
    return wide.dropna()


def _axes_findings(aggregate: pd.DataFrame) -> dict[str, Finding]:
    if len(aggregate) < MIN_ENCODERS:
        return {}
    frozen, adapted = aggregate["crs_frozen"].astype(float), aggregate["crs_adapted"].astype(float)
    found: dict[str, Finding] = {
        "four_axis.kendall_tau": kendall_tau(frozen, adapted),
        "four_axis.mean_rank_shift": mean_absolute_rank_shift(frozen, adapted),
    }
    if len(aggregate) > MIN_ENCODERS:
        found["four_axis.top3_overlap"] = top_k_overlap(frozen, adapted, 3)
    for state in (FROZEN, ADAPTED):
        for encoder, rank in aggregate[f"crs_rank_{state}"].items():
            found[f"four_axis.rank_{state}.{encoder}"] = int(rank)
    return found


def _sentence(table: pd.DataFrame, findings: Mapping[str, Finding], inputs: Inputs) -> str:
    parts = []
    for dataset in sorted(table["dataset"].unique()):
        gain = findings.get(f"auroc_gain.{dataset}")
        if gain is None:
            continue
        tau = findings.get(f"kendall_tau_frozen_vs_adapted.{dataset}")
        leaders = [findings[f"leader_{state}.{dataset}"] for state in (FROZEN, ADAPTED)]
        first, then = (inputs.title(str(name)) for name in leaders)
        leading = f"{first} stays first" if first == then else f"{then} leads in place of {first}"
        ranking = "" if tau is None else f", the rankings agree with Kendall's τ {number(tau)}"
        parts.append(f"on {inputs.title(dataset)} {gain:+.3f}{ranking}, {leading}")
    if not parts:
        return "No data set has a defined macro-AUROC before and after adaptation."
    return f"LoRA adaptation changes macro-AUROC by, on average: {'; '.join(parts)}."


def _axes_sentence(aggregate: pd.DataFrame, findings: Mapping[str, Finding], inputs: Inputs) -> str:
    moved = aggregate["crs_rank_frozen"] - aggregate["crs_rank_adapted"]
    farthest = moved.abs().idxmax()
    ranks = [int(aggregate.loc[farthest, f"crs_rank_{state}"]) for state in (FROZEN, ADAPTED)]
    sentences = f"{inputs.title(farthest)} goes from rank {ranks[0]} to {ranks[1]}"
    if "kendall_tau" not in findings:
        return f"On the four axes, of {len(aggregate)} adapted encoders {sentences}."
    overlap = findings.get("top3_overlap")
    top = "" if overlap is None else f"; the top threes overlap by {overlap:.3f}"
    return (
        f"On the four axes the rankings by CRS before and after adaptation agree with Kendall's τ "
        f"{number(findings['kendall_tau'])}, an encoder moves by {findings['mean_rank_shift']:.2f} "
        f"ranks on average, {sentences}{top}."
    )


def _drawing(table: pd.DataFrame, inputs: Inputs) -> Callable[[Figure], None]:
    def draw(figure: Figure) -> None:
        shown = list(table.groupby("dataset", sort=True))
        for panel, (dataset, rows) in zip(
            panels(figure, len(shown), (3.8, 4.2)), shown, strict=True
        ):
            lines = [
                (inputs.title(r.encoder), r.group, (r.frozen_auroc, r.adapted_auroc))
                for r in rows.itertuples()
            ]
            _slopes(panel, lines)
            panel.set_title(inputs.title(dataset), fontsize=9)
            panel.set_ylabel("macro-AUROC")
        group_legend(figure, list(table["group"]))

    return draw


def _draw_ranks(figure: Figure, aggregate: pd.DataFrame, inputs: Inputs) -> None:
    (panel,) = panels(figure, 1, (5, 4.6))
    lines = [
        (
            inputs.title(encoder),
            inputs.group(encoder),
            (row["crs_frozen"], row["crs_adapted"]),
        )
        for encoder, row in aggregate.iterrows()
    ]
    _slopes(panel, lines)
    panel.set_ylabel("CRS (aggregate)")
    group_legend(figure, [group for _, group, _ in lines])


def _slopes(panel: Any, lines: Sequence[tuple[str, str, tuple[float, float]]]) -> None:
    """A line an encoder from its frozen to its adapted value."""
    for title, group, values in lines:
        panel.plot([0, 1], values, marker="o", markersize=4, color=GROUP_COLOURS[group])
        panel.annotate(
            title, (1, values[1]), xytext=(5, -3), textcoords="offset points", fontsize=7
        )
    panel.set_xticks([0, 1], [FROZEN, ADAPTED])
    panel.set_xlim(-0.15, 1.9)
    panel.grid(axis="y", alpha=0.25)
