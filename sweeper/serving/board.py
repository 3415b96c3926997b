"""The server's view of all sweeps of one output, read from their journals repeatedly and rendered as HTML.

If a sweep has no driver and its journal has not changed, an update only reads its folder once. Nothing is written into
the folder: each report page is made by a separate process at a low priority and kept in the cache. A sweep's folder may
come from somebody else, so its own `report.html` is never served: its scripts would run with this server's rights.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.core.ids import RECALIBRATIONS, SweepPaths, cache_folder, is_sweep_name, trial_name
from sweeper.core.labels import duration
from sweeper.core.processes import python_environment, set_niceness
from sweeper.journal.best import Spending
from sweeper.journal.reasons import decision_text, reason_text
from sweeper.journal.records import Failed, Judged, Record, Reported
from sweeper.reporting.answering.answers import FirstScreen
from sweeper.reporting.html import page_text, write_page
from sweeper.reporting.live import WATCH
from sweeper.reporting.page import report
from sweeper.reporting.sentences import sentences
from sweeper.reporting.snapshot import Snapshot, left_text, speed_text
from sweeper.reporting.status import FAR_LOOK_SECONDS, LOOK_SECONDS, SweepWatch, running
from sweeper.results.leaderboard import interval_text, leaderboard, selected
from sweeper.results.results import load
from sweeper.storage.lookup import changed_at, sweep_names
from sweeper.storage.metadata import read_manifest
from sweeper.storage.places import READING, place_of
from trainables.files.atomic import write_text
from trainables.files.stores.base import StoreError

#: Mark in a report page that the server replaces by the journal's current state.
LIVE = "<!-- the live part -->"

#: A page is made again after LEAST_SECONDS, or PAUSE times its duration if longer. So pages take at most a fifth of a
#: core.
LEAST_SECONDS, PAUSE = 15.0, 5

#: Priority of page processes. Trials come first, but a reader waits: at the lowest priority (19) on busy cores, a page
#: took minutes instead of seconds.
NICENESS = 10

VERSION = version("calibration-sweeper")  # pages differ between releases; reading the version takes a millisecond

MAKE_PAGE = "import sys; from sweeper.serving.board import make_page; make_page(*sys.argv[1:])"


@dataclass(frozen=True)
class PageContent:
    """Results from a sweep's latest page.

    Attributes:
        key: the `SweepView`'s key when the page was made; empty if there is no page.
        best: the best value with its interval, `0.047 (95 % 0.031 … 0.086)`; empty if there is none.
        answers: sentences of the first screen.
    """

    key: str = ""
    best: str = ""
    answers: Sequence[str] = ()


def page_file(output: str, name: str) -> Path:
    """Return the file of a sweep's page in the cache."""
    where = output if ":" in output else str(Path(output).resolve())
    digest = hashlib.sha256(f"{VERSION}\0{where}".encode()).hexdigest()[:12]
    return cache_folder() / "serving" / digest / f"{name}.html"


