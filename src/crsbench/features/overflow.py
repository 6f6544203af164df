"""Where in an encoder a value first stopped being finite: asked once a feature is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def first_not_finite(encode: Callable[[torch.Tensor], Any], images: torch.Tensor) -> str:
    """The first module whose output holds a value that is not finite, as `name (class)`, or "".

    Runs `encode` once more on the images, under the caller's autocast. Modules are listed in the
    order in which they end, so that the innermost comes first. Empty for an encoder that is no
    torch module, whose parts can't be watched, or that is finite this time.
    """
    model = encode if isinstance(encode, torch.nn.Module) else getattr(encode, "encode", None)
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return ""
    found: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def look(module: torch.nn.Module, _: Any, output: Any) -> None:
            if not found and not _finite(output):
                found.append(f"{name} ({type(module).__name__})")

        return look

    parts = [(name, module) for name, module in model.named_modules() if name]
    hooks = [module.register_forward_hook(watch(name)) for name, module in parts]
    try:
        encode(images)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else ""


def _finite(output: Any) -> bool:
    if isinstance(output, torch.Tensor):
        return not output.is_floating_point() or bool(torch.isfinite(output).all())
    if isinstance(output, dict):
        output = output.values()
    return all(map(_finite, output)) if hasattr(output, "__iter__") else True
