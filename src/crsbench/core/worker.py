"""A pool of warm processes for work of a second that needs libraries which take seconds to import.

A process is started when work finds none idle and stays, with what it has imported, until the
workflow ends: it reads its work as lines of JSON and ends with the pipe, also when the workflow is
killed. As many live as there were jobs at once.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import traceback
from importlib import import_module
from threading import Lock
from typing import Any

from crsbench.core.errors import UserError

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""No result depends on how many threads its linear algebra had."""

_idle: list[subprocess.Popen[str]] = []
_lock = Lock()


def in_worker(work: str, *arguments: Any) -> None:
    """Call `work`, named `module:function`, in a warm process with arguments that JSON can hold.

    Raises UserError as the work does, and RuntimeError with the traceback of any other error, or
    when the process was killed.
    """
    worker = _take()
    assert worker.stdin
    assert worker.stdout
    try:
        worker.stdin.write(json.dumps({"work": work, "arguments": arguments}) + "\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
    except BrokenPipeError:
        answer = ""
    except BaseException:
        worker.kill()
        raise
    if not answer:
        code = worker.wait()
        raise RuntimeError(f"the process of {work} ended with {code}; was it killed for memory?")
    with _lock:
        _idle.append(worker)
    kind, text = json.loads(answer)
    if kind == "user":
        raise UserError(text)
    if kind == "defect":
        raise RuntimeError(text)


def _take() -> subprocess.Popen[str]:
    with _lock:
        while _idle:
            worker = _idle.pop()
            if worker.poll() is None:
                return worker
    return subprocess.Popen(
        [sys.executable, "-m", "crsbench.core.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, **ONE_THREAD},
    )


@atexit.register
def _end() -> None:
    """Close the pipes of the idle processes and wait for them, so that their time is counted."""
    for worker in _idle:
        worker.communicate()


def _outcome(work: str, arguments: list[Any]) -> tuple[str, str]:
    module, _, function = work.partition(":")
    try:
        getattr(import_module(module), function)(*arguments)
    except UserError as error:
        return "user", str(error)
    except Exception:
        return "defect", traceback.format_exc()
    return "done", ""


def main() -> None:
    """Work off standard input; what the work prints goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(_outcome(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
