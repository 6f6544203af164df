"""One GPU for each job of a node, without a batch system."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 2


@contextmanager
def leased_gpu(names: Sequence[str], folder: Path | None = None) -> Iterator[int]:
    """Hold a GPU that no other job of this user holds; yields its index in `names`.

    names: what identifies each visible GPU on this node, whatever number a job sees it under.
    A lease is a lock on a file of the GPU's name in `folder` (default: of the user's own in the
    temporary folder). The system takes it back when the process ends, however it ends. Waits, and
    says so once, while all are held.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"crsbench-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    waiting = False
    while True:
        for index, name in enumerate(names):
            with (folder / f"{name}.lock").open("w") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield index
                return
        if not waiting:
            waits = f"All {len(names)} GPUs are held by other jobs; waiting for one."
            print(waits, "Run no more at a time with: --resources gpu=N", file=sys.stderr)
            waiting = True
        time.sleep(POLL_SECONDS)
