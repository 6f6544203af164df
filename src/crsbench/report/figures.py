"""The report's figures, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from crsbench.drawing import COLOURS, DASHES, GREY, house_style, svg_text

AXIS_LABELS = {
    "axis_discrimination": "discrimination\n(AUROC)",
    "axis_calibration": "calibration\n(ECE)",
    "axis_supervision": "label\nefficiency",
    "axis_robustness": "robustness",
}


def profile_plot(
    axes: pd.DataFrame,
    titles: Mapping[str, str],
    datasets: Mapping[str, str],
    floors: Sequence[str],
) -> str:
    """The four normalised axes of every encoder, one panel a data set.

    axes: the seed-mean rows of the `axes` table; titles, datasets: shown names of encoders and
    data sets, in the order to show them; floors: encoders drawn thin and grey.
    """
    with house_style():
        figure = Figure(figsize=(4.8 * len(datasets), 3.9), layout="constrained")
        panels = figure.subplots(1, len(datasets), sharey=True, squeeze=False)[0]
        for panel, (dataset, title) in zip(panels, datasets.items(), strict=True):
            rows = axes[axes["dataset"] == dataset].set_index("encoder")
            for index, (encoder, label) in enumerate(titles.items()):
                if encoder not in rows.index:
                    continue
                values = rows.loc[encoder, list(AXIS_LABELS)].to_numpy(dtype=float)
                floor = encoder in floors
                panel.plot(
                    np.arange(len(AXIS_LABELS)),
                    values,
                    label=label,
                    color=GREY if floor else COLOURS[index % len(COLOURS)],
                    linestyle=DASHES[index // len(COLOURS) % 3] if not floor else DASHES[index % 3],
                    linewidth=1.0 if floor else 2.0,
                    marker="o",
                    markersize=3 if floor else 5,
                )
            panel.set_title(title)
            panel.set_xticks(np.arange(len(AXIS_LABELS)), list(AXIS_LABELS.values()), fontsize=8)
            panel.set_ylim(-0.03, 1.03)
            panel.grid(axis="y", alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("normalised axis (1 = best)")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        return svg_text(figure)
