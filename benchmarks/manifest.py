"""How long a manifest of a large release takes to read, write, split and audit, without its pixels.

    python benchmarks/manifest.py [--quick]

A synthetic CheXpert release of 380,000 frontal rows (the size of MIMIC-CXR-JPG, twice CheXpert) is
read by its reader; hashes stand in for the scan of the images, with some exact and near duplicates
among them. The last line is one JSON object with the seconds of each step, the peak memory and the
sizes used. --quick is the same: it takes less than 50 s on two cores.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from crsbench.config.model import DatasetEntry
from crsbench.core.files import write_table
from crsbench.data.audit import write_audit
from crsbench.data.manifest import manifest_frame, manifest_metadata
from crsbench.data.readers import read_images
from crsbench.data.splits import write_split, write_test

HOME = Path(__file__).resolve().parents[1]
ROWS, PATIENTS = 380_000, 64_540
SEEDS = range(5)
FRACTIONS = (1, 5, 10, 25, 100)


def write_release(root: Path, entry: DatasetEntry, random: np.random.Generator) -> None:
    """The tables of a CheXpert release with empty folders in place of the images."""
    (root / "train").mkdir()
    (root / "valid").mkdir()
    patients = np.sort(random.integers(1, PATIENTS + 1, ROWS))
    table = pd.DataFrame(
        {
            "Path": [
                f"CheXpert-v1.0/train/patient{patient:05d}/study{row}/view1_frontal.jpg"
                for row, patient in enumerate(patients)
            ],
            "Sex": random.choice(["Female", "Male"], ROWS),
            "Age": random.integers(18, 91, ROWS),
            "Frontal/Lateral": "Frontal",
            "AP/PA": random.choice(["AP", "PA"], ROWS),
        }
    )
    for name in entry.classes:
        table[name] = random.choice(["", "1.0", "0.0", "-1.0"], ROWS, p=[0.75, 0.15, 0.07, 0.03])
    table.to_csv(root / "train.csv", index=False)
    table.head(0).to_csv(root / "valid.csv", index=False)


def invent_scan(images: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    """A scan of whole images: one in 200 is the copy, one in 200 the near copy of another."""
    hashes = random.integers(0, 256, (len(images), 32), dtype=np.uint8)
    copies, near = np.split(random.permutation(len(images))[: len(images) // 100], 2)
    content = np.array([f"{number:064x}" for number in range(len(images))])
    content[copies] = content[random.integers(0, len(images), len(copies))]
    hashes[near] = hashes[random.integers(0, len(images), len(near))]
    hashes[near, 0] ^= 5
    return pd.DataFrame(
        {
            "image_id": images["image_id"],
            "path": images["path"],
            "error": "",
            "content_sha256": content,
            "mode": "L",
            "width": 320,
            "height": 320,
            "constant": False,
            "perceptual_hash": [row.tobytes().hex() for row in hashes],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the same (it is quick)")
    parser.parse_args()
    random = np.random.default_rng(0)
    registry = yaml.safe_load((HOME / "config" / "datasets.yaml").read_text("utf-8"))
    spec = registry["chexpert"] | {"expected_images": ROWS}
    entry = DatasetEntry("chexpert", spec["title"], spec["task"], tuple(spec["classes"]), (), spec)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_release(root, entry, random)
        manifest, images = root / "manifest.parquet", root / "images.parquet"
        test, splits = root / "test.parquet", {s: root / f"{s}.parquet" for s in SEEDS}

        start = time.perf_counter()
        found = read_images(entry, root)
        seconds["read"] = time.perf_counter() - start
        images_frame = found.frame.sort_values("image_id", ignore_index=True)
        scan = invent_scan(images_frame, random)

        start = time.perf_counter()
        frame = manifest_frame(entry, images_frame, scan)
        write_table(manifest, frame, manifest_metadata(entry, found))
        seconds["manifest"] = time.perf_counter() - start
        write_table(images, scan)

        start = time.perf_counter()
        write_test(test, manifest, 0.2)
        seconds["test_set"] = time.perf_counter() - start
        start = time.perf_counter()
        for seed, file in splits.items():
            write_split(file, manifest, test, seed, FRACTIONS, 0.125)
        seconds["five_splits"] = time.perf_counter() - start

        start = time.perf_counter()
        write_audit(root / "audit.json", entry, manifest, images, splits, {})
        seconds["audit"] = time.perf_counter() - start
        near = json.loads((root / "audit.json").read_text("utf-8"))["duplicates"]["near"]["pairs"]
    print(
        json.dumps(
            {
                "benchmark": "manifest",
                "rows": ROWS,
                "seconds": {name: round(value, 2) for name, value in seconds.items()},
                "seconds_in_all": round(sum(seconds.values()), 2),
                "near_pairs": near,
                "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
