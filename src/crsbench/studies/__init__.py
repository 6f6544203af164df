"""The studies, a module each or a few: see :mod:`crsbench.studies.registry`."""

from crsbench.studies.registry import studies

__all__ = ["studies"]
