"""The one exception for mistakes that a user can fix."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class UserError(Exception):
    """A problem in the user's input, stated in one sentence.

    The sentence names the file, key, encoder or image, the value found and what is allowed.
    The workflow prints it without a traceback; anything else that is raised is a defect of ours.
    """


@contextmanager
def user_error_boundary(log: str) -> Iterator[None]:
    """Run a job: a UserError ends the process with its sentence on standard error and in `log`.

    Any other exception is a defect of ours; it passes through and leaves its traceback in `log`.
    """
    try:
        yield
    except UserError as error:
        _note(log, f"{error}\n")
        sys.exit(f"\ncrsbench: {error}\n")
    except Exception:
        _note(log, traceback.format_exc())
        raise
    _note(log, "done\n")


def attempt(log: str, work: Callable[..., None], *arguments: Any) -> None:
    """Do a job in the workflow's own process: what it raises is left in `log` and passes on.

    As `user_error_boundary`, but a job that ends well writes nothing, since there are thousands.
    """
    try:
        work(*arguments)
    except UserError as error:
        _note(log, f"{error}\n")
        raise
    except Exception:
        _note(log, traceback.format_exc())
        raise


def spare_log(log: str) -> Path:
    """Where a job leaves its log when the disk of its own is full or can't be written to."""
    digest = hashlib.sha256(os.fsencode(os.path.abspath(log))).hexdigest()
    return Path(tempfile.gettempdir(), f"crsbench-{os.getuid()}-{digest[:32]}.log")


def _note(log: str, text: str) -> None:
    """Write the log, or the spare one; where neither can be written the sentence is printed."""
    try:
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        Path(log).write_text(text, encoding="utf-8")
    except OSError:
        with suppress(OSError):
            spare_log(log).unlink(missing_ok=True)
            with spare_log(log).open("x", encoding="utf-8") as file:
                file.write(text)
