"""Progress with an estimate of the time left, the same for every long piece of work."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def progress(items: Iterable[T], label: str, total: int, unit: str) -> Iterator[T]:
    """Iterate and show a bar on standard error: live on a terminal, a line now and then in a log.

    Work that is done within two seconds shows nothing.
    """
    live = sys.stderr.isatty()
    return iter(
        tqdm(
            items,
            label,
            total,
            unit=unit,
            delay=2,
            mininterval=0.5 if live else 20,
            maxinterval=1 if live else 30,
            dynamic_ncols=live,
            leave=live,
        )
    )
