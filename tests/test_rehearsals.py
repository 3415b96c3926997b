"""Short rehearsals of shipped files, really run: every table filled, every mark in place. `make rehearse` runs all."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from search_spaces.papers.judging import judge_claims, verdict_lines
from sweeper.results import load
from tests.patience import patient
from tests.rehearsals import REHEARSED
from tests.running import in_process

pytestmark = pytest.mark.integration

SHORT = ("claim_flipped_labels",)
"""A small network on digits with a claim; recipes on the stand-in take longer, and `make rehearse` runs them."""


@dataclass(frozen=True)
class Finished:
    """What rehearsing left: the folder of results, and a summary a file."""

    output: Path
    summaries: list[dict[str, Any]]


def rehearsed(output: Path, names: tuple[str, ...], executor: str, timeout: float) -> Finished:
    """Rehearse files in a process of its own."""
    command = [sys.executable, "-m", "tests.rehearsals", "--json", "--cpus", "2", "--executor", executor]
    command += ["--output", str(output), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(timeout))
    assert done.stdout, done.stderr[-3000:]
    return Finished(output, json.loads(done.stdout.strip().splitlines()[-1]))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return rehearsed(tmp_path_factory.mktemp("rehearsals"), SHORT, "local", 560)


@pytest.mark.timeout(600)
def test_short_rehearsals_fill_their_tables_and_are_marked(finished: Finished) -> None:
    assert [summary["name"] for summary in finished.summaries] == list(SHORT)
    assert [summary["faults"] for summary in finished.summaries] == [[]] * len(SHORT)


@pytest.mark.timeout(600)
def test_its_mlflow_runs_are_tagged_and_its_experiment_is_named(finished: Finished) -> None:
    with closing(sqlite3.connect(finished.output / "mlflow.db")) as store:
        experiments = {name for (name,) in store.execute("SELECT name FROM experiments")}
        runs = store.execute("SELECT count(*) FROM runs").fetchone()[0]
        tagged = store.execute("SELECT count(*) FROM tags WHERE key = 'rehearsal' AND value = 'true'").fetchone()[0]
    assert {f"{name}-rehearsal" for name in SHORT} <= experiments
    assert runs == tagged > len(SHORT)


@pytest.mark.timeout(600)
def test_its_verdicts_its_status_and_its_summary_say_what_they_are(finished: Finished) -> None:
    results = load("claim_flipped_labels-rehearsal", finished.output)
    lines = verdict_lines(judge_claims(results), rehearsal=True)
    assert lines and all(line.startswith("REHEARSAL") for line in lines)
    status = in_process("status", "--output", finished.output, cwd=finished.output)
    assert status.stdout.count("(rehearsal)") == len(SHORT), status.stdout + status.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", REHEARSED)
def test_every_rehearsal(tmp_path: Path, name: str) -> None:
    assert rehearsed(tmp_path, (name,), "ray", 3500).summaries[0]["faults"] == []
