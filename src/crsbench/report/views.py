"""Tables and files as the page shows and carries them."""

from __future__ import annotations

import base64
import gzip
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

Mark = Mapping[str, str]

SHOWN_ROWS = 40
"""Rows of a long table that the page shows; the file to download has all."""

PLAIN_BYTES = 60_000
"""A larger file is carried compressed."""


def table_view(
    frame: pd.DataFrame, limit: int = SHOWN_ROWS, marks: Sequence[Mark | None] = ()
) -> dict[str, Any]:
    """Columns and cells of a table as text; a missing value is None, a number is marked as one.

    marks: of each row that is shown that of the encoder in it; none at all of a table without.
    """
    rows = [[cell_view(value) for value in row] for row in frame.head(limit).to_numpy(object)]
    if marks:
        for row, mark in zip(rows, marks, strict=True):
            row[frame.columns.get_loc("encoder")]["mark"] = mark
    return {
        "columns": [str(name).replace("_", " ") for name in frame.columns],
        "rows": rows,
        "n_rows": len(frame),
        "marked": any(marks),
    }


def cell_view(value: Any) -> dict[str, Any]:
    """text (None for a missing value), whether it is a number, and the value to sort by."""
    return {"mark": None, **_cell(value)}


def _cell(value: Any) -> dict[str, Any]:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return {"text": None, "number": False, "sort": ""}
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        return {"text": "yes" if value else "no", "number": False, "sort": int(value)}
    if isinstance(value, numbers.Integral):
        return {"text": str(int(value)), "number": True, "sort": int(value)}
    if isinstance(value, numbers.Real):
        return {"text": number_text(float(value)), "number": True, "sort": float(value)}
    return {"text": str(value), "number": False, "sort": str(value)}


def number_text(value: float) -> str:
    """Three decimals; a small number that is not zero in scientific notation."""
    if value != 0 and abs(value) < 5e-4:
        return f"{value:.1e}"
    return f"{value:.3f}".replace("-", "−")


def download(name: str, frame: pd.DataFrame) -> dict[str, Any]:
    """A table as a CSV file in a link of the page; a large one compressed by gzip."""
    content = frame.to_csv(index=False).encode("utf-8")
    rows = len(frame)
    if len(content) <= PLAIN_BYTES:
        return _link(f"{name}.csv", "text/csv;charset=utf-8", content, rows)
    packed = gzip.compress(content, mtime=0)
    return _link(f"{name}.csv.gz", "application/gzip", packed, rows)


def _link(file: str, kind: str, content: bytes, rows: int) -> dict[str, Any]:
    address = f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
    return {"file": file, "href": address, "rows": rows, "bytes": len(content)}


def svg_size(svg: str) -> tuple[float, float]:
    """Width and height of a figure in CSS pixels; matplotlib states them in points."""
    head = svg[: svg.index(">")]
    width, height = (re.search(rf'\b{side}="([\d.]+)pt"', head) for side in ("width", "height"))
    if width is None or height is None:
        return 640.0, 480.0
    return float(width[1]) * 4 / 3, float(height[1]) * 4 / 3


def svg_image(svg: str) -> str:
    """A figure as an image's address: no script in it can run, its ids clash with no other's."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode('utf-8')).decode('ascii')}"
