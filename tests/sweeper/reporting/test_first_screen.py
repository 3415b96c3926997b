"""The first screen in terminals of different widths, and on the page."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from sweeper.reporting import write_report
from sweeper.reporting.first_screen import first_screen, legend, terminal
from sweeper.reporting.matrix import grid
from sweeper.results.leaderboard import leaderboard
from sweeper.results.overview import overview
from tests.sweeper.held import held
from tests.sweeper.reporting.test_page import Page


def printed(folder: Path, width: int) -> str:
    results = held(folder)
    console = Console(width=width, file=io.StringIO())
    console.print(terminal(first_screen(results, leaderboard(results), overview(results))))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [140, 100, 80, 40])
def test_no_value_is_cut_whatever_the_width(quickstart_folder: Path, width: int) -> None:
    text = printed(quickstart_folder, width)
    assert all(len(line) <= width for line in text.splitlines())
    results = held(quickstart_folder)
    found = first_screen(results, leaderboard(results), overview(results)).matrix
    assert found is not None
    flat = " ".join(text.split())
    for _, cells in grid(found, ""):
        for cell in cells:
            assert cell is None or cell.means in flat or cell.values in flat
    assert "…" in text if width >= 100 else "Loss" in text


def test_the_page_begins_with_the_matrix_and_the_answers(quickstart_folder: Path) -> None:
    text = write_report(quickstart_folder).read_text("utf-8")
    page = Page(text)
    results = held(quickstart_folder)
    found = first_screen(results, leaderboard(results), overview(results))
    assert found.matrix is not None
    summary = " ".join(page.sections["summary"].split())
    for _, cells in grid(found.matrix, ""):
        for cell in cells:
            assert cell is None or cell.values in summary
    for answer in found.answers:
        assert " ".join(answer.sentence.split()) in summary.replace(" ₘₐₓ", "_max"), answer.question
    assert text.index('id="summary"') < text.index('class="tiles"') < text.index('id="curvature-against-gamma"')
    assert legend(found.matrix, starred=False) in summary
