"""The report: all tables and figures on one self-contained page, and the figures for papers."""

from crsbench.report.figures import write_paper
from crsbench.report.gallery import gallery
from crsbench.report.material import Material, read_material
from crsbench.report.page import write_report
from crsbench.report.provenance import provenance

__all__ = ["Material", "gallery", "provenance", "read_material", "write_paper", "write_report"]
