"""Notifies webhooks and commands of a sweep's end, failed trials and an exhausted budget, and never fails the sweep.

A message is one JSON object with `event`, `sweep`, `text` (a sentence that chat services show as it is), `trials`,
`best`, `results`, `host`, `time`, `rehearsal` and, by event, `outcome`, `failures` or `reason`. Every target has a
thread of its own that delivers one message after the other, a POST or a command with the message on its standard input,
so neither the sweep nor another target waits for one that hangs; what could not be delivered is logged and told at the
end. A driver that is killed tells nobody.

Addresses are secrets. So what is said of a failure is put together from status codes and system errors alone, never
from the text of an exception, which may repeat the address.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from http.client import HTTPException

from sweeper.core.errors import SweeperError
from sweeper.core.ids import trial_name
from sweeper.journal.records import Failed, Record, Reported
from sweeper.journal.state import FAILED, SweepState
from sweeper.monitoring.snapshot import Snapshot, Tally, best_text, counts_text
from sweeper.space.notify import Target
from sweeper.storage.sweeps import Sweep
from sweeper.text.display import redact
from sweeper.text.labels import duration
from trainables.files.stores.base import is_store_address

#: Seconds to wait for a webhook's answer: receivers acknowledge first and work afterwards.
TRY_SECONDS = 5.0

#: Seconds before a webhook that was busy or unreachable is retried.
PAUSES = (1.0, 2.0)

#: Seconds after which a command and its children are killed.
COMMAND_SECONDS = 10.0

#: HTTP statuses worth a retry.
_PASSING = (429, 500, 502, 503, 504)


def deliver(target: Target, message: bytes) -> str | None:
    """Hand a message, JSON, to a target; return why it could not be delivered, without secrets, or `None`."""
    return _run(target.command, message) if target.command else _post(target.url, message)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a webhook's secret belongs to the configured address only."""

    def redirect_request(self, *request: object) -> None:
        return None


def _post(url: str, message: bytes) -> str | None:
    opener = urllib.request.build_opener(_NoRedirect)
    headers = {"Content-Type": "application/json", "User-Agent": "calibration-sweeper"}
    reason: str | None = None
    for pause in (*PAUSES, None):
        request = urllib.request.Request(url, data=message, headers=headers, method="POST")
        try:
            with opener.open(request, timeout=TRY_SECONDS):
                return None
        except urllib.error.HTTPError as error:
            reason = f"it returned HTTP {error.code}"
            error.close()
            if error.code not in _PASSING:
                return reason
        except (OSError, HTTPException) as error:
            reason = _system_reason(error)
        except ValueError:
            return "its address is invalid"
        if pause is not None:
            time.sleep(pause)
    return reason


