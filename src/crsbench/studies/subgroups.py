"""Subgroups: is an encoder worse for some patients, beyond what few patients make of chance?

Every test is of a gap: the best group's value less the worst group's. Such a gap is never negative,
and grows with the number of groups and shrinks with their sizes when there is nothing to find; so
it is set beside the gaps that the groups' own sampling errors make (the resamples, each group's
centred at its own mean).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from crsbench.core.errors import UserError
from crsbench.core.names import CLEAN, SEED_MEAN, nearest, number
from crsbench.evaluation.cases import CellCases, TestedCases
from crsbench.metrics.calibration_error import resampled_calibration_error, top_label
from crsbench.metrics.discrimination import resampled_auroc
from crsbench.metrics.statistics import (
    MOST_UNDEFINED,
    holm,
    percentile_interval,
    value_with_interval,
)
from crsbench.score import AXES
from crsbench.studies.figures import Figure, dots
from crsbench.studies.inputs import Inputs
from crsbench.studies.operating_points import (
    Aim,
    Target,
    hits,
    ranked_target,
    targets_and_aim,
    thresholds,
)
from crsbench.studies.registry import TESTED, Finding, Row, Study, fields, study

FloatArray = npt.NDArray[np.float64]

AXIS_NAMES = [f"axis_{name}" for name in AXES]

ALPHA = 0.05
"""Family-wise error of the gaps of one encoder, data set and condition."""

LABEL = "label"
"""What a match is called that makes the groups' labels equally frequent."""


@dataclass(frozen=True)
class SubgroupSettings:
    """columns: of the manifest; bands: for a column of numbers, where its bands begin (0 is there
    by itself); min_images: smaller groups are named and left out; min_cases: a class counts where
    every group of the column has so many positives and negatives of it; match: columns, or
    `label`, that each group is weighted to have the whole test set's shares of."""

    columns: tuple[str, ...]
    bands: Mapping[str, Sequence[float]] = field(default_factory=dict)
    min_images: int = 50
    min_cases: int = 10
    match: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of one column. names: those large enough; rows: (n,) index into them or −1;
    small: name and size of those left out; unrecorded: images without a value."""

    names: tuple[str, ...]
    rows: np.ndarray
    small: Mapping[str, int]
    unrecorded: int


def in_bands(values: Sequence[str], edges: Sequence[float]) -> np.ndarray:
    """(n,) names of the bands that numbers fall in: `0-39`, `40-59`, `60+` for the edges 40, 60.

    A value that is no number keeps its own name: publishers' readers hand out bands already.
    """
    starts = [0.0, *edges]
    names = [f"{low:g}-{high - 1:g}" for low, high in pairwise(starts)]
    names.append(f"{starts[-1]:g}+")

    def band(value: str) -> str:
        try:
            number = float(value)
        except ValueError:
            return value
        return names[int(np.searchsorted(starts, number, side="right")) - 1] if number >= 0 else ""

    known = {value: band(value) for value in set(values)}
    return np.array([known[value] for value in values], dtype=object)


def groups_of(test: TestedCases, column: str, settings: SubgroupSettings) -> Groups:
    values = test.subgroups[column].fillna("").astype(str).to_numpy()
    if column in settings.bands:
        values = in_bands(values, settings.bands[column])
    found, counts = np.unique(values[values != ""].astype(str), return_counts=True)
    large = [str(name) for name, n in zip(found, counts, strict=True) if n >= settings.min_images]
    small = {
        str(name): int(n) for name, n in zip(found, counts, strict=True) if n < settings.min_images
    }
    rows = np.full(len(values), -1)
    for index, name in enumerate(large):
        rows[values == name] = index
    return Groups(tuple(large), rows, small, int((values == "").sum()))


def compared_classes(test: TestedCases, groups: Groups, least: int) -> list[int]:
    """The classes that have `least` known positives and negatives in every group."""
    fits = np.ones(test.truth.shape[1], dtype=bool)
    for index in range(len(groups.names)):
        truth = test.truth[groups.rows == index]
        fits &= ((truth == 1).sum(axis=0) >= least) & ((truth == 0).sum(axis=0) >= least)
    return np.flatnonzero(fits).tolist()


# --- one group's metrics in all resamples ---------------------------------------------------------


def group_auroc(
    test: TestedCases, rows: np.ndarray, weights: FloatArray, classes: Sequence[int]
) -> FloatArray:
    """(r,) macro-AUROC over `classes` of the cases `rows`, mean over seeds; weights: (r, rows)."""
    total = np.zeros(len(weights))
    for scores in test.ranking:
        of_classes = scores[rows][:, classes]
        total += resampled_auroc(test.truth[rows][:, classes], of_classes, weights).mean(axis=1)
    return total / len(test.ranking)


def group_ece(
    test: TestedCases, rows: np.ndarray, weights: FloatArray, classes: Sequence[int]
) -> FloatArray:
    """(r,) ECE of the task: of the top label; or of each label of `classes`, then the mean."""
    confidences = test.confidences()[:, rows]
    truth, known = test.truth[rows], test.known[rows]
    total = np.zeros(len(weights))
    for of_seed in confidences:
        if test.task == "multiclass":
            total += resampled_calibration_error(*top_label(truth, of_seed), weights)
            continue
        for k in classes:
            seen = known[:, k]
            pair = of_seed[seen, k], truth[seen, k]
            total += resampled_calibration_error(*pair, weights[:, seen]) / len(classes)
    return total / len(confidences)


def group_sensitivity(
    chosen: Sequence[tuple[Target, Sequence[float]]], rows: np.ndarray, weights: FloatArray
) -> FloatArray:
    """(r,) sensitivity at each seed's own threshold, mean over seeds, then over targets."""
    total = np.zeros(len(weights))
    for one, cuts in chosen:
        positive = (one.positive & one.known)[rows].astype(np.float64)
        with np.errstate(invalid="ignore"):  # a resample without positives has no value
            total += weights @ (positive * hits(one, cuts)[rows]) / (weights @ positive)
    return total / sum(len(cuts) for _, cuts in chosen)


