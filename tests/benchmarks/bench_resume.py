"""What a resume of 100,000 trials costs: reading the journal, rebuilding the tables, requests to a store.

Run with `make bench-resume`. The journal is written by the program's own writer from a simulated sweep
(tests/sweeper/simulated_cluster.py), with the rows of a small real sweep in its reports, and read as a resume reads it:
each record folded once into state, rungs and tables. First as files of one record each, as older releases left them,
then as segments. Requests are counted by a proxy before an S3-compatible server of this machine; the store has all
segments, and beside them as many objects of one record as there can be.

`--finished N` runs a sweep of N tiny trials to its end instead, and gives the processor time of a resume that has
nothing to do: one that finds the mark that says so, and one that has to find out.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from sweeper.core.ids import ReplicateSeeds, SweepPaths
from sweeper.core.schemas import evaluation_columns, table_schemas
from sweeper.execution.driver.context import Fold
from sweeper.execution.driver.steering import WorkingTime
from sweeper.execution.options import MARK
from sweeper.execution.resuming import folded
from sweeper.journal import segments
from sweeper.journal.best import Spending
from sweeper.journal.journal import Journal, read_journal
from sweeper.journal.records import Attempt, Decision, Reported, Started
from sweeper.journal.segments import pieces
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, RUNNING, SweepState
from sweeper.scheduling.asha import Halving
from sweeper.space.configurations import column_types, configurations
from sweeper.space.loading import load_spec
from sweeper.space.spec import SweepSpec
from sweeper.storage.metadata import hardware
from sweeper.storage.places import fetch
from sweeper.storage.store_journal import Term
from sweeper.tables.writer import ParquetSink
from tests.benchmarks.simulate_cluster import SPACE
from tests.faults.unreliable_store import unreliable_store
from tests.remote.services import BUCKET, s3_server
from tests.running import TINY, write_space
from tests.sweeper.simulated_cluster import SimulatedCluster, simulate
from trainables.files.stores.object_store import Store
from trainables.worker.trial_reports import TrialReport

STATUS = {"continue": RUNNING, "stop": EARLY_STOPPED, "complete": COMPLETED}

BRIEF = ("scheduler.max_epochs=1", "space.architecture.width=4", "space.optimizer.batch_size=512")
"""What shortens the training of trials whose resume is measured."""


class JournalWriter:
    """Writes what a simulated driver hears, with the rows of a real report."""

    def __init__(self, journal: Journal, example: TrialReport, clock: list[float]) -> None:
        self._journal, self._example, self._clock = journal, example, clock

    def started(self, now: float, trial: int) -> None:
        """Journal a start."""
        self._clock[0] = now
        self._journal.append(Started(trial, 1))

    def reported(self, now: float, trial: int, epochs: range, value: float, decision: Decision | None) -> None:
        """Journal a report."""
        self._clock[0] = now
        example, last = self._example, epochs[-1]
        report = replace(
            example,
            configuration=trial,
            epoch=last,
            objective=value,
            epochs=[{**example.epochs[0], "epoch": epoch} for epoch in epochs],
            evaluations=[{**row, "epoch": last} for row in example.evaluations] if decision is not None else [],
        )
        status = STATUS[decision.kind] if decision is not None else RUNNING
        self._journal.append(Reported(report, 1, status, decision))
        self._journal.settle()


def write_journal(paths: SweepPaths, schedule: Halving, trials: int, epoch_seconds: float) -> None:
    """Write the journal of a finished sweep of so many trials."""
    clock = [0.0]
    journal = Journal(paths.journal, clock=lambda: clock[0], durable=False)
    journal.append(Attempt(1, "here", 1))
    cluster = SimulatedCluster(1000, epoch_seconds=epoch_seconds)
    simulate(schedule, trials, cluster, listener=JournalWriter(journal, real_report(), clock))


def real_report() -> TrialReport:
    """Return a report with an evaluation of a small real sweep."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "small.yaml").write_text(SPACE)
        subprocess.run(
            [sys.executable, "-m", "sweeper", "run", "small.yaml"], cwd=name, check=True, capture_output=True
        )
        bodies = [record.body for record in read_journal(SweepPaths(Path(name) / "results" / "small").journal)]
    return next(body.report for body in bodies if isinstance(body, Reported) and body.report.evaluations)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long something took."""
    wall, processor = time.perf_counter(), time.process_time()
    yield
    took = f"{time.perf_counter() - wall:.1f} s, {time.process_time() - processor:.1f} s of processor time"
    print(f"  {what}: {took}", flush=True)


def read(paths: SweepPaths, spec: SweepSpec, trials: int) -> None:
    """Read a journal and rebuild the tables, as a resume does."""
    schemas = table_schemas(column_types(spec.space), 10, evaluation_columns(spec.evaluation.posthoc))
    with timed("configurations drawn, tables opened"):
        sink = ParquetSink(paths, schemas, configurations(spec), ReplicateSeeds(spec.seed, 1))
    folds: list[Fold] = [SweepState(trials), spec.schedule.begin(), WorkingTime(), Spending()]
    with timed(f"{len(os.listdir(paths.journal)):,} files read, folded once, tables rebuilt"):
        sink.rebuild(folded(paths, folds, lambda: None))


def requests(paths: SweepPaths) -> int:
    """Return how many requests bring the journal here from a store, with as many small objects as there can be."""
    with tempfile.TemporaryDirectory() as name, s3_server(Path(name)) as environment:
        with mock.patch.dict(os.environ, environment):
            direct, term = Store(f"s3://{BUCKET}/bench"), Term(1, "0" * 16, 0)
            direct.put(term.object_name, term.to_bytes())
            found = [piece for piece in pieces(paths.journal) if piece.sealed]
            direct.put_all({term.group_name(each.first, each.last): paths.journal / each.name for each in found})
            single = segments.joined([next(segments.contents(paths.journal)).data])
            unsealed = range(found[-1].last + 1, found[-1].last + segments.SEALED)
            direct.put_all({term.group_name(number, number): single for number in unsealed})
        with unreliable_store(environment["AWS_ENDPOINT_URL"], 0) as counting:
            with (
                mock.patch.dict(os.environ, {**environment, "AWS_ENDPOINT_URL": counting.address}),
                timed(f"{len(found) + len(unsealed):,} objects fetched from a store of this machine"),
            ):
                fetch(Store(direct.uri), Path(name) / "copy", tables=False)
            return counting.answered


def finished(trials: int) -> None:
    """Print what a resume of a finished sweep costs."""
    with tempfile.TemporaryDirectory() as name:
        space = write_space(Path(name), TINY % trials, "tiny")
        brief = [word for change in BRIEF for word in ("--set", change)]

        def sweeper(*arguments: str) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "sweeper", *arguments, "--no-mlflow"]
            subprocess.run(command, cwd=name, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        print(f"{trials:,} trials: run {sweeper('run', str(space), *brief):.0f} s of processor time")
        print(f"  resume that finds the mark: {sweeper('resume', 'tiny'):.1f} s")
        (SweepPaths(Path(name) / "results" / "tiny").generations / MARK).unlink()
        print(f"  resume without it: {sweeper('resume', 'tiny'):.1f} s")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--epoch-seconds", type=float, default=60.0, help="shorter ones share a report")
    parser.add_argument("--finished", type=int, default=0, help="trials of a finished sweep, instead")
    asked = parser.parse_args()
    print(f"{hardware()['processor']}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.0f}")
    if asked.finished:
        finished(asked.finished)
        return
    with tempfile.TemporaryDirectory() as name:
        space, paths = Path(name) / "space.yaml", SweepPaths(Path(name) / "results" / "large")
        space.write_text(
            SPACE.replace("max_epochs: 9", "max_epochs: 27").replace("samples: 9", f"samples: {asked.trials}")
        )
        spec = load_spec(space)
        schedule = spec.schedule
        assert isinstance(schedule, Halving)
        with mock.patch.object(segments, "SEALED", 10**9), timed("journal written, a file a record"):
            write_journal(paths, schedule, asked.trials, asked.epoch_seconds)
        size = sum(entry.stat().st_size for entry in os.scandir(paths.journal))
        print(f"{asked.trials:,} trials, {segments.last_sequence(paths.journal) + 1:,} records, {size / 1e9:.2f} GB")
        read(paths, spec, asked.trials)
        with timed("joined in segments, once"):
            Journal(paths.journal, durable=False)
        read(paths, spec, asked.trials)
        print(f"  {requests(paths):,} requests")


if __name__ == "__main__":
    main()
