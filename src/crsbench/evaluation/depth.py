"""The depth sweep's probes: the same probe on the features of each depth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from crsbench.config.grid import Run
from crsbench.core.files import write_table
from crsbench.core.names import CLEAN
from crsbench.core.progress import progress
from crsbench.data.manifest import read_manifest
from crsbench.evaluation.runs import RunFiles, collect_runs, evaluate_run, fit_probes
from crsbench.features.store import read_features
from crsbench.probes import ProbeSettings


def probe_depths(
    output: Path | str,
    encoder: str,
    features: Mapping[int, Path | str],
    manifest: Path | str,
    splits: Mapping[int, Path | str],
    settings: ProbeSettings,
    made_by: Mapping[str, Any] | None = None,
) -> None:
    """Fit and test the full-label probe at each depth for each seed, and write the runs' table.

    features: percent of the depth: file; splits: seed: file; made_by: what the features
    must have been made by (`check_made_by`). The table has the columns of `runs` (all at 100 % of
    the labels, clean) after `depth`, `norm` and `width`.
    """
    dataset = read_manifest(manifest).dataset
    points = [(depth, seed) for depth in features for seed in splits]
    tables = []
    with TemporaryDirectory() as folder:
        for depth, seed in progress(points, f"{encoder} × {dataset}", len(points), "probe"):
            probe, result = (Path(folder) / f"{depth}-{seed}.{kind}" for kind in ("npz", "json"))
            fit_probes(features[depth], manifest, splits[seed], {100: probe}, settings, made_by)
            files = RunFiles(str(probe), str(features[depth]), str(manifest), str(splits[seed]))
            evaluate_run(Run(encoder, dataset, seed, CLEAN, 100), files, result)
            found = read_features(features[depth])
            about = {"depth": depth, "norm": found.metadata["norm"], "width": found.matrix.shape[1]}
            tables.append(collect_runs([result]).assign(**about))
    table = pd.concat(tables, ignore_index=True)
    first = ["depth", "norm", "width"]
    write_table(output, table[[*first, *(name for name in table if name not in first)]])
