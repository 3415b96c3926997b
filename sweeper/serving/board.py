"""What a server knows of the sweeps of one output: read from their journals again and again, and shown as HTML.

A sweep that nobody drives and whose journal has not changed costs a look at its folder. Nothing is written there: the
report's pages are each made by a process of its own at a low priority, and kept in the cache. A sweep's folder may be
somebody else's: its own `report.html` is never served, for its scripts would run as ours.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
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
from sweeper.execution.driver.steering import BudgetWatch, WorkingTime
from sweeper.journal.best import Spending
from sweeper.journal.reasons import decision_text, reason_text
from sweeper.journal.records import Failed, Judged, Record, Reported
from sweeper.reporting.html import page_text, write_page
from sweeper.reporting.live import WATCH
from sweeper.reporting.snapshot import Snapshot, left_text, speed_text
from sweeper.reporting.status import FAR_LOOK_SECONDS, LOOK_SECONDS, SweepWatch, running
from sweeper.results.leaderboard import leaderboard
from sweeper.results.results import load
from sweeper.space.spec import Budget
from sweeper.storage.lookup import changed_at, sweep_names
from sweeper.storage.metadata import read_manifest
from sweeper.storage.places import READING, place_of
from trainables.files.atomic import write_text
from trainables.files.stores.base import StoreError

#: Stands in a painted page where the server puts what the journal says now.
LIVE = "<!-- the live part -->"

#: A page is made again after this many seconds, and after PAUSE times what it took, at the earliest.
LEAST_SECONDS, PAUSE = 15.0, 5

#: Trials go first, yet somebody waits: at the lowest priority, beside busy cores, a page of seconds took minutes.
NICENESS = 10

VERSION = version("calibration-sweeper")  # another release makes other pages; to ask takes a millisecond

PAINT = "import sys; from sweeper.serving.board import paint; paint(*sys.argv[1:])"


@dataclass(frozen=True)
class Painted:
    """What a sweep's page said when it was made last.

    Attributes:
        key: of `SweepView`, at that moment; empty where there is no page.
        best: the best value with its interval, `0.047 (95 % 0.031 … 0.086)`; empty where there is none.
        answers: the sentences of its first screen.
    """

    key: str = ""
    best: str = ""
    answers: Sequence[str] = ()


def file_of(output: str, name: str) -> Path:
    """Return where a sweep's page is kept."""
    where = output if ":" in output else str(Path(output).resolve())
    digest = hashlib.sha256(f"{VERSION}\0{where}".encode()).hexdigest()[:12]
    return cache_folder() / "serving" / digest / f"{name}.html"