def page_content(output: str, name: str) -> PageContent:
    """Return the content of a sweep's page; empty if there is none."""
    try:
        return PageContent(**json.loads(page_file(output, name).with_suffix(".json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):  # the file in the cache is missing or damaged, so the page is made again
        return PageContent()


def make_page(name: str, output: str, key: str) -> None:
    """Make a sweep's page, and a JSON file next to it with its answers.

    Raises:
        SweeperError: the sweep cannot be read, or the cache cannot be written.
    """
    with load(name, output).snapshot() as frozen:
        shown, winner = report(frozen), selected(frozen, leaderboard(frozen))
        best = interval_text(winner) if winner is not None and winner.is_bounded else ""
        file = page_file(output, name)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # pages show results that others may not read
        write_page("live.html", file, "set SWEEPER_CACHE to a folder of yours", served=True, live=LIVE, **shown)
    first = shown["first"]
    assert isinstance(first, FirstScreen)
    write_text(file.with_suffix(".json"), json.dumps({"key": key, "best": best, "answers": sentences(first)}))


class PageMaker:
    """Starts processes that make pages, first for the sweeps that somebody watches, then for the newest others.

    Attributes:
        faults: sweep → why its page could not be made.
    """

    def __init__(self, output: str, outdated: Callable[[], Iterable[tuple[str, str, bool]]]) -> None:
        """Prepare to make pages of the sweeps in `output`.

        Args:
            output: a folder or a store.
            outdated: returns (name, key, whether the sweep is over) for each sweep whose page is out of date, the most
                urgent first.
        """
        self._output, self._outdated, self.faults = output, outdated, dict[str, str]()
        self._tried: dict[str, tuple[str, float]] = {}

    async def work(self) -> None:
        """Make one page after another until cancelled."""
        while True:
            name, key = next(filter(self._is_due, self._outdated()), ("", "", False))[:2]
            if name:
                began = time.monotonic()
                await self._make(name, key)
                now = time.monotonic()
                self._tried[name] = key, now + max(LEAST_SECONDS, PAUSE * (now - began))
            await asyncio.sleep(0.5)

    def _is_due(self, wanted: tuple[str, str, bool]) -> bool:
        """Return whether a page is due: immediately for the last page of an ended sweep, never twice for one key."""
        (name, key, over), now = wanted, time.monotonic()
        tried, due = self._tried.get(name, ("", now))
        return key != tried and (over or now >= due)

    async def _make(self, name: str, key: str) -> None:
        command = [sys.executable, "-P", "-c", f"{WATCH}\n{MAKE_PAGE}", name, self._output, key]
        process = await asyncio.create_subprocess_exec(
            *command, env=python_environment(), start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        set_niceness(process.pid, NICENESS)
        try:
            # Standard input stays open: `WATCH` ends the process when it closes, at the latest with the server.
            assert process.stderr is not None
            said = (await process.stderr.read()).decode("utf-8", "replace")
            failed = await process.wait()
        except asyncio.CancelledError:
            process.kill()
            await process.communicate()
            raise
        self.faults.pop(name, None)
        if failed:
            self.faults[name] = said.strip().rpartition("\n")[2] or "its process was killed"


#: Number of latest stops on a sweep's page; the report's table contains all.
STOPPED = 8

#: Number of newest sweeps whose pages are made even if nobody watches them, because the table shows their best values.
UNASKED = 20

#: Seconds between two reads of a sweep in a store without a driver. Each read lists the store's objects.
REST_SECONDS = 60.0

#: Seconds between two checks for new and removed sweeps.
NAMES_SECONDS = 5.0


@dataclass
class SweepView:
    """The state of one sweep at the last read.

    Attributes:
        name: name of the sweep.
        word: state of the sweep.
        fault: why the sweep cannot be read; empty if it can.
        now: its progress; None before the first read.
        driver: host and process of the driver; None if none runs.
        who: user who started it, and time: `ada@host, 2026-11-23 22:57`.
        left: text with speed and time left.
        spent: text with the hours of trials and of GPUs.
        metric: the objective.
        leaders: (name, value, epochs, configuration) of the best trials.
        stopped: (name, reason) of the latest stopped or failed trials, newest first.
        rehearsal: whether the sweep is a rehearsal.
        record: number of the newest record.
        over: whether nothing more will happen.
        key: value that changes whenever a new report would differ.
        page: results from the report's latest page.
    """

    name: str
    word: str = "is being read"
    fault: str = ""
    now: Snapshot | None = None
    driver: str | None = None
    who: str = ""
    left: str = ""
    spent: str = ""
    metric: str = ""
    leaders: Sequence[tuple[str, str, int, str]] = ()
    stopped: Sequence[tuple[str, str]] = ()
    rehearsal: bool = False
    record: int = -1
    over: bool = False
    key: str = ""
    page: PageContent = field(default_factory=PageContent)


class FollowedSweep:
    """A sweep whose journal is read while it grows."""

    def __init__(self, name: str, output: str) -> None:
        """Open the sweep. Raises SweeperError, or StoreError."""
        self._spending = Spending()
        self._stopped: deque[tuple[str, str]] = deque(maxlen=STOPPED)
        self.watch = SweepWatch(name, output, folds=(self._spending.apply, self._note))
        spec, manifest = self.watch.sweep.spec, read_manifest(self.watch.sweep.paths.manifest, unknown_if_damaged=True)
        began = str(manifest.get("created", ""))[:16].replace("T", " ")
        self._who = ", ".join(filter(None, (str(manifest.get("submitter", "")), began)))
        self._gpu = spec.resources.of_trial(gpus=manifest.get("hardware", {}).get("gpus"))["gpu"]

    def look(self) -> SweepView:
        """Read new records and return the sweep's view. Raises what `SweepWatch.read` raises."""
        watch, spec = self.watch, self.watch.sweep.spec
        now, driver = watch.read()
        left = " · ".join(filter(None, (speed_text(now), left_text(now)))) if driver else ""
        costs = [f"{duration(self._spending.hours() * 3600)} in trials"]
        gpu_hours = self._spending.gpu_hours(self._gpu)
        costs += [f"{gpu_hours:.3g} GPU-hours"] if gpu_hours else []
        leaders = [
            (trial_name(at := leader.configuration), f"{leader.objective:.4f}", leader.epochs, watch.sweep.describe(at))
            for leader in now.leaders
        ]
        return SweepView(
            watch.sweep.name, watch.word(driver), "", now, driver, self._who, left, " · ".join(costs),
            spec.objective.metric, leaders, [*self._stopped][::-1], spec.is_rehearsal, watch.state.sequence,
            watch.is_over(driver),
        )  # fmt: skip

    def _note(self, record: Record) -> None:
        body = record.body
        if isinstance(body, Failed) and body.final:
            self._stopped.append((trial_name(body.configuration), reason_text(body.failure)))
        elif isinstance(body, Reported | Judged) and body.decision and body.decision.kind in ("stop", "fail"):
            failure = body.report.failure if isinstance(body, Reported) else None
            said = reason_text(failure) if failure else decision_text(body.decision)
            self._stopped.append((trial_name(body.configuration), said))


class Board:
    """All sweeps of an output. One thread reads journals, while any number of threads can read the attributes.

    Attributes:
        seen: sweep → its last view, the latest first.
        rows: the table of all sweeps as HTML, running sweeps first.
        parts: sweep → the live part of its page as HTML.
        watchers: sweep → number of its watchers; the empty name means the table.
    """

    def __init__(self, output: str) -> None:
        """Prepare to read the sweeps in `output`, a folder or a store. Raises SweeperError if it is neither."""
        self.output, self.place = output, place_of(output, READING)
        self.seen: dict[str, SweepView] = {}
        self.rows, self.parts = "", dict[str, str]()
        self.watchers = Counter[str]()
        self.seconds = LOOK_SECONDS if self.place.store is None else FAR_LOOK_SECONDS
        self._followed: dict[str, FollowedSweep] = {}
        self._marks: dict[str, object] = {}
        self._names: tuple[float, list[str]] = (float("-inf"), [])

    def look(self) -> None:
        """Read new records of every sweep. If a sweep cannot be read, its view states why."""
        names = self._listed()
        self.seen = {name: self.seen.get(name, SweepView(name)) for name in names}
        for gone in self.parts.keys() - set(names):
            del self.parts[gone]
            self._followed.pop(gone, None)
        self._show()
        for name in names:
            try:
                seen = self._look_at(name)
                self.parts[name] = page_text("progress.html", seen=seen)
            except Exception as error:  # a damaged or foreign folder must not hide the other sweeps
                self._followed.pop(name, None)
                tables = not SweepPaths(self.place.folder / name).sweep_file.is_file()
                seen = SweepView(
                    name, "tables only" if tables else "cannot be read", str(error), over=True, key="tables" * tables
                )
                self.parts[name] = page_text("progress.html", seen=seen)
            if self.seen[name] is not seen:  # shown at once, since the first read of large sweeps takes a while
                self.seen[name] = seen
                self._show()

    def _show(self) -> None:
        ordered = sorted(self.seen.values(), key=lambda sweep: sweep.driver is None)
        self.rows = page_text("rows.html", sweeps=ordered)

    def outdated(self) -> list[tuple[str, str, bool]]:
        """Return (name, key, whether it is over) for each sweep whose page is out of date, watched sweeps first.

        Of the sweeps that nobody watches, only the UNASKED newest are returned.
        """
        asked = [name for name in self.seen if self.watchers[name]]
        asked_first = [self.seen[name] for name in dict.fromkeys([*asked, *[*self.seen][:UNASKED]])]
        return [(sweep.name, sweep.key, sweep.over) for sweep in asked_first if sweep.key not in ("", sweep.page.key)]

    def _listed(self) -> list[str]:
        (at, names), store = self._names, self.place.store
        if time.monotonic() - at >= (NAMES_SECONDS if store is None else REST_SECONDS):
            try:
                folders = sweep_names(self.place.folder) if store is None else filter(self.place.has, store.folders())
                self._names = time.monotonic(), (names := [*filter(is_sweep_name, folders)])
            except (SweeperError, StoreError):
                return names  # the last known names: a store may be unavailable for a while
        return names

    def _look_at(self, name: str) -> SweepView:
        seen, mark, before = self.seen[name], self._mark(name), self._marks.get(name)
        self._marks[name] = mark
        if not (seen.over and mark == before):
            if name not in self._followed:
                self._followed[name] = FollowedSweep(name, self.output)
            seen = self._followed[name].look()
            if seen.over:
                del self._followed[name]  # its trials take memory, and the sweep may never change again
            seen.key = f"{seen.record}-{seen.over}-{changed_at(self.place.folder / name / RECALIBRATIONS)}"
        seen.page = page_content(self.output, name)
        return seen

    def _mark(self, name: str) -> object:
        """Return a value that changes when an ended sweep gets new records or files."""
        if self.place.store is not None:
            return time.monotonic() // REST_SECONDS
        paths = SweepPaths(self.place.folder / name)
        return changed_at(paths.journal), changed_at(paths.root / RECALIBRATIONS), running(paths) is not None
