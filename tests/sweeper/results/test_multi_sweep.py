"""Several sweeps read as one: the union of their tables, each row with the name of its sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.results import UnknownSweepError, load
from sweeper.results.multi_sweep import load_several
from sweeper.results.queries import QueryError
from tests.sweeper.synthetic_sweep import write_sweep


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    write_sweep(folder / "first", configurations=6, failures=1, samples=60)
    write_sweep(folder / "it's second", configurations=4, failures=0, space="gamma", samples=60, seed=1)
    return folder


NAMES = ["first", "it's second"]


def _values(rows: list[dict], columns: list[str]) -> list[str]:
    return [repr([row[column] for column in columns]) for row in rows]


@pytest.mark.parametrize("table", ["trials", "epochs", "evaluations", "decisions", "predictions", "final"])
def test_every_table_is_the_union_of_the_sweeps(output: Path, table: str) -> None:
    united = load_several(NAMES, output)
    for name in NAMES:
        alone = load(name, output).table(table).to_pylist()
        quoted = name.replace("'", "''")
        found = united.sql(f"SELECT * FROM {table} WHERE sweep = '{quoted}'").to_pylist()
        assert len(found) == len(alone)
        names = united.sql(f"SELECT * FROM {table} LIMIT 0").column_names
        assert not [name for name in names if name.endswith("_1")], "what two tables have is given once"
        columns = sorted(set(alone[0]) - {"sweep"}) if alone else []
        assert sorted(_values(found, columns)) == sorted(_values(alone, columns))
    assert united.sql(f"SELECT DISTINCT sweep FROM {table}").num_rows <= 2


def test_a_column_that_one_sweep_lacks_is_null_there(output: Path) -> None:
    rows = load_several(NAMES, output).sql("SELECT sweep, count(config_loss_coverage) AS n FROM trials GROUP BY 1")
    counts = {row["sweep"]: row["n"] for row in rows.to_pylist()}
    assert counts["it's second"] == 0


def test_one_question_over_both(output: Path) -> None:
    query = "SELECT sweep, avg(ece) AS ece FROM final WHERE split = 'test' GROUP BY 1 ORDER BY 1"
    found = load_several(NAMES, output).sql(query).to_pylist()
    for row in found:
        alone = load(row["sweep"], output).rows("SELECT avg(ece) AS ece FROM final WHERE split = 'test'")
        assert row["ece"] == pytest.approx(alone[0]["ece"])
    assert len(found) == 2


def test_faults_are_named(output: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownSweepError, match="third"):
        load_several(["first", "third"], output)
    with pytest.raises(SweeperError, match="same name"):
        load_several(["first", write_sweep(tmp_path / "first", configurations=2, failures=0, samples=60)], output)
    with pytest.raises(QueryError, match="not read-only"):
        load_several(NAMES, output).sql("DROP VIEW trials")
    with pytest.raises(QueryError):
        load_several(NAMES, output).sql("SELECT nothing FROM trials")
