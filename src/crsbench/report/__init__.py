"""The report: tables and figures on one self-contained page."""

from crsbench.report.page import write_report

__all__ = ["write_report"]
