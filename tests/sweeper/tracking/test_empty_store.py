"""A store that is a copy of one made before is the store that MLflow would make."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sweeper.tracking.empty_store import provide


def described(path: Path) -> tuple[list[list[str]], list[tuple[object, ...]], str]:
    """Return what makes tables and indices, the experiments, and the revision.

    MLflow copies tables when it changes them, and writes their constraints in another order each time.
    """
    with closing(sqlite3.connect(path)) as connection:
        made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        tables = sorted(sorted(line.strip(" \t,") for line in sql.splitlines()) for (sql,) in made)
        experiments = connection.execute("SELECT experiment_id, name, lifecycle_stage FROM experiments").fetchall()
        return tables, experiments, connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_copy_has_what_mlflow_makes_and_is_made_without_mlflow(cache: Path, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    first, second, own = (tmp_path / name / "mlflow.db" for name in ("first", "second", "own"))
    for each in (first, second, own):
        each.parent.mkdir()
    provide(first)
    (kept,) = cache.iterdir()
    script = "import sys; from pathlib import Path; from sweeper.tracking.empty_store import provide\n"
    script += f"provide(Path({str(second)!r})); assert 'mlflow' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    MlflowClient(f"sqlite:///{own}").search_experiments()
    assert described(first) == described(second) == described(own)
    client = MlflowClient(f"sqlite:///{second}")
    assert client.get_experiment("0").artifact_location == (second.parent / "mlruns" / "0").as_uri()
    assert list(cache.iterdir()) == [kept]


def test_a_store_that_is_there_stays_as_it_is(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"somebody's")
    provide(path)
    assert path.read_bytes() == b"somebody's"
    assert not cache.exists()


def test_where_nothing_can_be_kept_mlflow_makes_the_store(cache: Path, tmp_path: Path) -> None:
    cache.write_text("a file where the folder would be")
    provide(tmp_path / "mlflow.db")
    assert not (tmp_path / "mlflow.db").exists(), "left to MLflow"
