"""`sweeper paper FIGURE`: rows, remarks, a picture, and clear errors."""

import csv
import io
from pathlib import Path

import pytest

from search_spaces.papers.focal_map_figures import map_figure
from sweeper.core.errors import SweeperError
from tests.running import typed


def test_the_command_prints_rows_and_draws_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "fits.html"
    arguments = ["paper", "temperatures", "--classes", "2", "--gamma", "0", "--gamma", "2", "--format", "csv"]
    result = typed(*arguments, "--to", str(picture))
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [float(row["gamma"]) for row in rows] == [0.0, 2.0]
    assert float(rows[0]["temperature"]) == pytest.approx(1.0, abs=1e-4)
    assert float(rows[1]["temperature"]) == pytest.approx(0.373, abs=1e-3)
    assert "published: 0.95 gamma + 0.85" in result.stderr
    assert "window.vegaEmbed=" in picture.read_text() and "<script src" not in picture.read_text()


@pytest.mark.parametrize("name, columns", [("bounds", {"lower", "upper"}), ("confidence", {"confidence"})])
def test_every_figure_has_rows_remarks_and_curves(name: str, columns: set[str]) -> None:
    found = map_figure(name, [1.0, 3.0])
    assert columns <= set(found.rows[0]) and found.remarks and all(x and y for x, y in found.curves.values())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("nothing",), "no figure"),
        (("bounds", [-1.0]), "outside"),
        (("bounds", [1.0], 3), "defined for 2"),
        (("confidence", [1.0], 1), "outside"),
        (("temperatures", [float("nan")]), "outside"),
    ],
)
def test_bad_input_is_named(arguments: tuple, message: str) -> None:
    with pytest.raises(SweeperError, match=message):
        map_figure(*arguments)
