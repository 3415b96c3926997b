"""Rehearsing shipped search spaces for real, one after the other on one Ray: `make rehearse`; short ones in tests.

    python -m tests.rehearsals [--output FOLDER] [--executor local] [--json] [NAME …]

Prints a row a file: minutes, rows of every table, verdicts that were formed, and what is missing. Exit status 1 when a
rehearsal failed or left a table empty.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from search_spaces import packaged_files
from search_spaces.papers.judging import judge_claims, named_claims
from sweeper.core.errors import SweeperError
from sweeper.core.ids import TABLES
from sweeper.core.processes import prepare
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import run_sweep
from sweeper.planning.user_code_checks import measured_columns
from sweeper.results import Results
from sweeper.space.file import read_document
from trainables.curvature.statistics.base import TEMPERED, further_columns
from trainables.registry import entry_label

REHEARSED = tuple(name for name, path in packaged_files().items() if "rehearsal" in read_document(path).values)
"""The search spaces that ship with a rehearsal."""

MARKED = ("trials", "epochs", "evaluations", "decisions", "final")


@dataclass(frozen=True)
class Rehearsed:
    """How one rehearsal went.

    Attributes:
        name: of the search space.
        minutes: wall time; Ray's start is not in it.
        trial_minutes: summed over the trials, which run side by side.
        rows: table → rows.
        verdicts: claim → verdict, which says that it could be judged and nothing else.
        faults: what is wrong, a sentence each.
    """

    name: str
    minutes: float
    trial_minutes: float
    rows: dict[str, int]
    verdicts: dict[str, str]
    faults: list[str]


def rehearse(name: str, output: Path, cpus: int | None = None) -> Rehearsed:
    """Run one rehearsal and look at everything that it left."""
    began = time.monotonic()
    options = RunOptions(str(output), None, cpus, f"sqlite:///{output}/mlflow.db", rehearse=True)
    try:
        outcome = run_sweep(packaged_files()[name], [], None, options)
    except SweeperError as error:
        return Rehearsed(name, (time.monotonic() - began) / 60, 0.0, {}, {}, [str(error)])
    minutes = (time.monotonic() - began) / 60
    results = Results(outcome.sweep.paths.root)
    rows = {table: results.rows(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in TABLES}
    seconds = results.rows("SELECT sum(wall_seconds) AS s FROM trials")[0]["s"] or 0.0
    names = named_claims(results)
    verdicts = {v.claim: v.verdict for v in judge_claims(results, names)} if names else {}
    faults = [f"ended as {outcome.outcome}"] if outcome.outcome != "finished" else []
    return Rehearsed(name, minutes, seconds / 60, rows, verdicts, faults + faults_of(results, rows))


def faults_of(results: Results, rows: dict[str, int]) -> list[str]:
    """Return what a rehearsal's results lack: rows, marks, or measurements that its space asks for."""
    evaluation = results.specification["evaluation"]
    curvature = evaluation["curvature"]
    asked = {"spectra": "spectrum", "blocks": "blocks"}
    itself = ("predictions", "reliability") if "nll" in measured_columns(results.manifest) else ()
    wanted = [table for table in TABLES if table not in asked or (curvature and curvature[asked[table]])]
    wanted = [table for table in wanted if table not in itself]  # of a training loop that measures everything itself
    faults = [f"the table {table} is empty" for table in wanted if not rows[table]]
    for table in MARKED:
        unmarked = results.rows(f"SELECT count(*) AS n FROM {table} WHERE rehearsal IS NOT TRUE")[0]["n"]
        faults += [f"{unmarked} rows of {table} are not marked as a rehearsal"] if unmarked else []
    failed = results.rows("SELECT trial, error FROM trials WHERE status = 'failed' ORDER BY trial LIMIT 1")
    faults += [f"{row['trial']} failed: {row['error']}" for row in failed]
    if not results.manifest.get("rehearsal") or "Rehearsal, not a result" not in results.paths.report.read_text():
        faults.append("manifest or report do not say that it is a rehearsal")
    measured = [f"posthoc_{entry_label(method)}" for method in evaluation["posthoc"]]
    if curvature:
        measured += [f"hessian_{loss}_lambda_max" for loss in curvature["losses"] if loss != TEMPERED]
        further = further_columns(curvature, evaluation["posthoc"])
        measured += [column for column in further if column.endswith("_lambda_max")]
    return faults + [fault for column in measured for fault in unmeasured(results, column)]


def unmeasured(results: Results, column: str) -> list[str]:
    """Return a sentence when a measurement that was asked for is in no row and no reason is given."""
    columns = results.columns("evaluations")
    values = [name for name in columns if name == column or name.startswith(f"{column}_")]
    reasons = f"{column}_unavailable" if column.startswith("posthoc_") else "hessian_unavailable"
    found = " OR ".join(f"{name} IS NOT NULL" for name in {*values, reasons})
    held = results.rows(f"SELECT count(*) AS n FROM evaluations WHERE {found}")[0]["n"]
    return [] if held else [f"{column} was measured in no evaluation"]


def line(done: Rehearsed) -> str:
    """Return one rehearsal as a line of the table."""
    counts = " ".join(f"{table} {count:,}" for table, count in done.rows.items())
    verdicts = f"; {len(done.verdicts)} claims judged" if done.verdicts else ""
    faults = f"; FAULTS: {'; '.join(done.faults)}" if done.faults else ""
    return f"{done.name:48} {done.minutes:5.1f} min ({done.trial_minutes:.1f} in trials)  {counts}{verdicts}{faults}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse the files that are named, or all that have a rehearsal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="search spaces; all with a rehearsal if none is named")
    parser.add_argument("--output", type=Path, help="folder of results; a temporary one if unset")
    parser.add_argument("--cpus", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--executor", choices=("local", "ray"), default="ray")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    chosen: Any = parser.parse_args(arguments)
    names = chosen.names or REHEARSED
    prepare(None)
    from sweeper.execution.ray.session import ray_session

    done: list[Rehearsed] = []
    on_ray = ray_session(None, chosen.cpus) if chosen.executor == "ray" else contextlib.nullcontext()
    with tempfile.TemporaryDirectory(prefix="rehearsals-") as scratch, on_ray:
        for name in names:
            done.append(rehearse(name, (chosen.output or Path(scratch)).resolve(), chosen.cpus))
            if not chosen.json:
                print(line(done[-1]), flush=True)
    if chosen.json:
        print(json.dumps([asdict(each) for each in done]))
    return 1 if any(each.faults for each in done) else 0


if __name__ == "__main__":
    sys.exit(main())
