"""Does the CRS rank encoders as macro-AUROC does?"""

from __future__ import annotations

import pandas as pd

from crsbench.core.names import AGGREGATE, number
from crsbench.metrics.statistics import (
    competition_rank,
    inverted_pairs,
    kendall_tau,
    mean_absolute_rank_shift,
    spearman_rho,
    top_k_overlap,
)
from crsbench.studies.base import MIN_ENCODERS, too_few
from crsbench.studies.figures import Figure, encoder_points, group_legend, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Row, Study, fields, not_run, study


@study(
    title="Two rankings of the same encoders",
    theme="auroc",
    needs=("tables",),
    columns=fields(str, "dataset")
    | fields(int, "n_encoders")
    | fields(float, "kendall_tau spearman_rho")
    | fields("Int64", "inverted_pairs tied_pairs pairs")
    | fields(float, "mean_absolute_rank_shift top3_overlap"),
    limit="It describes this panel. Of a handful of encoders, one more or less moves every figure.",
)
def rank_agreement(inputs: Inputs) -> Study:
    """Agreement of the two rankings in the aggregate and on each data set.

    The share of the top three that both rankings name says nothing for three encoders, and is
    missing there.
    """
    of_run = inputs.aggregate
    if len(of_run) < MIN_ENCODERS:
        return not_run(too_few(len(of_run)))
    ranked = inputs.ranked
    rows = [_agreement(str(name), of) for name, of in ranked.groupby("dataset", sort=True)]
    row = next(row for row in rows if row["dataset"] == AGGREGATE)
    findings = {name: value for name, value in row.items() if name not in ("dataset", "n_encoders")}
    overlap = row["top3_overlap"]
    sentence = (
        f"The rankings of {row['n_encoders']} encoders by macro-AUROC and by CRS agree with "
        f"Kendall's τ {number(row['kendall_tau'])} and Spearman's ρ {number(row['spearman_rho'])}: "
        f"{row['inverted_pairs']} of {row['pairs']} pairs are inverted and an encoder moves by "
        f"{row['mean_absolute_rank_shift']:.2f} ranks on average"
        + ("." if pd.isna(overlap) else f"; the two top threes overlap by {overlap:.3f}.")
    )

    def draw(figure: Figure) -> None:
        (panel,) = panels(figure, 1, (6, 4.2))
        encoder_points(panel, inputs, of_run["macro_auroc"], of_run["crs"])
        panel.set(xlabel="macro-AUROC (aggregate)", ylabel="CRS (aggregate)")
        group_legend(figure, [inputs.group(name) for name in of_run.index])

    return Study(rank_agreement.table(rows), sentence, findings, draw)


@study(
    title="Who moves, and how far",
    theme="auroc",
    needs=("tables",),
    columns=fields(str, "encoder group")
    | fields(float, "macro_auroc crs")
    | fields(int, "auroc_rank crs_rank move"),
    limit="A move of a place or two lies within what the seeds alone can do: look at the tiers.",
)
def movers(inputs: Inputs) -> Study:
    """Where each encoder stands by macro-AUROC and by CRS in the aggregate; ``move`` > 0 is up."""
    of_run = inputs.aggregate
    if len(of_run) < 2:
        return not_run(f"{len(of_run)} ranked encoders cannot change places")
    table = of_run.reset_index()[["encoder", "macro_auroc", "crs"]]
    table.insert(1, "group", [inputs.group(name) for name in table["encoder"]])
    for measure, rank in (("macro_auroc", "auroc_rank"), ("crs", "crs_rank")):
        table[rank] = competition_rank(table[measure]).astype("int64")
    table["move"] = table["auroc_rank"] - table["crs_rank"]
    table = table.sort_values(["crs_rank", "encoder"], ignore_index=True)
    findings = {
        f"{row.encoder}.{rank}": getattr(row, rank)
        for row in table.itertuples()
        for rank in ("auroc_rank", "crs_rank")
    }
    farthest = table[(table["move"] != 0) & (table["move"].abs() == table["move"].abs().max())]
    sentences = [
        f"{inputs.title(row.encoder)} from {row.auroc_rank} to {row.crs_rank}"
        for row in farthest.itertuples()
    ]
    sentence = (
        f"From the AUROC rank to the CRS rank the farthest moves are {', '.join(sentences)}."
        if sentences
        else "No encoder changes its place from the AUROC ranking to the CRS ranking."
    )
    return Study(table, sentence, findings, lambda figure: _slopes(figure, inputs, table))


def _agreement(dataset: str, rows: pd.DataFrame) -> Row:
    record: Row = {"dataset": dataset, "n_encoders": len(rows)}
    if len(rows) < MIN_ENCODERS:
        return record
    auroc, crs = rows["macro_auroc"], rows["crs"]
    pairs = inverted_pairs(auroc, crs)
    return record | {
        "kendall_tau": kendall_tau(auroc, crs),
        "spearman_rho": spearman_rho(auroc, crs),
        "inverted_pairs": pairs.inverted,
        "tied_pairs": pairs.tied,
        "pairs": pairs.pairs,
        "mean_absolute_rank_shift": mean_absolute_rank_shift(auroc, crs),
        "top3_overlap": top_k_overlap(auroc, crs, 3) if len(rows) > 3 else float("nan"),
    }


def _slopes(figure: Figure, inputs: Inputs, table: pd.DataFrame) -> None:
    (panel,) = panels(figure, 1, (6, 1.2 + 0.28 * len(table)))
    for side, rank, align in ((0, "auroc_rank", "right"), (1, "crs_rank", "left")):
        for place, rows in table.groupby(rank):
            names = ", ".join(inputs.label(name) for name in rows["encoder"])
            text = f"{names}  {place}" if side == 0 else f"{place}  {names}"
            panel.text(side + (0.03 if side else -0.03), place, text, ha=align, va="center")
    for row in table.itertuples():
        colour = inputs.colour(row.encoder)
        panel.plot([0, 1], [row.auroc_rank, row.crs_rank], color=colour, marker="o", linewidth=1.6)
    panel.set_xlim(-1.1, 2.1)
    panel.set_ylim(len(table) + 0.6, 0.4)
    panel.set_xticks([0, 1], ["by macro-AUROC", "by CRS"])
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    group_legend(figure, [inputs.group(name) for name in table["encoder"]])