def _system_reason(error: Exception) -> str:
    """Return the system's message for a failed connection."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"it did not answer within {TRY_SECONDS:g} s"
    if isinstance(cause, OSError) and cause.errno is not None and cause.strerror:
        return cause.strerror
    return type(cause).__name__


def _run(command: Sequence[str], message: bytes) -> str | None:
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # what it prints may hold its secrets, and this process's output is a log
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return error.strerror or type(error).__name__
    try:
        process.communicate(message, timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"it ran longer than {COMMAND_SECONDS:g} s and was killed"
    return f"it exited with status {process.returncode}" if process.returncode else None


END, FAILURE, BUDGET = "end", "failure", "budget"

#: Seconds between two notifications of failures: the first is sent at once, later ones together.
FAILURE_SECONDS = 60.0

FAILURES_A_MESSAGE = 20

#: Seconds that the end of a sweep waits for deliveries: three tries of a webhook that hangs.
CLOSING_SECONDS = 20.0

_log = logging.getLogger("sweeper.monitoring.notifications")


class Notifier:
    """A sink of the driver. As a context manager, reports an error that ends the sweep and waits for deliveries."""

    def __init__(
        self,
        targets: Iterable[Target],
        sweep: Sweep,
        state: SweepState,
        address: str,
        *,
        send: Callable[[Target, bytes], str | None] = deliver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to notify `targets` about `sweep`.

        Args:
            targets: where messages go; none is fine.
            sweep: the sweep.
            state: of its trials, kept up to date by the driver.
            address: where its results are, as a user writes it.
            send: delivers a message and returns why it could not.
            clock: seconds.
        """
        self._sweep, self._state, self._address, self._clock = sweep, state, address, clock
        self._named = address if is_store_address(address) else sweep.paths.in_commands
        self._mail = [_Courier(target, send) for target in targets]
        self._began = clock()
        self._failed: dict[int, dict[str, str]] = {}
        self._told = -FAILURE_SECONDS
        self._ended = False

    def __enter__(self) -> Notifier:
        """Begin."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Report an error that was not reported yet, and leave; deliveries that hang are abandoned."""
        if isinstance(error, Exception) and not self._ended:
            reason = redact(error.message if isinstance(error, SweeperError) else f"{type(error).__name__}: {error}")
            text = f"{self._sweep.name} failed: {reason}"
            self._tell((FAILURE, END), text, outcome="failed", reason=reason)
        self.wait()

    def append(self, record: Record) -> None:
        """Record a trial's final failure."""
        if isinstance(record.body, Failed | Reported):
            index = record.body.configuration
            trial = self._state.trials[index]
            if trial.status == FAILED:
                reason = redact(trial.stop_reason or trial.error or "")
                self._failed[index] = {"trial": trial_name(index), "kind": trial.stop_kind or "", "reason": reason}

    def flush_if_due(self) -> None:
        """Send failures when a notification is due."""
        if self._failed and self._clock() - self._told >= FAILURE_SECONDS:
            self._tell_failures()

    def budget_reached(self, reason: str) -> None:
        """Report that the budget is exhausted."""
        self._tell((BUDGET,), f"{self._sweep.name}: {reason}", reason=reason)

    def ended(self, outcome: str, reason: str | None = None) -> None:
        """Report the sweep's end: `finished`, `stopped` or `interrupted`, and why if it was stopped."""
        if self._failed:
            self._tell_failures()
        self._ended = True
        now = self._snapshot()
        text = f"{self._sweep.name} {outcome} after {duration(self._clock() - self._began)}: {counts_text(now.counts)}"
        if now.best is not None:
            named = f"{trial_name(now.best.configuration)} {self._sweep.describe(now.best.configuration)}"
            text += f"; {best_text(now.best, self._sweep.spec.objective.metric)}: {named}"
        left = bool(self._state.unfinished())
        more = {"resume": f"sweeper resume {self._named}"} if left else {}
        self._tell((END,), text, outcome=outcome, reason=reason, **more)

    def wait(self, seconds: float = CLOSING_SECONDS) -> list[str]:
        """Wait up to `seconds` for deliveries; return a sentence for each target that missed a message."""
        until = time.monotonic() + seconds
        for courier in self._mail:  # all of them first: one that hangs takes no time of the others
            courier.no_more()
        return [note for courier in self._mail for note in courier.close(until)]

    def _tell_failures(self) -> None:
        self._told = self._clock()
        first, *_ = failures = list(self._failed.values())
        self._failed = {}
        others = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
        text = f"{self._sweep.name}: {first['trial']} failed ({first['kind']}): {first['reason']}{others}"
        self._tell((FAILURE,), text, failures=failures[:FAILURES_A_MESSAGE], failed=len(failures))

    def _tell(self, events: Sequence[str], text: str, **more: object) -> None:
        wanted = [courier for courier in self._mail if not courier.target.on.isdisjoint(events)]
        if wanted:
            message = json.dumps(self._message(events[0], text, more), ensure_ascii=False).encode()
            for courier in wanted:
                courier.post(events[0], message)

    def _message(self, event: str, text: str, more: Mapping[str, object]) -> dict[str, object]:
        now = self._snapshot()
        best = now.best and {
            "trial": trial_name(now.best.configuration),
            "metric": self._sweep.spec.objective.metric,
            "value": now.best.objective,
            "epochs": now.best.epochs,
            "configuration": self._sweep.describe(now.best.configuration),
        }
        return {
            "event": event,
            "sweep": self._sweep.name,
            "text": text,
            **more,
            "trials": now.counts,
            "best": best,
            "results": self._address,
            "host": socket.gethostname(),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "rehearsal": self._sweep.spec.is_rehearsal,
        }

    def _snapshot(self) -> Snapshot:
        return Tally(self._state, self._sweep.spec.schedule).snapshot()


class _Courier:
    """Delivers one target's messages, in order, in a separate thread with bounded waits."""

    def __init__(self, target: Target, send: Callable[[Target, bytes], str | None]) -> None:
        self.target, self._send = target, send
        self._queue: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._missed: list[str] = []
        self._current = ""

    def post(self, event: str, message: bytes) -> None:
        """Queue a message and return at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"notify {self.target.label}", daemon=True)
            self._thread.start()
        self._queue.put((event, message))

    def no_more(self) -> None:
        """Let the thread end after the last delivery."""
        if self._thread is not None:
            self._queue.put(None)

    def close(self, until: float) -> list[str]:
        """Wait for all deliveries or until `time.monotonic() == until`; return what was missed, once."""
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
            if self._thread.is_alive():
                self._miss(self._current, "not delivered in time")
            self._thread = None
        missed, self._missed = self._missed, []
        return missed

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            self._current, message = item
            try:
                reason = self._send(self.target, message)
            except Exception as error:  # whatever it is, it is no reason for a sweep to stop
                reason = type(error).__name__
            if reason is not None:
                self._miss(self._current, reason)

    def _miss(self, event: str, reason: str) -> None:
        sentence = f"{self.target.label} did not receive the notification of {event}: {reason}"
        _log.warning("%s", sentence)
        self._missed.append(sentence)
