"""One thread for linear algebra, so that no result depends on how many a job was given."""

from __future__ import annotations

import sys

from threadpoolctl import threadpool_limits


def use_one_thread() -> None:
    """Bind NumPy's BLAS, OpenMP and, where it is loaded, torch to one thread, for good."""
    threadpool_limits(limits=1)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)
