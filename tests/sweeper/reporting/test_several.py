"""A page of several sweeps has the first screen of each, and the best of each loss side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.reporting.several import part_of, side_by_side, write_several
from tests.sweeper.held import held
from tests.sweeper.reporting.test_page import Page


def test_the_page_has_every_sweep_and_the_best_of_each_loss(
    quickstart_folder: Path, losses_folder: Path, tmp_path: Path
) -> None:
    members = [held(quickstart_folder), held(losses_folder)]
    page = Page(write_several(members, tmp_path / "report.html").read_text("utf-8"))
    parts = [part_of(each) for each in members]
    for part in parts:
        section = " ".join(page.sections[part.name].split())
        for answer in part.first.answers:
            assert " ".join(answer.sentence.split()) in section
    table = dict(side_by_side(parts))
    assert table["focal"][0] and table["focal"][1] and table["hessian_trace"][0] is None
    words = " ".join(page.sections["side-by-side"].split())
    assert all(cell is None or cell.values in words for cells in table.values() for cell in cells)
    assert all(address.startswith(("#", "data:")) or address.endswith("/report.html") for _, address in page.addresses)


def test_a_sweep_named_twice_is_refused(quickstart_folder: Path, tmp_path: Path) -> None:
    twice = [held(quickstart_folder)] * 2
    with pytest.raises(SweeperError, match="'quickstart' was named twice"):
        write_several(twice, tmp_path / "report.html")
