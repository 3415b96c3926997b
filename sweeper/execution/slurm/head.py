"""The head's job: a Ray cluster without cores of its own, and the driver of the sweep, requeued until it is over.

    python -m sweeper.execution.slurm.head FOLDER run SPACE --name NAME …

Slurm sends SIGUSR1 some time before the job's limit: the driver stops cleanly and the job requeues itself. On SIGTERM
it stops too, and leaves it to Slurm whether the job comes back: preempted jobs do, cancelled ones do not.
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
from trainables.files.regular import read_text

POLL_SECONDS = 0.5
LOOK_SECONDS = 3.0
#: So often a head looks whether workers are left; administrators ask for no more than that of squeue.
WORKERS_SECONDS = 60.0

#: After so many starts in a row in which no trial reported a head is not requeued any more, nor are its workers.
FRUITLESS_STARTS = 3

BAD_INPUT = 2


class HeadJob:
    """One start of the head's job."""

    def __init__(self, exchange: Exchange, command: Sequence[str], paths: SweepPaths) -> None:
        """Prepare to run the driver's `command`, of the sweep with these paths."""
        self._exchange, self._command, self._paths = exchange, [*command], paths
        self._notice, self._look_at, self._resubmitted = Notice(), 0.0, list[int]()

    def run(self) -> int:
        """Run the driver to its end; return the exit status."""
        exchange, here = self._exchange, address_here()
        address, job = f"{here}:{free_port(here)}", os.environ.get("SLURM_JOB_ID", str(os.getpid()))
        anew = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
        exchange.begin(anew=anew)
        if anew:  # its workers may be submitted only now
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
        """Announce the head, wait for a worker, and run the driver; return its exit status, `None` if it never ran."""
        while node.alive and self._notice.number is None and not answers(head.address):
            time.sleep(POLL_SECONDS)
        self._exchange.announce(head)
        if not self._wait_for_workers(node, head.address, values):
            return None
        driven = [*self._command, "--ray", head.address, "--executor", "ray"]
        driver, told = subprocess.Popen([sys.executable, "-m", "sweeper", *driven], env=values), False
        while driver.poll() is None:
            self._look_after_workers()
            if self._notice.number is not None and not told:
                driver.terminate()  # once: a second signal would have it leave its trials at once
                told = True
            time.sleep(POLL_SECONDS)
        return driver.returncode

    def _wait_for_workers(self, node: RayNode, address: str, values: dict[str, str]) -> bool:
        """Wait until there is a core to train on; tell whether there is one, and nobody has asked the job to end."""
        ray = str(Path(sys.executable).with_name("ray"))
        _say("waiting for the first worker")
        while self._notice.number is None and node.alive and not self._exchange.stop.exists():
            self._look_after_workers()
            done = subprocess.run([ray, "status", "--address", address], env=values, capture_output=True, text=True)
            if re.search(r"/([1-9]\d*)\.\d+ CPU", done.stdout):
                return True
            time.sleep(LOOK_SECONDS)
        return False

    def _look_after_workers(self) -> None:
        """Now and then, submit workers again where none is left; ask the sweep to stop where that leads nowhere."""
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
        """Decide how it goes on after a driver that ended with `code`, `None` if none was started."""
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
        waited = near and code is None and (exchange.folder / WORKERS).exists()  # as long as the queue of workers is
        if not waited and fruitless(self._paths.journal, exchange.starts()):
            return self.give_up(f"{FRUITLESS_STARTS} starts without progress: not requeued again", code or 1)
        _say("the time limit is near: requeued" if near else f"the driver ended with status {code}: requeued")
        requeue(job)
        return 0

    def _ended_cleanly(self) -> bool:
        """Whether the driver wrote in the journal that it ended."""
        last = last_sequence(self._paths.journal)
        return any(record.kind == "ended" for record in read_journal(self._paths.journal, last - 1))

    def give_up(self, why: str, code: int) -> int:
        """Say that the sweep is over, and why; release the workers, and return `code`."""
        _say(why)
        folder, which = self._exchange.folder, list[str]()
        try:
            self._exchange.end(why)
            which = ["--state=PENDING"]  # those that run see it, and end by themselves
        finally:  # however full the disk is
            try:
                if workers := {job.number for job in jobs_left([folder])[folder] if job.worker}:
                    cancel([*which, *workers])
            except SweeperError as error:
                _say(str(error))
        return code


def _head_options(address: str, token: Path) -> list[str]:
    """Return the options of a Ray head that trains nothing."""
    here, _, port = address.rpartition(":")
    return [
        "--head", f"--node-ip-address={here}", f"--port={port}", "--num-cpus=0", "--num-gpus=0",
        "--include-dashboard=false", f"--ray-client-server-port={free_port(here)}", f"--temp-dir={ray_folder(token)}",
    ]  # fmt: skip


def fruitless(journal: Path, starts: Sequence[int]) -> bool:
    """Return whether no trial has reported since the last starts; `starts` has the newest record's number at each."""
    if len(starts) < FRUITLESS_STARTS:
        return False
    # Every driver writes that it started, and what it started: neither is progress.
    return not any(each.kind in ("replicate", "report") for each in read_journal(journal, starts[-FRUITLESS_STARTS]))


def _say(text: str) -> None:
    print(f"head: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Be the head."""
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
