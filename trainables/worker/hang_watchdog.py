"""How a trial's process ends when it does not end by itself: with its parent, or by its watchdog when it has hung.

The watchdog ends a trial whose process stopped working without ending: a data loader's deadlock, a storage that hangs.

Life is told by the processor time of the main thread, which trains: a thread that waits for something that never
comes uses none, one that trains, evaluates or feeds a GPU always does, and nothing has to be told that it works. Time
in which it waits for a lock does not count: a neighbour has it, who downloads or prepares the data set for all. What
hangs while it computes (an endless loop, a GPU that never answers a thread that spins) looks alive; no watch can tell
that from a long epoch, so it is ended once it has gone far beyond `trial_timeout`.
"""

from __future__ import annotations

import ctypes
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

from trainables.files.atomic import write_text
from trainables.files.locks import seconds_waited
from trainables.files.regular import read_text
from trainables.worker.trial_reports import CRASH, HUNG, Failure, TrialEnded

#: A main thread that uses less than this share of the time has hung: a wait that wakes up every five seconds to look
#: again, as torch's data loader does, takes some 2e-5; 0.3 s of training in ten minutes is enough to be alive.
ALIVE_SHARE = 5e-4

#: How many times `trial_timeout` one step may take: normally a trial ends itself after the epoch that it is in.
OVERTIME = 3.0

#: How often the watch looks within its limit.
LOOKS = 20

LONGEST_LOOK_SECONDS = 5.0

#: How long a thread may take to leave what it waits for; one that waits outside of Python never does, and is killed.
INTERRUPT_SECONDS = 10.0

#: Where a process that has to be killed leaves the failure, in its trial's folder of checkpoints.
HUNG_FILE = "hung.json"


class Watchdog:
    """Watches the main thread while it is inside `watching`, from a separate thread."""

    def __init__(self, silence_seconds: float | None, timeout_seconds: float | None = None) -> None:
        """Set the limits.

        Args:
            silence_seconds: without any work of the main thread after which it has hung; `None` for no limit.
            timeout_seconds: a trial's own limit; a step may take `OVERTIME` as long. `None` for no limit.
        """
        self._silence = silence_seconds
        self._overtime = None if timeout_seconds is None else OVERTIME * timeout_seconds
        self._failure: Failure | None = None

    @contextmanager
    def watching(self, folder: Path | None = None) -> Iterator[None]:
        """Raise TrialEnded in what runs inside when it hangs; kill the process when that does not wake it.

        Args:
            folder: where a killed process leaves its failure, as `HUNG_FILE`; `None` for nowhere.

        Outside the main thread nothing is watched: only the main thread can be interrupted.
        """
        limits = [limit for limit in (self._silence, self._overtime) if limit is not None]
        if not limits or threading.current_thread() is not threading.main_thread():
            yield
            return
        if folder is not None:
            (folder / HUNG_FILE).unlink(missing_ok=True)
        over = threading.Event()
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
        """End the process the hard way."""
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                write_text(folder / HUNG_FILE, json.dumps(failure.having(killed="SIGKILL").to_dict()))
            except OSError as error:
                sys.stderr.write(f"{failure}; the failure could not be written down: {error}\n")
        os.kill(os.getpid(), signal.SIGKILL)


def last_hang(folder: Path) -> Failure | None:
    """Return why the last process of a trial was killed for hanging, once; `None` when it was not."""
    with suppress(OSError, ValueError, TypeError):
        written = read_text(folder / HUNG_FILE)
        (folder / HUNG_FILE).unlink()
        return Failure(**json.loads(written))
    return None


_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def exit_code(pid: int) -> int:
    """Wait for a child's end; return its exit code, negative for the signal that ended it."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status)


def ended_by(code: int) -> Failure:
    """Return how a process ended without an error message, from its `exit_code`."""
    return Failure(CRASH, {"signal": signal.Signals(-code).name} if code < 0 else {"exit_code": code})
