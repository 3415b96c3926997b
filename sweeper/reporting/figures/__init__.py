"""The report's figures, one per file, and the charts' theme and files for papers (`drawing`).

`base` defines a figure and describes how to add one.
"""

from sweeper.reporting.figures.base import FIGURES, report_figures

FIGURES.discover(__name__)

__all__ = ["FIGURES", "report_figures"]
