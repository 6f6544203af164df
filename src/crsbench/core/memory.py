"""Memory that is freed and wanted again a moment later stays with the process."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Options of glibc's `mallopt`, by the numbers of its malloc.h."""


def keep_freed_memory(_worker: int = 0) -> None:
    """Let glibc hand freed blocks out again, however large, in place of giving them back.

    A forward pass and an image's views allocate and free the same tens of megabytes over and over;
    given back each time, every page is asked for and cleared anew. Memory stays at its highest.
    Does nothing where the C library has no `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
