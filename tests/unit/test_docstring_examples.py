"""The examples in the docstrings of the numerical packages give what they say."""

import doctest
import pkgutil
from importlib import import_module

import pytest


@pytest.mark.parametrize("package", ["metrics", "score", "calibration"])
def test_examples(package: str) -> None:
    found = import_module(f"crsbench.{package}")
    modules = [
        import_module(name)
        for _, name, _ in pkgutil.iter_modules(found.__path__, f"{found.__name__}.")
    ]
    results = [doctest.testmod(module) for module in modules]
    assert sum(result.attempted for result in results) > 0
    assert sum(result.failed for result in results) == 0
