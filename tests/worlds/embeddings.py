"""Own embeddings: a registry entry for them, and files in each format that is allowed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

OWN = {
    "title": "Mine",
    "group": "general",
    "licence": "in-house",
    "library": "embeddings",
    "embeddings": "mine/{dataset}/{condition}.parquet",
}


def write(file: Path, ids: np.ndarray, vectors: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".npz":
        np.savez(file, image_id=ids, features=vectors)
        return
    table = pa.table({"image_id": list(ids), "features": list(vectors)})
    if file.suffix == ".parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_file(str(file), table.schema) as sink:
            sink.write_table(table)
