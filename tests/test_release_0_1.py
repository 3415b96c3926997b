"""Results folders that release 0.1 wrote and left unfinished: read, audited, resumed and added to."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from search_spaces.papers.claims import CLAIMS
from sweeper.cli.main import app
from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import record_names
from sweeper.results import load
from tests.faults.reference import decisions_of
from tests.running import in_process, reports

FIXTURES = Path(__file__).parent / "fixtures" / "release_0_1"
STATUSES = {  # of replicates: two of every trial
    "digits_small": {"completed": 2, "early_stopped": 4, "interrupted": 2, "waiting": 12},
    "apart": {"completed": 2, "early_stopped": 2, "interrupted": 1, "waiting": 7},
}
ENDED = "trial IN (SELECT trial FROM trials WHERE status IN ('completed', 'early_stopped'))"
TABLES = ("trials", "epochs", "evaluations", "decisions", "predictions", "reliability", "spectra")


def copied(name: str, results: Path) -> Path:
    """Copy a sweep of the fixture; the link that a source distribution leaves out is put back."""
    shutil.copytree(FIXTURES / name, results / name, symlinks=True)
    if not (results / name / "tables").exists():
        (results / name / "tables").symlink_to("generations/0001")
    return results / name


@pytest.fixture(params=sorted(STATUSES))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return copied(request.param, tmp_path / "results")


def said(*arguments: str | Path) -> str:
    """Run a command in this process and return what it printed; it has to end well."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    return done.output


def queried(folder: Path, sql: str) -> list[dict[str, Any]]:
    """Return the rows that `sweeper results --sql` prints."""
    found: list[dict[str, Any]] = json.loads(said("results", folder, "--sql", sql, "--format", "json"))
    return found


def statuses(folder: Path) -> dict[str, int]:
    rows = queried(folder, "SELECT status, count(*) AS n FROM trials GROUP BY 1")
    return {row["status"]: row["n"] for row in rows}


def rows(folder: Path, condition: str) -> dict[str, str]:
    """Return every table's rows for which a condition holds, as text: every bit shows, and a NaN equals a NaN.

    Columns that no row has a value in are left out: on resume, columns of this release join those of release 0.1.
    """
    found = load(folder)
    tables = {table: found.rows(f"SELECT * FROM {table} WHERE {condition} ORDER BY ALL") for table in TABLES}
    used = {table: {name for row in held for name in row if row[name] is not None} for table, held in tables.items()}
    return {t: repr([{k: v for k, v in row.items() if k in used[t]} for row in held]) for t, held in tables.items()}


def test_results_are_those_that_were_written(folder: Path) -> None:
    assert statuses(folder) == STATUSES[folder.name]
    journal = reports(SweepPaths(folder))
    measured = {
        (record.body.configuration, row["replicate"], row["epoch"], row["split"], row["stage"]): row["nll"]
        for record in journal
        for row in record.body.report.evaluations
    }
    shown = queried(folder, "SELECT right(trial, 5)::INT AS c, replicate, epoch, split, stage, nll FROM evaluations")
    assert {(row["c"], row["replicate"], row["epoch"], row["split"], row["stage"]): row["nll"] for row in shown} == (
        measured
    )
    best = json.loads(said("results", folder, "--format", "json"))
    assert best and best[0]["status"] == "completed"


def test_the_audit_finds_every_decision_again(folder: Path) -> None:
    assert "6 decisions recomputed from the records before them, 0 differ" in said("status", folder, "--audit")


def test_the_report_is_written(folder: Path) -> None:
    page = Path(said("report", folder).strip())
    text = page.read_text("utf-8")
    best = load(folder).rows("SELECT trial FROM trials WHERE status = 'completed'")[0]["trial"]
    assert folder.name in text and best in text


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_resumed_it_ends_and_keeps_what_it_had(folder: Path) -> None:
    paths = SweepPaths(folder)
    trials = tuple(row["trial"] for row in load(folder).rows(f"SELECT DISTINCT trial FROM trials WHERE {ENDED}"))
    ended = rows(folder, f"trial IN {trials}")
    journal = {name: (paths.journal / name).read_bytes() for name in record_names(paths.journal)}
    before = reports(paths)
    done = in_process("resume", folder.name, "--no-mlflow", "--cpus", "2", cwd=folder.parent.parent)
    assert done.returncode == 0, done.stderr
    assert set(statuses(folder)) == {"completed", "early_stopped"}
    assert {name: (paths.journal / name).read_bytes() for name in journal} == journal, "records never change"
    assert reports(paths)[: len(before)] == before
    assert rows(folder, f"trial IN {trials}") == ended
    for configuration, decisions in decisions_of(before).items():
        assert decisions_of(reports(paths))[configuration][: len(decisions)] == decisions
    twice = "SELECT trial, replicate, epoch FROM epochs GROUP BY ALL HAVING count(*) > 1"
    missing = (
        "SELECT trial FROM trials t WHERE epochs <> "
        "(SELECT count(*) FROM epochs e WHERE e.trial = t.trial AND e.replicate = t.replicate)"
    )
    assert queried(folder, twice) == [] == queried(folder, missing)
    assert "0 differ" in said("status", folder, "--audit")


def test_post_hoc_methods_are_fitted_on_its_predictions(folder: Path) -> None:
    said("recalibrate", folder, "--method", "temperature")
    for method, column in (("none", "ece"), ("temperature", "posthoc_temperature_ece")):
        again = queried(
            folder,
            f"SELECT r.ece AS now, e.{column} AS before FROM recalibrations r JOIN evaluations e "
            "ON r.trial = e.trial AND r.replicate = e.replicate AND r.epoch = e.epoch AND r.split = e.split "
            f"WHERE r.method = '{method}'",
        )
        assert again and [row["now"] for row in again] == pytest.approx([row["before"] for row in again], rel=1e-6)


def test_mlflow_shows_it(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "mlflow.db"
    said("sync", folder, "--tracking-uri", f"sqlite:///{store}")
    with closing(sqlite3.connect(store)) as held:
        found = held.execute("SELECT value, count(*) FROM tags WHERE key = 'status' GROUP BY value").fetchall()
    counts = load(folder).rows("SELECT count(DISTINCT trial) AS n FROM trials WHERE status = 'completed'")
    assert dict(found)["completed"] == counts[0]["n"]


def test_it_is_compared_with_itself(tmp_path: Path) -> None:
    first, second = (copied("digits_small", tmp_path / name) for name in ("results", "others"))
    text = said("compare", first, second)
    assert "settings: identical" in text and "1 finished in both" in text
    assert "too few to compare. All are compared at epoch 3, their first" in " ".join(text.split())
    assert re.search(r"test accuracy +0\.8249 +0\.8249 +\+0 ", text), text


def test_claims_are_judged_on_it(folder: Path) -> None:
    names = [part for name in CLAIMS for part in ("--claim", name)]
    verdicts = json.loads(said("claims", folder, *names, "--json"))
    assert {verdict["claim"] for verdict in verdicts} == set(CLAIMS)
    assert {verdict["verdict"] for verdict in verdicts} == {"undecided"}, "too few trials for any rule"
    assert all(verdict["sentence"] for verdict in verdicts)


def test_the_tables_are_a_link_in_a_checkout() -> None:
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        pytest.skip("a source distribution holds no links")
    assert all((FIXTURES / name / "tables").readlink() == Path("generations/0001") for name in STATUSES)
