"""`sweeper serve` beside a journal that grows for an hour: resident memory each minute, events delivered, their lag.

The journal is written by the program's own writer, a few records a second, in the form in which a driver writes it;
nothing is trained. `--folder` names a generated sweep whose journal is replayed (its later records one after the other,
the earlier ones at once); without it a smaller sweep is generated. The lag of an event is the age of the oldest record
that it is the first to show.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import Journal, read_journal
from sweeper.journal.records import Body
from sweeper.storage.lease import Lease
from sweeper.storage.metadata import hardware
from tests.sweeper.records import made_body
from tests.sweeper.serving.server import Served, served
from tests.sweeper.synthetic_sweep import write_sweep

RUNGS = (3, 9, 27)


def generated(trials: int) -> Iterator[Body]:
    """Yield the records of a sweep of so many trials, stopped at rungs by chance."""
    rng = np.random.default_rng(0)
    yield made_body("attempt", {"attempt": 1, "host": "here", "pid": 1})
    for index in range(trials):
        yield made_body("started", {"configuration": index, "attempt": 1})
        for epoch in range(1, RUNGS[-1] + 1):
            kind, status, rows = "complete", "running", [_row(rng, epoch, replicate) for replicate in range(2)]
            if epoch < RUNGS[-1]:
                kind = "stop" if rng.random() < 0.66 else "continue"
            decision = None
            if epoch in RUNGS:
                status = {"complete": "completed", "stop": "early_stopped", "continue": "running"}[kind]
                decision = {"kind": kind, "rule": "cutoff", "rung": epoch, "metric": 0.5, "cutoff": 0.4}
                decision |= {"place": 1, "count": index + 1}
            report = {"configuration": index, "attempt": 1, "epoch": epoch, "status": status, "decision": decision}
            report |= {"objective": float(rng.random()), "device": "cpu", "wall_seconds": 1.5 * epoch}
            yield made_body("report", {**report, "packing": "sequential", "epochs": rows, "evaluations": []})
            if status != "running":
                break


def _row(rng: np.random.Generator, epoch: int, replicate: int) -> dict[str, float]:
    measured = {"train_loss": 0.5, "val_nll": float(rng.random()), "val_accuracy": 0.9, "val_ece": 0.05}
    return {"replicate": replicate, "epoch": epoch, **measured, "lr": 0.1, "seconds": 1.5}


class Growth:
    """A journal that grows, and what its readers say of it."""

    def __init__(self, paths: SweepPaths, bodies: Iterator[Body], a_second: float) -> None:
        self._paths, self._bodies, self._pause = paths, bodies, 1 / a_second
        self.written: dict[int, float] = {}
        self.stop = threading.Event()
        self.lags: list[float] = []
        self.events, self.broken = 0, list[str]()

    def write(self) -> None:
        """Append records until told to stop."""
        journal = Journal(self._paths.journal, durable=False)
        for body in self._bodies:
            record = journal.append(body)
            self.written[record.sequence] = time.monotonic()
            journal.settle()
            if self.stop.wait(self._pause):
                return

    def read(self, up: Served, path: str) -> None:
        """Follow a stream, and note how far behind it is."""
        shown = None
        try:
            for _, text in up.events(path):
                now, self.events = time.monotonic(), self.events + 1
                at = re.search(r'data-record="(\d+)"', text)
                if at is not None:
                    oldest = self.written.get((int(at[1]) if shown is None else shown) + 1)
                    if shown is not None and oldest is not None and int(at[1]) > shown:
                        self.lags.append(now - oldest)
                    shown = int(at[1])
                if self.stop.is_set():
                    return
        except OSError as error:
            if not self.stop.is_set():
                self.broken.append(repr(error))


def resident(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def main() -> None:
    """Measure and print, a line a minute."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=65)
    parser.add_argument("--streams", type=int, default=24)
    parser.add_argument("--records", type=float, default=5.0, help="a second")
    parser.add_argument("--folder", type=Path, help="a generated sweep to replay")
    asked = parser.parse_args()
    live = int(asked.minutes * 60 * asked.records)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "results" / "grows"
        if asked.folder is None:
            write_sweep(folder, configurations=max(12, live // 5), samples=30, keep_predictions="finished")
            bodies, known = generated(live), 0
        else:
            shutil.copytree(asked.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("journal"))
            bodies = (record.body for record in read_journal(asked.folder / "journal"))
            known = sum(1 for _ in read_journal(asked.folder / "journal")) - live
        paths = SweepPaths(folder)
        journal = Journal(paths.journal, durable=False)
        for body in islice(bodies, max(1, known)):
            journal.append(body)
        journal.settle()
        print(f"{hardware()['processor']}, {os.cpu_count()} cores; {max(1, known):,} records, {asked.streams} streams")
        with Lease(paths.lease) as lease, served(folder.parent, Path(name) / "cache") as up:
            up.wait_for("/sweeps/grows/", "data-record", 600)
            _follow(Growth(paths, bodies, asked.records), lease, up, asked.streams, asked.minutes)


def _follow(growth: Growth, lease: Lease, up: Served, streams: int, minutes: float) -> None:
    readers = ["/sweeps/grows/events"] * (streams - 2) + ["/events"] * 2
    threads = [threading.Thread(target=growth.read, args=(up, path), daemon=True) for path in readers]
    for thread in (threading.Thread(target=growth.write, daemon=True), *threads):
        thread.start()
    began, first, before = time.monotonic(), 0.0, 0
    for minute in range(1, int(minutes) + 1):
        while time.monotonic() - began < 60 * minute:
            lease.beat()
            time.sleep(1)
        first = first or resident(up.process.pid)
        recent = growth.lags[before:] or [0.0]
        before = len(growth.lags)
        print(
            f"{minute} min: {resident(up.process.pid):.0f} MiB, {len(growth.written):,} records, "
            f"{growth.events:,} events, "
            f"lag median {statistics.median(recent):.2f} s, at most {max(recent):.2f} s, "
            f"{len(growth.broken)} streams broken, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    growth.stop.set()
    lags = sorted(growth.lags) or [0.0]
    print(
        f"all: {growth.events:,} events, lag median {statistics.median(lags):.2f} s, 99 % below "
        f"{lags[int(0.99 * (len(lags) - 1))]:.2f} s, at most {lags[-1]:.2f} s; "
        f"{resident(up.process.pid) - first:+.1f} MiB since the first minute"
    )


if __name__ == "__main__":
    main()
