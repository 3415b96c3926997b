"""Where dots lie on an axis, and in which digits their numbers stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.reporting.first_screen import first_screen
from sweeper.reporting.picture import ALIKE, MOST_POINTS, STOPPED, digits, scale_of
from sweeper.results.leaderboard import leaderboard
from sweeper.results.listing import overview
from tests.sweeper.held import held


@pytest.mark.parametrize("values", [[0.01, 0.5], [0.2, 0.21], [-1.0, 3.0], [5.0], [0.0, 1.0]])
def test_an_axis_keeps_the_order_of_values_and_labels_what_it_shows(values: list[float]) -> None:
    scale = scale_of(values, [(min(values), max(values) * 1e6)])
    places = [scale.place(value) for value in values]
    assert places == sorted(places) and all(0 < place < 100 for place in places)
    assert scale.log == (len(values) > 1 and values[0] > 0 and values[1] >= 3 * values[0])
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 6
    for place, words in ticks.items():
        assert scale.place(float(words.replace(",", ""))) == pytest.approx(place, abs=0.01)


def test_a_far_interval_does_not_squeeze_the_dots() -> None:
    near, far = scale_of([1.0, 2.0], [(0.9, 2.1)]), scale_of([1.0, 2.0], [(0.9, 2.1), (1.0, 900.0), (1.0, 2.2)])
    assert far.place(2.0) - far.place(1.0) > 25 and near.place(2.0) - near.place(1.0) > 60
    assert far.place(900.0) == 100


def test_a_column_has_one_number_of_digits() -> None:
    assert digits([0.0474, 0.271]) == 4 and digits([2.345, 12.1]) == 2 and digits([93.2, 95.0]) == 1
    assert digits([2.301, 2.302], [(2.2995, 2.3025)]) == 3, "digits that tell them apart"
    assert digits([]) == 0 and digits([0.0]) == 0


def test_small_plots_have_every_value_and_mark_what_was_stopped(quickstart_folder: Path) -> None:
    results = held(quickstart_folder)
    board = leaderboard(results)
    found = first_screen(results, board, overview(results))
    rows = {str(row["trial"]): row for row in board.rows}
    assert {setting.name for setting in found.asked} == {"γ"} and len(found.asked) < len(found.settings)
    for setting in found.settings:
        cell = [row for row in rows.values() if (row["loss"], row["architecture"]) == setting.key[1:]]
        assert len(setting.plot.points) == min(MOST_POINTS, sum(row["status"] != "failed" for row in cell))
        for point in setting.plot.points:
            row = rows[point.text.split(":")[0]]
            assert (point.mark == STOPPED) == (row["status"] != "completed")
            assert point.epoch == ("" if row["status"] == "completed" else str(row["epochs"]))
            assert (0 <= point.x <= 100 and 0 <= point.y <= 100 and point.mark != ALIKE) or setting.compared
