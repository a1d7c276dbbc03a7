"""The report of a run: one HTML page that works without a network, for people to look at."""

from ptxgym.report.page import write_report

__all__ = ["write_report"]
