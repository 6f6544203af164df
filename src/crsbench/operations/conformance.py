"""The check that users run on the encoders of their configuration, one row of a table each."""

from __future__ import annotations

import torch

from crsbench.config.model import Config, EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.progress import progress
from crsbench.encoders import load_encoder
from crsbench.encoders.contract import RULES, TOLERANCE, checks_of
from crsbench.operations.doctor import Row

TITLE = (
    f"Conformance, on eight images of noise; from `alone` on differences relative to the largest "
    f"feature, allowed is {TOLERANCE:.0e}"
)


def conformance(config: Config) -> dict[str, list[Row]]:
    """Check every encoder of a configuration: the table's rows under its title, red if it fails."""
    device = torch.device(config.settings["extraction"]["device"])
    entries = list(config.encoders.values())
    rows = [
        _row(config, entry, device)
        for entry in progress(entries, "conformance", len(entries), "encoder")
    ]
    return {TITLE: rows}


def _row(config: Config, entry: EncoderEntry, device: torch.device) -> Row:
    cells = {"encoder": entry.name, **dict.fromkeys(RULES, "-")}
    if "embeddings" in entry.spec:
        return Row("yellow", cells, f"{entry.name} brings embeddings: there is no model to check.")
    try:
        checks = checks_of(load_encoder(entry, config.home, config.weights_root, device), device)
    except UserError as error:
        return Row("red", cells, str(error))
    except Exception as error:  # an own encoder's code may fail in any way
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return Row("red", cells, f"The encoder '{entry.name}' fails on eight images ({reason}).")
    cells |= {check.rule: check.found for check in checks}
    faults = " ".join(check.fault for check in checks if check.fault)
    return Row("red" if faults else "green", cells, faults)
