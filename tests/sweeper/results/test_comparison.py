"""Two sweeps side by side, with tables whose differences are known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from sweeper.results import Results
from sweeper.results.comparison import compare, differences, view
from sweeper.results.leaderboard import leaderboard
from tests.sweeper.changed_tables import shift
from tests.sweeper.synthetic_sweep import write_sweep


def text_of(first: Path, second: Path) -> str:
    console = Console(width=240, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(view(compare(Results(first), Results(second))))
    return console.export_text()


def test_where_nothing_can_be_paired_the_best_of_each_is_shown(tmp_path: Path) -> None:
    first = write_sweep(tmp_path / "first", configurations=12, samples=60)
    second = write_sweep(tmp_path / "second", space="gamma", configurations=4, samples=60, failures=0)
    text = text_of(first, second)
    assert "no pairs to compare" in text
    for folder in (first, second):
        board = leaderboard(Results(folder))
        line = next(line for line in text.splitlines() if line.startswith(f"best of {folder.name}: "))
        assert board.value(board.finished[0]) in line and board.finished[0]["trial"] in line
        assert f", best of {len(board.finished)} finished" in line
        said = any(words in line for words in ("allowing for", "too few", "optimistic"))
        assert said == (len(board.finished) > 1)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("every", "every one breaks a constraint: val_accuracy at least 1"),
        ("all but one", "the only one that keeps to val_accuracy at least 0."),
        ("none", "picked "),
    ],
)
def test_constraints_are_named_where_they_leave_nothing_to_choose_from(tmp_path: Path, limit: str, said: str) -> None:
    folder = write_sweep(tmp_path / "first", space="gamma", configurations=9, replicates=3, failures=0, samples=60)
    board = leaderboard(Results(folder))
    accuracies = sorted(float(row["val_accuracy"]) for row in board.finished)
    least = {"every": 1.0, "all but one": sum(accuracies[-2:]) / 2, "none": 0.0}[limit]
    specification = yaml.safe_load((folder / "sweep.yaml").read_text())
    specification["constraints"] = [{"metric": "val_accuracy", "min": least}]
    (folder / "sweep.yaml").write_text(yaml.safe_dump(specification))
    best, _ = compare(Results(folder), Results(folder)).best
    assert said in best and "one replicate" not in best


def test_one_replicate_each_cannot_show_how_optimistic_the_best_is(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "first", space="gamma", configurations=6, replicates=1, failures=0, samples=60)
    best, _ = compare(Results(folder), Results(folder)).best
    assert best.endswith("selected as the best; one replicate each cannot show by how much")


@pytest.fixture()
def pair(tmp_path: Path) -> tuple[Path, Path]:
    first = write_sweep(tmp_path / "first", configurations=18, replicates=3, space="gamma", failures=1, samples=60)
    second = tmp_path / "second"
    shutil.copytree(first, second, symlinks=True)
    return first, second


def test_a_known_difference_is_found_and_no_other(pair: tuple[Path, Path]) -> None:
    shift(pair[1], "ece", 0.01, "test")
    found = compare(Results(pair[0]), Results(pair[1]))
    assert (found.shared, found.only, found.finished, found.unit) == (18, (0, 0), 17, "configuration")
    assert found.equal_seeds and not found.asked
    by_name = {(entry.split, entry.metric): entry for entry in found.metrics}
    assert by_name["test", "ece"].difference.mean == pytest.approx(0.01)
    assert by_name["test", "ece"].difference.n == 17
    assert by_name["test", "ece"].difference.p < 0.01
    others = [entry.difference for key, entry in by_name.items() if key != ("test", "ece")]
    assert others and all(entry.mean == 0 and entry.p == 1 for entry in others)
    assert "test ECE is higher in second: +0.01" in text_of(*pair)


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


def test_sweeps_without_a_common_configuration(pair: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_sweep(tmp_path / "other", configurations=4, failures=0, samples=60, seed=5)
    found = compare(Results(pair[0]), Results(other))
    assert (found.shared, found.finished, list(found.metrics)) == (0, 0, [])
    assert "no pairs to compare" in text_of(pair[0], other)


def test_where_few_finished_in_both_all_are_compared_at_the_first_rung(tmp_path: Path) -> None:
    first, second = (write_sweep(tmp_path / name, configurations=8, failures=0, samples=60) for name in ("a", "b"))
    for folder, keep in ((first, "c00000"), (second, "c00001")):
        files = [file for name in ("trials", "evaluations") for file in (folder / "tables" / name).rglob("*.parquet")]
        for file in files:
            rows = pq.read_table(file).to_pandas()
            if "status" in rows:
                rows.loc[rows["trial"] != keep, "status"] = "early_stopped"
            else:
                rows = rows[(rows["epoch"] <= 9) | (rows["trial"] == keep)]
                rows.loc[rows["split"] == "test", "ece"] += 0.01 * (folder == second)
            pq.write_table(pa.Table.from_pandas(rows, pq.read_schema(file), preserve_index=False), file)
    found = compare(Results(first), Results(second))
    assert (found.shared, found.finished, found.epoch) == (8, 0, 3)
    ece = next(entry for entry in found.metrics if entry.metric == "ece")
    assert ece.difference.n == 8 and ece.difference.mean == pytest.approx(0.01)
    assert "All are compared at epoch 3, their first evaluation" in text_of(first, second)


def test_differences_of_nested_values() -> None:
    assert differences({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 5}, "e": {}}) == [
        ("a.c", 2, 5),
        ("d", 3, None),
        ("e", None, {}),
    ]


def test_common_seeds_that_the_other_sweep_lacks_leave_no_independent_pairs(pair: tuple[Path, Path]) -> None:
    """Each sweep's configurations share a seed's luck: 17 pairs of configurations would be one draw, not 17."""
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