def matching_weights(
    test: TestedCases, groups: Groups, column: str, settings: SubgroupSettings
) -> tuple[FloatArray, FloatArray]:
    """Weights (n,) that give every group the strata's shares in all groups together.

    Also, for each group, the share of the whole that lies in strata it has members of. Strata are
    the combinations of the values of `settings.match`, the column itself left out.
    """
    keys = [
        [bytes(row) for row in test.truth]
        if name == LABEL
        else in_bands(
            test.subgroups[name].fillna("").astype(str).to_numpy(), settings.bands.get(name, ())
        )
        if name in settings.bands
        else test.subgroups[name].fillna("").astype(str).to_numpy()
        for name in settings.match
        if name != column and (name == LABEL or name in test.subgroups)
    ]
    weights, shares = np.ones(len(groups.rows)), np.ones(len(groups.names))
    if not keys:
        return weights, shares
    joined = np.array(["\x1f".join(map(str, parts)) for parts in zip(*keys, strict=True)])
    stratum = np.unique(joined, return_inverse=True)[1]
    whole = np.bincount(stratum[groups.rows >= 0], minlength=stratum.max() + 1).astype(float)
    whole /= whole.sum()
    for index in range(len(groups.names)):
        rows = groups.rows == index
        own = np.bincount(stratum[rows], minlength=len(whole)) / rows.sum()
        shares[index] = whole[own > 0].sum()
        weights[rows] = whole[stratum[rows]] / own[stratum[rows]] / shares[index]
    return weights, shares


# --- the tables -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CellSubgroups:
    """The rows of a cell for the tables `subgroups` and `subgroup_gaps`, and its equity."""

    groups: list[dict[str, Any]]
    gaps: list[dict[str, Any]]
    equity: dict[str, Any]


