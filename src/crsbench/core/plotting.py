"""What every figure shares: colours, and SVG text that is the same for the same figure."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish; black stays for the frame.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("solid", "dashed", "dotted")
GREY = "#888888"
GROUP_COLOURS = {
    "general": COLOURS[0],
    "medical": COLOURS[1],
    "specialist": COLOURS[2],
    "floor": GREY,
    "frozen": "#000000",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib's settings while a figure is drawn and written: text as text, ids from a hash."""
    import matplotlib as mpl  # not above: many import this module for its colours alone

    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "crsbench",
            "pdf.fonttype": 42,
            "font.size": 9,
            "text.parse_math": False,  # a name may hold a dollar sign
        }
    ):
        yield


def short(name: str, letters: int = 28) -> str:
    """A name for a figure, cut where it is longer."""
    return name if len(name) <= letters else name[: letters - 1].rstrip() + "…"


def svg_text(figure: Figure) -> str:
    """The figure as an `<svg>` element, without a date."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
