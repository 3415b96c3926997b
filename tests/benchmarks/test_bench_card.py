"""The tables of `make check-gpu` are made on a CPU too, of tiny networks; what is missing is said in its cell."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.benchmarks import bench_card
from tests.benchmarks.bench_card import ON_CARDS, SMOKE, WAYS, Clock, main, measured, speeds, text_table

FEW = replace(SMOKE, ways=("float32", "bfloat16", "channels-last", "graphs", "deterministic", "data on host"))


@pytest.fixture(autouse=True)
def as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _rows(text, head):
    """The rows of the table in a text whose head begins with `head`, first cell → the others."""
    lines = text[text.index(f"\n| {head}") + 1 :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in [cells[0], *cells[2:]]}


def _number(cell):
    """The figure that a cell begins with."""
    return float(cell.split()[0].replace(",", ""))


def test_every_figure_is_measured(capsys, monkeypatch):
    monkeypatch.setattr(bench_card, "SMOKE", FEW)
    main(["--device", "cpu", "--smoke", "--sections", "speeds", "lanes", "measurements"])
    printed = capsys.readouterr().out
    assert "figures mean nothing" in printed
    tables = printed[printed.rindex("batches of 4") :]
    speed = _rows(tables, "samples/s")
    assert [*speed] == ["samples/s", *FEW.ways]
    for way in FEW.ways:
        (cell,) = speed[way]
        assert cell == "needs a GPU" if way in ON_CARDS else _number(cell) > 0, (way, cell)
    together = _rows(tables, "lanes of resnet8")
    assert all(_number(together[count][0]) > 0 for count in ("1", "2"))
    seconds = [cells[0] for cells in _rows(tables, "once at a rung").values()]
    assert len(seconds) == 4 and all(_number(cell) >= 0 for cell in seconds[1:])


def test_a_cell_says_what_went_wrong_or_that_no_time_was_left():
    def fails():
        raise RuntimeError("out of\nmemory")

    assert measured(Clock(60), fails, SMOKE) == "RuntimeError: out of"
    assert measured(Clock(0), fails, SMOKE) == "no time left"
    rows = speeds(replace(SMOKE, ways=tuple(WAYS)), Clock(0))
    assert {cell for row in rows[1:] for cell in row[1:]} == {"no time left", "needs a GPU"}
    assert text_table([["a", "bb"], ["ccc", "d"]]).splitlines() == ["| a   | bb |", "|-----|----|", "| ccc | d  |"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_the_command_says_how_to_try_it():
    with pytest.raises(SystemExit, match="--device cpu --smoke"):
        main([])