def subgroups_of(
    cell: CellCases,
    settings: SubgroupSettings,
    targets: Mapping[str, Sequence[str]] | None = None,
    aim: Aim | None = None,
) -> CellSubgroups:
    """Compare the groups of every column, on the clean test set and on the shift targets.

    targets, aim: with them, sensitivity at the threshold that all patients share; see
    `crsbench.studies.operating_points`. The p-values of the gaps are Holm's, over all columns and
    metrics of one condition.
    """
    chosen = thresholds(cell, targets, aim) if targets and aim else {}
    rows: list[dict[str, Any]] = []
    gaps: list[dict[str, Any]] = []
    ratios: list[tuple[str, str, FloatArray]] = []
    for condition in cell.undegraded:
        test = cell.tests[condition]
        cuts = _cuts(test, targets or {}, chosen)
        of_condition: list[dict[str, Any]] = []
        for column in settings.columns:
            if column not in test.subgroups:
                continue
            one = _Column(cell, test, column, settings, cuts)
            here = {"condition": condition, "column": column}
            rows += [here | row for row in one.rows()]
            of_condition += [here | gap for gap in one.gaps()]
            if condition == CLEAN:
                ratios += one.ratios()
        for gap, p in zip(of_condition, holm([g["p"] for g in of_condition]), strict=True):
            gap |= {"p_holm": float(p), "found": None if np.isnan(p) else bool(p < ALPHA)}
        gaps += of_condition
    name = {"encoder": cell.encoder, "dataset": cell.dataset}
    tagged = [name | row for row in rows], [name | gap for gap in gaps]
    return CellSubgroups(*tagged, name | _equity(ratios))


def _cuts(
    test: TestedCases,
    targets: Mapping[str, Sequence[str]],
    chosen: Mapping[str, Sequence[tuple[float, int, float]]],
) -> list[tuple[Target, list[float]]]:
    found = []
    for name, of_seeds in chosen.items():
        cuts = [cut for cut, *_ in of_seeds]
        one = ranked_target(name, targets[name], test)
        if one is not None and not np.isnan(cuts).any():
            found.append((one, cuts))
    return found


