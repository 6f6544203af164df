"""Targets of a command line that nothing makes, and what they may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from crsbench.core.errors import UserError
from crsbench.core.names import nearest


def check_targets(
    targets: Iterable[str],
    rules: Sequence[str],
    names: Sequence[str],
    is_made: Callable[[str], bool],
) -> None:
    """Raise UserError for the first target that is no rule and no file that is made or there.

    rules: the names of the rules that can be targets; names: those that stand in paths (encoders,
    data sets, conditions, studies); is_made: whether a path is some rule's output, or exists.
    """
    for target in targets:
        if target in rules or is_made(target):
            continue
        if "/" not in target:
            raise UserError(
                f"No rule has the name '{target}'{nearest(target, rules)}; allowed: "
                f"{', '.join(sorted(rules))}, or the path of a result."
            )
        meant = next(filter(is_made, _corrected(target, names)), None)
        hint = f" (did you mean '{meant}'?)" if meant else ""
        raise UserError(
            f"Nothing makes the file '{target}'{hint}; its path must be one below the config's "
            f"results, with the names of this run: {', '.join(names)}."
        )


def _corrected(target: str, names: Sequence[str]) -> Iterable[str]:
    """The path with one part, or the stem of its last, put in a name that is near."""
    parts = target.split("/")
    for place, part in enumerate(parts):
        stem, point, ending = part.rpartition(".") if place == len(parts) - 1 else (part, "", "")
        for name in difflib.get_close_matches(stem, names, n=3, cutoff=0.5):
            yield "/".join([*parts[:place], f"{name}{point}{ending}", *parts[place + 1 :]])
