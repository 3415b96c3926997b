"""The head's job: a Ray head without cores, and the driver of the sweep; requeued until the sweep is over.

    python -m sweeper.execution.slurm.head FOLDER run SPACE --name NAME …

Slurm sends SIGUSR1 some time before the job's time limit: the driver stops cleanly and the job requeues itself. On
SIGTERM the driver stops as well, but Slurm decides whether the job runs again: preempted jobs do, cancelled jobs do
not.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.ids import SweepPaths
from sweeper.execution.cluster.cluster import create_token
from sweeper.execution.slurm.jobs import ROOM, Exchange, Head, Notice, cancel, ensure_workers, jobs_left, requeue
from sweeper.execution.slurm.settings import WORKERS
from sweeper.execution.slurm.worker import RayNode, address_here, answers, environment, free_port, ray_folder
from sweeper.journal.journal import read_journal
from sweeper.journal.segments import last_sequence
from trainables.files.atomic import read_text

#: Seconds between two checks of the driver's process.
POLL_SECONDS = 0.5

#: Seconds between two calls of `ray status`, each of which starts Python.
LOOK_SECONDS = 3.0

#: Seconds between two checks for workers; administrators ask users not to call squeue more often.
WORKERS_SECONDS = 60.0

#: After this many starts in a row without a trial's report, neither head nor workers are submitted again.
FRUITLESS_STARTS = 3

#: Exit status of the driver for input that it refuses; a requeue would fail in the same way.
BAD_INPUT = 2


class HeadJob:
    """One start of the head's job."""

    def __init__(self, exchange: Exchange, command: Sequence[str], paths: SweepPaths) -> None:
        """Prepare to run the driver's `command` for the sweep with these paths."""
        self._exchange, self._command, self._paths = exchange, [*command], paths
        self._notice, self._look_at, self._resubmitted = Notice(), 0.0, list[int]()

    def run(self) -> int:
        """Run the driver to its end; return the exit status."""
        exchange, host = self._exchange, address_here()
        address, job = f"{host}:{free_port(host)}", os.environ.get("SLURM_JOB_ID", str(os.getpid()))
        anew = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
        exchange.begin(anew=anew)
        if anew:  # its workers may be submitted a moment after it: do not submit them twice
            self._look_at = time.monotonic() + WORKERS_SECONDS
        exchange.add_start(last_sequence(self._paths.journal))
        if not exchange.token.exists():
            create_token(exchange.token)
        values = environment(exchange.token)
        node = RayNode(_head_options(address, exchange.token), values, exchange.folder / f"ray-{job}.txt")
        try:
            code = self._drive(node, Head(address, job, len(exchange.starts())), values)
        finally:
            node.end(needed=False)
        try:
            return self._end(code, job)
        finally:
            if exchange.over is not None:
                shutil.rmtree(ray_folder(exchange.token).parent, ignore_errors=True)

    def _drive(self, node: RayNode, head: Head, values: dict[str, str]) -> int | None:
        """Announce the head, wait for a worker, and run the driver; return its exit status, `None` without a run."""
        while node.alive and self._notice.number is None and not answers(head.address):
            time.sleep(POLL_SECONDS)
        self._exchange.announce(head)
        if not self._wait_for_workers(node, head.address, values):
            return None
        driven = [*self._command, "--ray", head.address, "--executor", "ray"]
        driver, terminated = subprocess.Popen([sys.executable, "-m", "sweeper", *driven], env=values), False
        while driver.poll() is None:
            self._look_after_workers()
            if self._notice.number is not None and not terminated:
                driver.terminate()  # only once: after a second signal the driver would not wait for its trials' epochs
                terminated = True
            time.sleep(POLL_SECONDS)
        return driver.returncode

    def _wait_for_workers(self, node: RayNode, address: str, values: dict[str, str]) -> bool:
        """Wait for a core to train on; return whether there is one and no end of the job was requested."""
        ray = str(Path(sys.executable).with_name("ray"))
        _say("waiting for the first worker")
        while self._notice.number is None and node.alive and not self._exchange.stop.exists():
            self._look_after_workers()
            done = subprocess.run([ray, "status", "--address", address], env=values, capture_output=True, text=True)
            # "0.0/4.0 CPU": used and total; the head itself has none.
            if re.search(r"/([1-9]\d*)\.\d+ CPU", done.stdout):
                return True
            time.sleep(LOOK_SECONDS)
        return False

    def _look_after_workers(self) -> None:
        """At intervals, submit workers again if none is left; stop the sweep if new workers bring no progress."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + WORKERS_SECONDS
        if ensure_workers(self._exchange.folder):
            self._resubmitted.append(last_sequence(self._paths.journal))
            if fruitless(self._paths.journal, self._resubmitted) and not self._exchange.stop.exists():
                why = f"all workers ended {FRUITLESS_STARTS} times without progress; their logs say why"
                self._exchange.stop.write_text(why, "utf-8")
                self._notice.number = signal.SIGTERM

    def _end(self, code: int | None, job: str) -> int:
        """Give the sweep up or requeue the job, after a driver ended with `code` (`None`: no driver was started)."""
        exchange = self._exchange
        if code == 0:
            return self.give_up("the sweep is finished", 0)
        if exchange.stop.exists():
            return self.give_up(read_text(exchange.stop) or "the sweep was asked to stop", code or 1)
        if self._notice.number == signal.SIGTERM:
            _say("stopped by Slurm; requeued, it continues")
            return 1
        near = self._notice.number == signal.SIGUSR1
        if not near and code == BAD_INPUT:
            return self.give_up("the driver refused its input", code)
        if not near and code == 1 and self._ended_cleanly():
            return self.give_up("the sweep ended with trials that are not complete", code)
        # Waiting for workers in a long queue is not a fruitless start.
        waited = near and code is None and (exchange.folder / WORKERS).exists()
        if not waited and fruitless(self._paths.journal, exchange.starts()):
            return self.give_up(f"{FRUITLESS_STARTS} starts without progress: not requeued again", code or 1)
        _say("the time limit is near: requeued" if near else f"the driver ended with status {code}: requeued")
        requeue(job)
        return 0

    def _ended_cleanly(self) -> bool:
        """Return whether the driver journaled its end."""
        last = last_sequence(self._paths.journal)
        return any(record.kind == "ended" for record in read_journal(self._paths.journal, last - 1))

    def give_up(self, why: str, code: int) -> int:
        """Declare the sweep over for the reason `why`, release the workers, and return `code`."""
        _say(why)
        folder, which = self._exchange.folder, list[str]()
        try:
            self._exchange.end(why)
            which = ["--state=PENDING"]  # running workers see the declaration and end by themselves
        finally:  # also if the disk is full: then running workers are cancelled, too
            try:
                if workers := {job.number for job in jobs_left([folder])[folder] if job.worker}:
                    cancel([*which, *workers])
            except SweeperError as error:
                _say(str(error))
        return code


def _head_options(address: str, token: Path) -> list[str]:
    """Return the options of a Ray head that trains nothing."""
    host, _, port = address.rpartition(":")
    # No CPUs: a trial on the head would compete with the driver for the job's one core.
    return [
        "--head", f"--node-ip-address={host}", f"--port={port}", "--num-cpus=0", "--num-gpus=0",
        "--include-dashboard=false", f"--ray-client-server-port={free_port(host)}", f"--temp-dir={ray_folder(token)}",
    ]  # fmt: skip


def fruitless(journal: Path, starts: Sequence[int]) -> bool:
    """Return whether no trial reported in the last starts; `starts` has the newest record's number at each start."""
    if len(starts) < FRUITLESS_STARTS:
        return False
    # Every driver journals its own start and the starts of trials; neither is progress.
    records = read_journal(journal, starts[-FRUITLESS_STARTS])
    return not any(record.kind in ("replicate", "report") for record in records)


def _say(text: str) -> None:
    print(f"head: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the head's job."""
    folder, command = Path(sys.argv[1]), sys.argv[2:]
    head = HeadJob(Exchange(folder), command, SweepPaths(folder.parent.parent / folder.name))
    try:
        with writing_to(folder, ROOM):
            sys.exit(head.run())
    except SweeperError as error:
        with suppress(OSError):  # the disk may be full
            head.give_up(f"{error.message}; {error.remedy}", 1)
        sys.exit(1)


if __name__ == "__main__":
    main()