class _Column:
    """One column of one test set: its groups, and each metric of each group in all resamples."""

    def __init__(
        self,
        cell: CellCases,
        test: TestedCases,
        column: str,
        settings: SubgroupSettings,
        cuts: Sequence[tuple[Target, list[float]]],
    ) -> None:
        self.cell, self.test, self.settings = cell, test, settings
        self.column_name = column
        self.groups = groups_of(test, column, settings)
        self.classes = compared_classes(test, self.groups, settings.min_cases)
        matching, self.matched = matching_weights(test, self.groups, column, settings)
        self.weights = test.weights * matching if settings.match else test.weights
        self.values: dict[str, FloatArray] = {}
        self.reasons: dict[str, str] = {}
        if not self.groups.names:
            return
        least = f"{settings.min_cases} positive and negative cases in every group"
        if self.classes:
            self.values["auroc"] = self._each(
                lambda rows, weights: group_auroc(test, rows, weights, self.classes)
            )
        else:
            self.reasons["auroc"] = f"no class has {least}"
        if self.classes or cell.task == "multiclass":
            self.values["ece"] = self._each(
                lambda rows, weights: group_ece(test, rows, weights, self.classes)
            )
        else:
            self.reasons["ece"] = f"no class has {least}"
        fitting = [(one, of) for one, of in cuts if self._common(one)]
        if fitting:
            self.values["sensitivity"] = self._each(
                lambda rows, weights: group_sensitivity(fitting, rows, weights)
            )
        elif cuts:
            positives = f"{settings.min_cases} positive cases in every group"
            self.reasons["sensitivity"] = f"no target has {positives}"

    def _each(self, metric: Any) -> FloatArray:
        """(groups, 1 + R)."""
        return np.stack(
            [
                metric(rows, np.ascontiguousarray(self.weights[:, rows]))
                for rows in (
                    np.flatnonzero(self.groups.rows == index)
                    for index in range(len(self.groups.names))
                )
            ]
        )

    def _common(self, one: Target) -> bool:
        of_group = self.groups.rows[one.positive & one.known]
        counts = np.bincount(of_group[of_group >= 0], minlength=len(self.groups.names))
        return bool((counts >= self.settings.min_cases).all())

    def rows(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        for index, name in enumerate(self.groups.names):
            rows = self.groups.rows == index
            row = {
                "group": name,
                "n_images": int(rows.sum()),
                "n_groups": len(np.unique(self.test.groups[rows])),
                "matched_share": float(self.matched[index]) if self.settings.match else np.nan,
            }
            for metric, values in self.values.items():
                found = value_with_interval(values[index])
                if metric == "ece":
                    found |= _without_bias(found)
                n_classes = {"n_classes": len(self.classes)} if metric == "auroc" else {}
                records.append(row | {"metric": metric} | found | n_classes)
            records += [row | {"metric": m, "missing": why} for m, why in self.reasons.items()]
        for name, count in self.groups.small.items():
            why = f"fewer than {self.settings.min_images} images"
            records.append({"group": name, "n_images": count, "missing": why})
        if self.groups.unrecorded:
            missing = {"n_images": self.groups.unrecorded, "missing": "not recorded"}
            records.append({"group": "", **missing})
        return records

    def gaps(self) -> list[dict[str, Any]]:
        if len(self.groups.names) < 2:
            return []
        n_subgroups = {"n_subgroups": len(self.groups.names)}
        found = [
            {"metric": metric} | n_subgroups | gap_of(self.groups.names, values, metric == "ece")
            for metric, values in self.values.items()
        ]
        return found + [
            {"metric": metric, "p": np.nan, "missing": why} | n_subgroups
            for metric, why in self.reasons.items()
        ]

    def ratios(self) -> list[tuple[str, str, FloatArray]]:
        """Each group's AUROC over that of all cases, (1 + R,), by column and group."""
        if "auroc" not in self.values or len(self.groups.names) < 2:
            return []
        everyone = np.arange(len(self.test.groups))
        whole = group_auroc(self.test, everyone, self.test.weights, self.classes)
        with np.errstate(divide="ignore", invalid="ignore"):
            return [
                (self.column_name, name, values / whole)
                for name, values in zip(self.groups.names, self.values["auroc"], strict=True)
            ]


def _without_bias(found: Mapping[str, float]) -> dict[str, float]:
    """The interval of an ECE: resamples are biased upwards, so it is mirrored at the estimate.

    The basic bootstrap interval (Davison and Hinkley 1997, section 5.2): 2 x − high to 2 x − low.
    """
    low, high = (2 * found["value"] - found[end] for end in ("high", "low"))
    return {"low": low if np.isnan(low) else max(0.0, low), "high": high}


def gap_of(names: Sequence[str], values: FloatArray, high_is_worse: bool) -> dict[str, Any]:
    """The gap between the best and the worst of G groups, and whether chance makes such gaps.

    An ECE is larger the smaller its group; the bootstrap's estimate of this bias (Efron and
    Tibshirani 1993, chapter 10: mean of the resamples less the estimate) is taken off first.

    values: (G, 1 + R), the first column of the groups as they are. `low, high` is the interval of
    the difference of the two groups, `gap_by_chance` the 95 % quantile of the gaps of the centred
    resamples, `p` the share of them that are at least as large.
    """
    replicates = values[:, 1:]
    defined = ~np.isnan(replicates).any(axis=0)
    if np.isnan(values[:, 0]).any() or (~defined).mean() > MOST_UNDEFINED:
        return {"p": np.nan, "missing": "a group has too few cases to be resampled"}
    replicates = replicates[:, defined]
    centred = replicates - replicates.mean(axis=1, keepdims=True)
    estimates = values[:, 0]
    if high_is_worse:
        estimates = 2 * estimates - replicates.mean(axis=1)
    order = np.argsort(-estimates if high_is_worse else estimates, kind="stable")
    worst, best = order[0], order[-1]
    gap = abs(estimates[best] - estimates[worst])
    by_chance = np.ptp(centred, axis=0)
    between = (
        centred[best] - centred[worst] if not high_is_worse else centred[worst] - centred[best]
    )
    low, high = percentile_interval(gap + between)
    return {
        "worst_group": names[worst],
        "best_group": names[best],
        "gap": float(gap),
        "low": float(low),
        "high": float(high),
        "gap_by_chance": float(np.quantile(by_chance, 0.95)),
        "p": float((1 + (by_chance >= gap).sum()) / (1 + by_chance.size)),
    }


def _equity(ratios: Sequence[tuple[str, str, FloatArray]]) -> dict[str, Any]:
    """Worst-group retention of AUROC over all columns, and what it is where groups are alike."""
    if not ratios:
        return {"missing": "no column has two groups that can be compared"}
    values = np.stack([of for _, _, of in ratios])
    defined = ~np.isnan(values).any(axis=0)
    if not defined[0] or (~defined[1:]).mean() > MOST_UNDEFINED:
        return {"missing": "a group has too few cases to be resampled"}
    replicates = values[:, 1:][:, defined[1:]]
    worst = int(values[:, 0].argmin())
    low, high = percentile_interval(replicates[worst])
    by_chance = 1 + (replicates - replicates.mean(axis=1, keepdims=True)).min(axis=0)
    return {
        "equity": float(np.clip(values[worst, 0], 0, 1)),
        "low": float(np.clip(low, 0, 1)),
        "high": float(np.clip(high, 0, 1)),
        "equity_by_chance": float(np.clip(by_chance, 0, 1).mean()),
        "column": ratios[worst][0],
        "group": ratios[worst][1],
    }


# --- the studies ----------------------------------------------------------------------------------


def _rows(inputs: Inputs, cell: CellCases) -> dict[str, list[Row]]:
    own = inputs.settings["studies"]["subgroups"]
    settings = SubgroupSettings(
        tuple(own["columns"]),
        own.get("bands", {}),
        own["min_images"],
        own["min_cases"],
        tuple(own.get("match", ())),
    )
    found = subgroups_of(cell, settings, *targets_and_aim(inputs, cell.dataset))
    return {"subgroups": found.groups, "subgroup_gaps": found.gaps, "equity": [found.equity]}


def _found(inputs: Inputs, table: str) -> list[Row]:
    """The rows of one of the tables.

    A column must be one of a data set of the panel, or of another one in the registry, which is
    said; UserError for any other.
    """
    columns = inputs.settings["studies"]["subgroups"]["columns"]
    known = {name for manifest in inputs.manifests.values() for name in manifest.subgroups}
    lacking = [name for name in columns if name not in known]
    for name in lacking:
        if name not in inputs.stated_subgroups:
            raise UserError(
                f"studies.subgroups.columns has '{name}', which is a subgroup column of none of "
                f"the data sets{nearest(name, sorted(known))}; they have: "
                f"{', '.join(sorted(known))}."
            )
    if lacking and table == "subgroups":
        left_out = ", ".join(lacking)
        print(f"Left out of studies.subgroups, for no data set of the panel has it: {left_out}.")
    return inputs.of_all(_rows, inputs.predicted_cells())[table]


@study(
    title="By sex, age and other subgroups",
    theme="use",
    needs=("kept_predictions",),
    columns=TESTED
    | fields("string", "column group metric")
    | fields("Int64", "n_images n_groups")
    | fields(float, "value low high")
    | fields("Int64", "n_classes")
    | fields(float, "matched_share")
    | fields("string", "missing"),
    limit=(
        "Small subgroups have wide intervals. Dark skin is under-represented in ISIC 2019, and "
        "no subgroup of too few images is shown."
    ),
    wanted=lambda settings: bool(settings["studies"].get("subgroups")),
)
def subgroups(inputs: Inputs) -> Study:
    """The metrics of every subgroup that is large enough."""
    table = subgroups.table(_found(inputs, "subgroups"))
    shown = inputs.without_floors(table)
    clean = shown[(shown["condition"] == CLEAN) & (shown["metric"] == "auroc")]
    clean = clean[clean["value"].notna()]
    small = table[table["metric"].isna() & (table["condition"] == CLEAN) & (table["group"] != "")]
    left_out = small[["dataset", "column", "group"]].drop_duplicates()
    n = clean[["dataset", "column", "group"]].drop_duplicates()
    if clean.empty:
        sentence = "No subgroup is large enough for an AUROC of its own."
    else:
        width = (clean["high"] - clean["low"]).median()
        worst = clean.loc[clean["value"].idxmin()]
        sentence = (
            f"{len(n)} subgroups have an AUROC of their own on a clean test set; the median width "
            f"of its 95 % interval is {number(width)}. The lowest is {number(worst['value'])}, of "
            f"{inputs.title(worst['encoder'])} for {worst['column']} {worst['group']} on "
            f"{inputs.title(worst['dataset'])}."
        )
    sentence += f" {len(left_out)} smaller groups are named and left out."
    findings: dict[str, Finding] = {"n_subgroups": len(n), "n_left_out": len(left_out)}

    def draw(figure: Figure) -> None:
        of = clean.assign(row=clean["column"].str.cat(clean["group"], sep=" "))
        dots(figure, inputs, of, "row", "value", "macro-AUROC", intervals=True)

    return Study(table, sentence, findings, None if clean.empty else draw)


@study(
    title="Gaps between subgroups, beside those of chance",
    theme="use",
    needs=("kept_predictions",),
    columns=TESTED
    | fields("string", "column metric")
    | fields("Int64", "n_subgroups")
    | fields("string", "worst_group best_group")
    | fields(float, "gap low high gap_by_chance p p_holm")
    | fields("boolean", "found")
    | fields("string", "missing"),
    limit="That no gap was found does not mean that there is none: small groups hide large gaps.",
    wanted=lambda settings: bool(settings["studies"].get("subgroups")),
)
def subgroup_gaps(inputs: Inputs) -> Study:
    """The gap between the best and the worst subgroup, beside the gaps that chance makes."""
    table = subgroup_gaps.table(_found(inputs, "subgroup_gaps"))
    tested = inputs.without_floors(table)
    tested = tested[tested["p"].notna()]
    if tested.empty:
        return Study(table, "Not run: no column has two groups with cases enough.")
    found = tested[tested["found"].astype(bool)]
    findings: dict[str, Finding] = {"tested": len(tested), "found": len(found)}
    for dataset, rows in tested.groupby("dataset"):
        findings[f"{dataset}.tested"] = len(rows)
        findings[f"{dataset}.found"] = int(rows["found"].sum())
    sentence = (
        f"Of {len(tested)} gaps between subgroups, {len(found)} are larger than chance makes "
        "them (Holm's correction over the columns and metrics of an encoder on a test set, 5 %; "
        "encoders are not corrected for their number)."
    )
    if len(found):
        most = found.loc[found["gap"].idxmax()]
        sentence += (
            f" The largest is {number(most['gap'])} in {most['metric']}, {most['column']} "
            f"{most['worst_group']} below {most['best_group']}, of {inputs.title(most['encoder'])} "
            f"on {inputs.title(most['dataset'])} ({most['condition']})."
        )
    of_auroc = tested.loc[tested["metric"] == "auroc", "gap_by_chance"]
    if len(of_auroc):
        sentence += (
            f" Groups of these sizes differ by up to {number(of_auroc.median())} in AUROC by "
            "chance (median): smaller gaps go unseen."
        )
    return Study(table, sentence, findings)


@study(
    title="Equity as a fifth axis, outside the score",
    theme="use",
    needs=("tables", "kept_predictions"),
    columns=fields("string", "encoder dataset")
    | fields(float, " ".join(AXIS_NAMES))
    | fields(float, "equity low high equity_by_chance")
    | fields("string", "column group missing"),
    limit="Equal performance of these groups is not fairness of the care that follows.",
    wanted=lambda settings: (settings["studies"].get("subgroups") or {}).get("equity", False),
)
def equity(inputs: Inputs) -> Study:
    """Worst-group retention of AUROC beside the four published axes, none of which changes."""
    table = equity.table(_found(inputs, "equity"))
    axes = inputs.axes[inputs.axes["seed"] == SEED_MEAN].set_index(["encoder", "dataset"])
    cells = pd.MultiIndex.from_frame(table[["encoder", "dataset"]].astype(object))
    table[AXIS_NAMES] = axes[AXIS_NAMES].reindex(cells).to_numpy()
    shown = inputs.without_floors(table)
    shown = shown[shown["equity"].notna()]
    if shown.empty:
        return Study(table, "Not run: no column has two groups with cases enough.")
    worst = shown.loc[shown["equity"].idxmin()]
    sentence = (
        "Worst-group retention is the AUROC of an encoder's worst subgroup over its AUROC on all "
        f"cases; it stands beside the four axes and never enters the CRS. The least is "
        f"{number(worst['equity'])}, of {inputs.title(worst['encoder'])} on "
        f"{inputs.title(worst['dataset'])} ({worst['column']} {worst['group']}), where groups that "
        f"are alike would have {number(worst['equity_by_chance'])} by chance."
    )
    findings = {
        f"{row.dataset}.{row.encoder}": float(row.equity) for row in shown.itertuples(index=False)
    }

    def draw(figure: Figure) -> None:
        of = shown.assign(row=[inputs.title(name) for name in shown["encoder"]])
        dots(figure, inputs, of, "row", "equity", "worst-group retention", intervals=True)

    return Study(table, sentence, findings, draw)
