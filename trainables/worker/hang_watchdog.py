"""End a trial's process that hangs.

The watchdog ends a process that stopped working without ending, for example in a data loader's deadlock or on a storage
that hangs.

It measures the processor time of the main thread, which trains. A thread that waits for something that never comes uses
none. A thread that trains, evaluates or feeds a GPU always uses some, so no code has to report that it works. Waiting
for a lock does not count, since another process then downloads or prepares the data set for all. A process that hangs
while it computes (an endless loop, a spinning wait for a GPU) looks alive. Nothing distinguishes that from a long
epoch, so it is ended only once it has gone far beyond `trial_timeout`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from trainables.files.atomic import read_text, write_text
from trainables.files.locks import seconds_waited
from trainables.worker.trial_reports import CRASH, HUNG, Failure, TrialEnded

#: A main thread that uses less than this share of the time counts as hanging. A wait that wakes up every five seconds,
#: as torch's data loader does, uses some 2e-5; 0.3 s of training in ten minutes is enough to count as alive.
ALIVE_SHARE = 5e-4

#: Multiple of `trial_timeout` that one step may take: a trial normally ends itself after its current epoch.
OVERTIME = 3.0

#: Number of samples of the processor time within the limit, so that a hang is noticed at most 5 % late.
LOOKS = 20

LONGEST_LOOK_SECONDS = 5.0

#: Time for the main thread to react to the signal. A thread that waits outside of Python never reacts, and its process
#: is killed.
INTERRUPT_SECONDS = 10.0

#: File in the trial's folder of checkpoints in which a process that must be killed leaves its failure.
HUNG_FILE = "hung.json"


class Watchdog:
    """Watches the main thread inside `watching`, from a separate thread."""

    def __init__(self, silence_seconds: float | None, timeout_seconds: float | None = None) -> None:
        """Set the limits.

        Args:
            silence_seconds: time without work after which the main thread counts as hanging; `None` for no limit.
            timeout_seconds: the trial's time limit; a step may take `OVERTIME` times as long. `None` for no limit.
        """
        self._silence = silence_seconds
        self._overtime = None if timeout_seconds is None else OVERTIME * timeout_seconds
        self._failure: Failure | None = None

    @contextmanager
    def watching(self, folder: Path | None = None) -> Iterator[None]:
        """Raise TrialEnded inside the context if it hangs, and kill the process if that has no effect.

        Outside the main thread nothing is watched, because only the main thread can be interrupted.

        Args:
            folder: folder in which a killed process leaves its failure, as `HUNG_FILE`; `None` for nowhere.
        """
        limits = [limit for limit in (self._silence, self._overtime) if limit is not None]
        if not limits or threading.current_thread() is not threading.main_thread():
            yield
            return
        if folder is not None:
            (folder / HUNG_FILE).unlink(missing_ok=True)
        over = threading.Event()
        # A signal, because only a signal handler can raise in the main thread while it waits.
        before = signal.signal(signal.SIGUSR2, self._interrupt)
        thread = threading.Thread(target=self._watch, args=(over, min(limits), folder), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            signal.signal(signal.SIGUSR2, before)

    def _watch(self, over: threading.Event, shortest: float, folder: Path | None) -> None:
        main = threading.main_thread().ident
        assert main is not None
        clock = time.pthread_getcpuclockid(main)
        pause = min(shortest / LOOKS, LONGEST_LOOK_SECONDS)
        began = time.monotonic() - seconds_waited(main)
        looks = deque([(began, time.clock_gettime(clock))])
        while not over.wait(pause):
            now, used = time.monotonic() - seconds_waited(main), time.clock_gettime(clock)
            looks.append((now, used))
            # Keep one sample older than the limit, so that the window spans all of it.
            while self._silence is not None and len(looks) > 2 and looks[1][0] <= now - self._silence:
                looks.popleft()
            silent = now - looks[0][0]
            failure = self._fault(silent if used - looks[0][1] < ALIVE_SHARE * silent else 0.0, now - began)
            if failure is not None:
                self._failure = failure
                signal.pthread_kill(main, signal.SIGUSR2)
                if not over.wait(INTERRUPT_SECONDS):
                    self._kill(failure, folder)

    def _fault(self, silent: float, step: float) -> Failure | None:
        if self._silence is not None and silent >= self._silence:
            return Failure(HUNG, {"silent": silent, "hang_timeout": self._silence})
        if self._overtime is not None and step > self._overtime:
            return Failure(HUNG, {"step": step, "times": OVERTIME, "limit": self._overtime})
        return None

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        failure = self._failure or Failure(HUNG)
        if frame is not None:
            code = frame.f_code
            failure = failure.having(function=code.co_name, file=code.co_filename, line=frame.f_lineno)
        raise TrialEnded(failure)

    def _kill(self, failure: Failure, folder: Path | None) -> None:
        """Kill this process, after writing the failure where the driver finds it."""
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                write_text(folder / HUNG_FILE, json.dumps(failure.having(killed="SIGKILL").to_dict()))
            except OSError as error:
                sys.stderr.write(f"{failure}; the failure could not be written to {folder}: {error}\n")
        os.kill(os.getpid(), signal.SIGKILL)


def last_hang(folder: Path) -> Failure | None:
    """Return, once, why the last process of a trial was killed for hanging; `None` if it was not."""
    # A file that is missing, or that someone else wrote, says nothing about a hang.
    with suppress(OSError, ValueError, TypeError):
        written = read_text(folder / HUNG_FILE)
        (folder / HUNG_FILE).unlink()
        return Failure(**json.loads(written))
    return None


def ended_by(code: int) -> Failure:
    """Return the failure of a process that ended without a message, from its exit code."""
    return Failure(CRASH, {"signal": signal.Signals(-code).name} if code < 0 else {"exit_code": code})
