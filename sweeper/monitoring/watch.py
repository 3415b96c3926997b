"""`sweeper status --watch`: shows sweeps that other processes drive until their drivers end.

One sweep is followed through its journal, wherever that lies: in a folder, or in a store, from which what is new is
fetched at each look. Nothing is written, so any number of people may watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sweeper.journal.journal import JournalTail
from sweeper.journal.records import Attempt, Record
from sweeper.journal.state import FAILED, SweepState
from sweeper.monitoring.live import PLAIN_LINE_SECONDS
from sweeper.monitoring.snapshot import Snapshot, Tally, progress_line, progress_panel
from sweeper.monitoring.status import running, status_of, statuses_table
from sweeper.storage.lease import holder
from sweeper.storage.lookup import find_sweep, sweep_names
from sweeper.storage.places import READING, local_copies, local_copy, place_of, split_name
from sweeper.storage.store_lease import stored_holder
from sweeper.storage.sweeps import Sweep, open_sweep
from trainables.files.stores.base import is_store_address

LOOK_SECONDS = 1.0
"""Seconds between two checks of a local folder."""

FAR_LOOK_SECONDS = 5.0
"""Seconds between two checks of a store or a cluster: each queries a server."""

UNDRIVEN_LOOKS = 3
"""Looks in a row without a driver before an unfinished sweep is given up: drivers take their lease
moments after they create the folder."""


@dataclass(frozen=True)
class Look:
    """The result of one look.

    Attributes:
        panel: for terminals.
        line: the same in a line, for everything else.
        over: whether there is nothing more to come.
        complete: whether, then, every trial has ended and none has failed.
    """

    panel: RenderableType
    line: str
    over: bool
    complete: bool = True


class SweepWatch:
    """One sweep, updated at each look."""

    def __init__(self, name: str, output: str, clock: Callable[[], float] = time.time) -> None:
        """Find the sweep `name` in `output`, a folder or a store; `clock` gives Unix time in seconds.

        Raises SweeperError when there is none.
        """
        self._name, self._output, self._clock = name, output, clock
        self.seconds = FAR_LOOK_SECONDS if is_store_address(output) or is_store_address(name) else LOOK_SECONDS
        self.sweep: Sweep = open_sweep(*local_copy(name, output, tables=False))
        self._state = SweepState(len(self.sweep.configurations))
        self._tally = Tally(self._state, self.sweep.spec.schedule)
        self._tail = JournalTail(self.sweep.paths.journal)
        self._began, self._before = clock(), 0.0
        self._undriven = 0

    def look(self) -> Look:
        """Read what is new. Raises SweeperError on a damaged journal or a sweep that is gone, StoreError of a store."""
        find_sweep(*local_copy(self._name, self._output, tables=False))
        for record in self._tail.read():
            self._apply(record)
        driver = running(self.sweep.paths)
        self._undriven = 0 if driver else self._undriven + 1
        over = driver is None and (self._state.outcome is not None or self._undriven >= UNDRIVEN_LOOKS)
        now = self._snapshot(driver)
        complete = not self._state.unfinished() and not now.counts[FAILED]
        heading = f"{self.sweep.name} · {self._word(driver)}" + (f" · {driver}" if driver else "")
        heading += " · rehearsal" if self.sweep.spec.is_rehearsal else ""
        metric = self.sweep.spec.objective.metric
        panel = Group(Text(heading, style="bold"), progress_panel(now, metric, self.sweep.describe))
        return Look(panel, f"{heading} · {progress_line(now, metric)}", over, complete)

    def _apply(self, record: Record) -> None:
        if isinstance(record.body, Attempt):
            # Throughput is this driver's: what earlier ones trained, and pauses between them, do not count.
            self._began = record.time
            self._before = sum(trial.epochs_trained for trial in self._state.trials.values())
        self._state.apply(record)

    def _snapshot(self, driver: str | None) -> Snapshot:
        until = self._clock() if driver and self._state.outcome is None else self._state.updated_at or self._began
        seconds = max(0.0, until - self._began)
        return self._tally.snapshot(seconds=seconds, epochs_before=self._before)

    def _word(self, driver: str | None) -> str:
        if self._state.outcome is not None:
            return f"{self._state.outcome}, writing tables and report" if driver else self._state.outcome
        if driver is None:
            return "interrupted" if self._undriven >= UNDRIVEN_LOOKS else "no driver yet"
        return "running" if self._state.attempt else "starting"


def watch(
    look: Callable[[], Look],
    seconds: float,
    console: Console,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Look | None:
    """Show what `look` sees until it is over; return the last look, or `None` after Ctrl-C.

    Args:
        look: sees the progress of a sweep.
        seconds: from one look to the next.
        console: a terminal is redrawn; elsewhere a line is printed at most every ten seconds, and only what is new.
        sleep: waits for the next look.
        clock: seconds.
    """
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                while True:
                    seen = look()
                    live.update(seen.panel, refresh=True)
                    if seen.over:
                        return seen
                    sleep(seconds)
        printed, last = float("-inf"), ""
        while True:
            seen = look()
            if seen.line != last and (seen.over or clock() - printed >= PLAIN_LINE_SECONDS):
                console.print(seen.line, markup=False, soft_wrap=True)
                printed, last = clock(), seen.line
            if seen.over:
                return seen
            sleep(seconds)
    except KeyboardInterrupt:
        return None


def look_at_all(output: str) -> Callable[[], Look]:
    """Return a function that checks all sweeps of `output`: over when no driver runs."""

    def look() -> Look:
        folder = local_copies(output)
        driven = [name for name in sweep_names(folder) if running(find_sweep(name, folder))]
        line = f"{len(driven)} sweeps running: {', '.join(driven)}" if driven else "no sweep is running"
        return Look(statuses_table(status_of(folder)), line, over=not driven)

    return look


def local_log(name: str, output: str, *, follow: bool, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Yield what a sweep's log holds, and with `follow` what is added to it until its driver has ended.

    Raises SweeperError when there is no such sweep.
    """
    last, where = split_name(name, output)
    place = place_of(where, READING)
    store = place.store.child(last) if place.store is not None else None
    seen = 0
    while True:
        paths = find_sweep(*local_copy(name, output, tables=False))
        driven = (holder(paths.lease) if store is None else stored_holder(store)) is not None
        text = paths.log.read_text(errors="replace") if paths.log.exists() else ""
        if len(text) > seen:
            yield text[seen:]
            seen = len(text)
        if not follow or not driven:
            return
        sleep(LOOK_SECONDS)
