"""The figures of the report, and what draws them: charts (`drawing`), and files of them (`on_paper`).

`base` says what a figure is and how one is added.
"""

from sweeper.reporting.figures.base import FIGURES, report_figures

FIGURES.discover(__name__)

__all__ = ["FIGURES", "report_figures"]
