"""The figures of the report, and what draws them: on the page (`on_page`) and on paper (`on_paper`).

`base` says what a figure is and how one is added.
"""

from sweeper.figures.base import FIGURES, report_figures

FIGURES.discover(__name__)

__all__ = ["FIGURES", "report_figures"]
