"""Two sweeps side by side, with tables whose differences are known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from sweeper.judging.question import NOT_COMPARED, OPEN, SAME, WORSE
from sweeper.results import Results
from sweeper.results.comparison import compare, differences, view
from sweeper.results.leaderboard import leaderboard
from tests.sweeper.changed_tables import shift
from tests.sweeper.synthetic_sweep import write_sweep


def text_of(first: Path, second: Path) -> str:
    console = Console(width=240, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(view(compare(Results(first), Results(second))))
    return console.export_text()


def test_where_nothing_can_be_paired_the_best_of_each_is_shown(sweep: Path, tmp_path: Path) -> None:
    second = write_sweep(tmp_path / "second", configurations=4, samples=60, failures=0, seed=5)
    found, text = compare(Results(sweep), Results(second)), text_of(sweep, second)
    assert (found.shared, found.finished, list(found.metrics)) == (0, 0, []) and "no pairs to compare" in text
    for folder in (sweep, second):
        board = leaderboard(Results(folder))
        line = next(line for line in text.splitlines() if line.startswith(f"best of {folder.name}: "))
        assert board.value(board.finished[0]) in line and board.finished[0]["trial"] in line
        assert f", best of {len(board.finished)} finished" in line
        assert ("Allowing for having picked the best" in line) == (len(board.finished) > 1)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison") / "first"
    return write_sweep(folder, configurations=14, replicates=3, space="gamma", failures=1, samples=60)


@pytest.fixture()
def pair(sweep: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two copies of one sweep, to change."""
    return tuple(shutil.copytree(sweep, tmp_path / name, symlinks=True) for name in ("first", "second"))  # type: ignore[return-value]


def test_a_known_difference_is_found_and_no_other(pair: tuple[Path, Path]) -> None:
    shift(pair[1], "ece", 0.01, "test")
    found = compare(Results(pair[0]), Results(pair[1]))
    assert (found.shared, found.only, found.finished, found.unit) == (14, (0, 0), 13, "configuration")
    assert found.equal_seeds and not found.asked
    by_name = {(entry.split, entry.metric): entry for entry in found.metrics}
    ece = by_name["test", "ece"]
    assert ece.means[1] - ece.means[0] == pytest.approx(0.01) and ece.units == 13
    last = "SELECT avg(ece) AS ece FROM final WHERE split = 'test' AND status = 'completed'"
    assert ece.means[0] == pytest.approx(Results(pair[0]).rows(last)[0]["ece"])
    assert ece.verdict.code == WORSE and ece.verdict.low < 0.01 < ece.verdict.high
    others = [entry for key, entry in by_name.items() if key != ("test", "ece")]
    assert others and all(each.means[0] == each.means[1] and each.verdict.code in (OPEN, SAME) for each in others)
    assert "test ECE is higher in second: +0.01" in text_of(*pair)


def test_seeds_with_fewer_configurations_are_not_averaged_with_the_others(pair: tuple[Path, Path]) -> None:
    """Three seeds common to all; on two of them only one configuration, which is another kind of mean."""
    for folder in pair:
        for file in (folder / "tables" / "trials").resolve().glob("**/*.parquet"):
            table = pq.read_table(file)
            seeds = pa.array(table["replicate"].to_pylist(), table["seed"].type)
            table = table.set_column(table.schema.get_field_index("seed"), "seed", seeds)
            first = leaderboard(Results(folder)).finished[0]["trial"]
            kept = pc.or_(pc.equal(table["replicate"], 0), pc.equal(table["trial"], first))
            pq.write_table(table.filter(kept), file)
    shift(pair[1], "ece", 0.01, "test")
    found = compare(Results(pair[0]), Results(pair[1]))
    ece = next(entry for entry in found.metrics if (entry.split, entry.metric) == ("test", "ece"))
    own = "SELECT avg(ece) AS ece FROM final WHERE split = 'test' AND status = 'completed' AND replicate = 0"
    assert (found.unit, ece.units, ece.verdict.code) == ("seed", 1, NOT_COMPARED)
    assert ece.means[0] == pytest.approx(Results(pair[0]).rows(own)[0]["ece"])


def test_what_was_asked_and_what_ran_it(pair: tuple[Path, Path]) -> None:
    specification = yaml.safe_load((pair[1] / "sweep.yaml").read_text())
    specification["scheduler"]["max_epochs"] = 81
    (pair[1] / "sweep.yaml").write_text(yaml.safe_dump(specification))
    for number, folder in enumerate(pair, 1):
        made = {"versions": {"torch": str(number)}, "created": f"2026-01-0{number}T00:00:00+00:00"}
        (folder / "manifest.json").write_text(json.dumps(made))
    found = compare(Results(pair[0]), Results(pair[1]))
    assert found.asked == [("scheduler.max_epochs", 27, 81)]
    assert found.ran_on == [("versions.torch", "1", "2")]


def test_other_samples_are_never_compared_in_curvature(pair: tuple[Path, Path]) -> None:
    shift(pair[1], "hessian_cross_entropy_samples", 10, "val")
    found = compare(Results(pair[0]), Results(pair[1]))
    assert not [entry for entry in found.metrics if entry.metric.startswith("hessian")]
    assert "different numbers of samples" in text_of(*pair)


def test_differences_of_nested_values() -> None:
    assert differences({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 5}, "e": {}}) == [
        ("a.c", 2, 5),
        ("d", 3, None),
        ("e", None, {}),
    ]


def test_common_seeds_that_the_other_sweep_lacks_leave_no_independent_pairs(pair: tuple[Path, Path]) -> None:
    """Each sweep's configurations share a seed's luck: 13 pairs of configurations would be one draw, not 8."""
    for folder, first_seed in zip(pair, (0, 100), strict=True):
        for file in (folder / "tables" / "trials").resolve().glob("**/*.parquet"):
            table = pq.read_table(file)
            seeds = pa.array([first_seed + number for number in table["replicate"].to_pylist()], table["seed"].type)
            pq.write_table(table.set_column(table.schema.get_field_index("seed"), "seed", seeds), file)
    shift(pair[1], "ece", 0.01, "test")
    found = compare(Results(pair[0]), Results(pair[1]))
    assert (
        not found.metrics
        and not found.equal_seeds
        and "run both with the same `seed`" in found.left_out["every metric"]
    )
    assert "not compared" in text_of(*pair)
