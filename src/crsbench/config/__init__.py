"""The configuration: validated and frozen; the grid of its runs; the names of their files."""

from crsbench.config.load import load_config

__all__ = ["load_config"]