def painted(output: str, name: str) -> Painted:
    """Return what a sweep's page says; nothing where there is none."""
    try:
        return Painted(**json.loads(file_of(output, name).with_suffix(".json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return Painted()


def paint(name: str, output: str, key: str) -> None:
    """Make a sweep's page, and a file beside it with its answers.

    Raises:
        SweeperError: the sweep cannot be read, or the cache cannot be written.
    """
    from sweeper.reporting.first_screen import FirstScreen
    from sweeper.reporting.page import report
    from sweeper.reporting.sentences import sentences
    from sweeper.results.selection import interval_text, selected

    with load(name, output).snapshot() as frozen:
        shown, found = report(frozen), selected(frozen, leaderboard(frozen))
        best = interval_text(found[1]) if found is not None and found[1].is_bounded else ""
        file = file_of(output, name)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_page("live.html", file, "set SWEEPER_CACHE to a folder of yours", served=True, live=LIVE, **shown)
    first = shown["first"]
    assert isinstance(first, FirstScreen)
    write_text(file.with_suffix(".json"), json.dumps({"key": key, "best": best, "answers": sentences(first)}))


class Painter:
    """Has pages made: of the sweeps that somebody looks at first, then of the newest others.

    Attributes:
        faults: name → why its page could not be made.
    """

    def __init__(self, output: str, unpainted: Callable[[], Iterable[tuple[str, str, bool]]]) -> None:
        """Prepare to make pages of the sweeps in `output`.

        `unpainted` gives those whose pages say less than their journals, the most wanted first: name, key, whether
        nothing more is to come.
        """
        self._output, self._unpainted, self.faults = output, unpainted, dict[str, str]()
        self._tried: dict[str, tuple[str, float]] = {}

    async def work(self) -> None:
        """Make one page after the other, until cancelled."""
        while True:
            name, key = next(filter(self._is_due, self._unpainted()), ("", "", False))[:2]
            if name:
                began = time.monotonic()
                await self._make(name, key)
                now = time.monotonic()
                self._tried[name] = key, now + max(LEAST_SECONDS, PAUSE * (now - began))
            await asyncio.sleep(0.5)

    def _is_due(self, wanted: tuple[str, str, bool]) -> bool:
        """Return whether it is time for a page: for an ended sweep's last at once, for none twice."""
        (name, key, over), now = wanted, time.monotonic()
        tried, due = self._tried.get(name, ("", now))
        return key != tried and (over or now >= due)

    async def _make(self, name: str, key: str) -> None:
        command = [sys.executable, "-P", "-c", f"{WATCH}\n{PAINT}", name, self._output, key]
        process = await asyncio.create_subprocess_exec(
            *command, env=python_environment(), start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        set_niceness(process.pid, NICENESS)
        try:
            assert process.stderr is not None  # standard input stays open: the process ends with this one
            said = (await process.stderr.read()).decode("utf-8", "replace")
            failed = await process.wait()
        except asyncio.CancelledError:
            process.kill()
            raise
        self.faults.pop(name, None)
        if failed:
            self.faults[name] = said.strip().rpartition("\n")[2] or "its process was killed"


#: The latest stops that a sweep's page tells of; the report's table has all.
STOPPED = 8

#: Newest sweeps whose pages are made though nobody looks at them.
UNASKED = 20

#: Between two looks at a sweep in a store that nobody drives: each asks the store for its list of objects.
REST_SECONDS = 60.0

#: Between two looks for sweeps that are new, or gone.
NAMES_SECONDS = 5.0


@dataclass
class SweepView:
    """One sweep at the last look.

    Attributes:
        name: the sweep's.
        word: its state.
        fault: why it cannot be read; empty where it can.
        now: how far it is; None before it was read.
        driver: who runs it now, and where; None where nobody does.
        who: who began it, and when: `ada@host, 2026-11-23 22:57`.
        left: speed and time left, in words.
        spent: hours and price, in words.
        metric: the objective.
        leaders: the best trials: name, value, epochs, configuration.
        stopped: the latest trials that were stopped or failed, the newest first: name, why.
        rehearsal: whether it is one.
        record: number of the newest record.
        over: whether nothing more is to come.
        key: another one each time that the report has something new.
        painted: what the report's page says, from when it was last made.
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
    painted: Painted = field(default_factory=Painted)


class Followed:
    """One sweep that is read as its journal grows."""

    def __init__(self, name: str, output: str) -> None:
        """Open it. Raises SweeperError, or StoreError."""
        self._spending, self._worked = Spending(), WorkingTime()
        self._stopped: deque[tuple[str, str]] = deque(maxlen=STOPPED)
        self.watch = SweepWatch(name, output, folds=(self._spending.apply, self._worked.apply, self._note))
        spec, manifest = self.watch.sweep.spec, read_manifest(self.watch.sweep.paths.manifest, unknown_if_damaged=True)
        began = str(manifest.get("created", ""))[:16].replace("T", " ")
        self._who = ", ".join(filter(None, (str(manifest.get("submitter", "")), began)))
        of_trial = spec.resources.of_trial(gpus=manifest.get("hardware", {}).get("gpus"))
        budget = (spec.budget or Budget()).model_copy(update={"cost": None})  # limits are the driver's concern
        self._budget = BudgetWatch(budget, self._spending, self._worked, of_trial, os.environ)

    def look(self) -> SweepView:
        """Read what is new. Raises as `SweepWatch.read`."""
        watch, spec = self.watch, self.watch.sweep.spec
        now, driver = watch.read()
        left = " · ".join(filter(None, (speed_text(now), left_text(now)))) if driver else ""
        spent = self._budget.spent()
        costs = [f"{duration(self._spending.hours() * 3600)} in trials"]
        costs += [f"{spent['gpu_hours']:.3g} GPU-hours"] if spent["gpu_hours"] else []
        costs += [f"cost {spent['cost']:.2f}"] if spent["cost"] else []
        leaders = [
            (trial_name(at := each.configuration), f"{each.objective:.4f}", each.epochs, watch.sweep.describe(at))
            for each in now.leaders
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
    """All sweeps of an output. One thread looks; any number may read what it saw.

    Attributes:
        seen: name → what was seen of it last, running sweeps first, then the one that began last.
        rows: the table of all sweeps, HTML.
        parts: name → the live part of its page, HTML.
        watchers: name → how many look at it now; the empty name is the table's.
    """

    def __init__(self, output: str) -> None:
        """Prepare to read the sweeps in `output`, a folder or a store. Raises SweeperError where it can be neither."""
        self.output, self.place = output, place_of(output, READING)
        self.seen: dict[str, SweepView] = {}
        self.rows, self.parts = "", dict[str, str]()
        self.watchers = Counter[str]()
        self.seconds = LOOK_SECONDS if self.place.store is None else FAR_LOOK_SECONDS
        self._followed: dict[str, Followed] = {}
        self._marks: dict[str, object] = {}
        self._names: tuple[float, list[str]] = (float("-inf"), [])

    def look(self) -> None:
        """Read what is new of every sweep. A sweep that cannot be read says why; the others do not suffer."""
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
            except Exception as error:  # whatever is in a folder of somebody else's, the others must be seen
                self._followed.pop(name, None)
                tables = not SweepPaths(self.place.folder / name).sweep_file.is_file()
                seen = SweepView(
                    name, "tables only" if tables else "cannot be read", str(error), over=True, key="tables" * tables
                )
                self.parts[name] = page_text("progress.html", seen=seen)
            if self.seen[name] is not seen:  # at once: the first look at large sweeps takes a while
                self.seen[name] = seen
                self._show()

    def _show(self) -> None:
        ordered = sorted(self.seen.values(), key=lambda each: each.driver is None)
        self.rows = page_text("rows.html", sweeps=ordered)

    def unpainted(self) -> list[tuple[str, str, bool]]:
        """Return the sweeps whose pages say less than their journals, those first that somebody looks at: name, key,
        and whether nothing more is to come. Of the others only the newest: the table has their best with its interval.
        """
        asked = [name for name in self.seen if self.watchers[name]]
        found = [self.seen[name] for name in dict.fromkeys([*asked, *[*self.seen][:UNASKED]])]
        return [(each.name, each.key, each.over) for each in found if each.key not in ("", each.painted.key)]

    def _listed(self) -> list[str]:
        (at, names), store = self._names, self.place.store
        if time.monotonic() - at >= (NAMES_SECONDS if store is None else REST_SECONDS):
            try:
                found = sweep_names(self.place.folder) if store is None else filter(self.place.has, store.folders())
                self._names = time.monotonic(), (names := [*filter(is_sweep_name, found)])
            except (SweeperError, StoreError):
                return names  # as they were: a store may be away for a while
        return names

    def _look_at(self, name: str) -> SweepView:
        seen, mark, before = self.seen[name], self._mark(name), self._marks.get(name)
        self._marks[name] = mark
        if not (seen.over and mark == before):
            if name not in self._followed:
                self._followed[name] = Followed(name, self.output)
            seen = self._followed[name].look()
            if seen.over:
                del self._followed[name]  # its trials take memory, and it may rest for years
            seen.key = f"{seen.record}-{seen.over}-{changed_at(self.place.folder / name / RECALIBRATIONS)}"
        seen.painted = painted(self.output, name)
        return seen

    def _mark(self, name: str) -> object:
        """Return what is another each time that there is something new of a sweep that was at rest."""
        if self.place.store is not None:
            return time.monotonic() // REST_SECONDS
        paths = SweepPaths(self.place.folder / name)
        return changed_at(paths.journal), changed_at(paths.root / RECALIBRATIONS), running(paths) is not None
