"""The progress of sweeps, read once or continuously. It needs only their journals, even if the driver died.

`sweeper status --watch` follows a sweep's journal in a folder or in a store. From a store, new records are fetched at
each update. Nothing is written, so any number of people can watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, trial_name
from sweeper.core.processes import prepare
from sweeper.journal.journal import JournalTail, read_journal
from sweeper.journal.records import Attempt, Record
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, FAILED, SweepState, fold
from sweeper.reporting.live import PLAIN_LINE_SECONDS
from sweeper.reporting.snapshot import Snapshot, Tally, progress_line, progress_panel
from sweeper.scheduling.base import audit, narrow_decisions
from sweeper.scheduling.contenders import audit_rounds
from sweeper.scheduling.order import OrderAudit, audit_order
from sweeper.search.base import audit_suggestions
from sweeper.space.loading import searcher_for
from sweeper.space.spec import final_stage, spec_of
from sweeper.storage.lease import LEASE, holder, holder_of_copy, process_of
from sweeper.storage.lookup import Entry, find_sweep, sweep_names, unreadable_sweeps
from sweeper.storage.places import local_copies, local_copy, stored_predictions
from sweeper.storage.sweeps import Sweep, edited, open_sweep
from trainables.files.atomic import read_text
from trainables.files.stores.base import is_store_address

#: State of a sweep of which only the tables were copied.
TABLES_ONLY = "tables only"


@dataclass(frozen=True)
class SweepStatus:
    """The status of one sweep.

    Attributes:
        sweep: name of the sweep.
        state: `running`, `finished`, `stopped`, `interrupted`, or `tables only` if there is no journal.
        trials: number of configurations.
        counts: trials by status, e.g. `{"completed": 8, "early_stopped": 38}`.
        left: number of trials that wait, run or were interrupted.
        metric: the objective.
        best: best value of the objective; None before the first.
        so_far: whether no trial has completed, so that the best value comes from a trial in training.
        driver: host and process of the driver; None if none runs.
        rehearsal: whether the sweep is a rehearsal.

    Example:
        >>> SweepStatus("quickstart", "tables only").row()[:3]
        ['quickstart', 'tables only', '–']
    """

    sweep: str
    state: str
    trials: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    left: int = 0
    metric: str = ""
    best: float | None = None
    so_far: bool = False
    driver: str | None = None
    rehearsal: bool = False

    def row(self) -> list[str]:
        """Return the cells of a table."""
        if not self.counts:
            return [self.sweep, self.state, *["–"] * 7]
        best = "–"
        if self.best is not None:
            best = f"{self.metric} {self.best:.4f}{' so far' if self.so_far else ''}"
        numbers = [self.trials, *(self.counts[name] for name in (COMPLETED, EARLY_STOPPED, FAILED)), self.left]
        word = f"{self.state} (rehearsal)" if self.rehearsal else self.state
        return [self.sweep, word, *map(str, numbers), best, self.driver or "–"]


def status_of(output: Path, name: str | None = None) -> list[SweepStatus]:
    """Return the status of every sweep in `output`, or only of `name`. Raises SweeperError if it cannot be read."""
    if name is not None:
        return [_status(name, output)]
    statuses = [_status_or_fault(sweep, output) for sweep in sweep_names(output)]
    refused = unreadable_sweeps(output).items()
    return statuses + [SweepStatus(sweep, f"cannot be read: {reason}") for sweep, reason in refused]


def _status_or_fault(name: str, output: Path) -> SweepStatus:
    try:
        return _status(name, output)
    except (SweeperError, PermissionError) as error:  # one damaged sweep must not hide the others
        return SweepStatus(name, f"cannot be read: {str(error).splitlines()[0]}")


#: Share of an objective by which a trial can differ beside other lanes, because they round differently. Eight resnet8
#: differed by up to 4.7 % in their first three epochs (median .4 %), since batch norm amplifies last digits; twelve
#: mlps did not differ.
LANES_DIFFER = 0.05

#: Least widths of columns that can be wrapped; an `interrupted` stays whole.
LEAST_WIDTHS = {"sweep": 8, "state": 11}


def statuses_table(statuses: Iterable[SweepStatus], entries: Mapping[str, Entry] | None = None) -> Table:
    """Return one row per sweep: trials by status, best value, driver. `entries` adds date and size, latest first."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    shown, known = [*statuses], entries or {}
    driven = any(status.driver for status in shown) or not known
    headings = ["sweep", "state", "trials", "finished", "stopped early", "failed", "left", "best"]
    for heading in (*headings, *(["driver"] * driven), *(("began (UTC)", "size") if known else ())):
        # On a narrow terminal these continue on the next line, so that states and numbers stay whole.
        is_long = heading in ("sweep", "state", "stopped early", "best", "driver")
        table.add_column(heading, no_wrap=not is_long, overflow="fold", min_width=LEAST_WIDTHS.get(heading))
    places = {name: at for at, name in enumerate(known)}
    for status in sorted(shown, key=lambda one: places.get(one.sweep, len(places))):
        entry = known.get(status.sweep)
        began = () if entry is None else entry.row()[::2]
        table.add_row(*status.row()[: len(headings) + driven], *began)
    return table


def audit_sweep(name: str, output: Path) -> tuple[list[str], list[str]]:
    """Recompute journaled decisions and suggestions, and look for lost files. Return the checks and the differences."""
    # The last space that a driver checked is in the journal, and `edited` compares with it; looking up its names again
    # would import torch.
    sweep = open_sweep(name, output, checked=False)
    records = [*read_journal(sweep.paths.journal)]  # parsing takes longer than all of the checks
    said, differences = _audit_decisions(sweep, records)
    if sweep.spec.replicates.at_most is not None:
        rounds, others = audit_rounds(
            lambda values: final_stage(spec_of(values, sweep.name)), records, len(sweep.configurations)
        )
        said.append(f"{rounds} rounds of fresh seeds recomputed from the records before them, {len(others)} differ")
        differences += others
    if sweep.spec.searcher.learns:
        prepare(None)  # a searcher may import Ray, which reads its environment on import
        replayed = audit_suggestions(lambda: searcher_for(sweep.spec), records)
        differ = len(replayed.differences)
        said.append(f"{replayed.checked} suggestions recomputed from the records before them, {differ} differ")
        if replayed.unchecked:
            said.append(f"{replayed.unchecked} not checked: they follow a difference or were made by another version")
        differences += replayed.differences
    lost = lost_files(sweep.paths)
    said.append(f"files of all tables looked for, {'some are' if lost else 'none is'} lost")
    differences += lost
    return said, [*differences, *(f"sweep.yaml: {fault.path}: {fault.rule}" for fault in edited(sweep))]


def _audit_decisions(sweep: Sweep, records: Sequence[Record]) -> tuple[list[str], list[str]]:
    """Recompute the scheduler's decisions and their order. Return the checks and the differences."""
    schedule = sweep.spec.schedule
    checked, differences = audit(schedule, records)
    said = [f"{checked} decisions recomputed from the records before them, {len(differences)} differ"]
    order = sweep.spec.order(schedule.begin())
    if order is not None:
        ordered = audit_order(order, records, [record for record, _ in differences])
        said.append(_order_words(ordered))
        differences += ordered.differences
    if sweep.spec.replicates.together and not differences:
        narrow = narrow_decisions(schedule, records, LANES_DIFFER)
        said.append(f"{narrow} decisions turn on {100 * LANES_DIFFER:g} % of the objective: other lanes may turn them")
    return said, [*map(str, differences)]


def _order_words(audit: OrderAudit) -> str:
    """Return what an audit of the order found, and up to which virtual time another run would decide alike."""
    limit = "which is all that was judged"
    if audit.cut:
        limit = "after which it differs"
    elif audit.failed is not None:
        limit = f"at which {trial_name(audit.failed)} failed for this machine's reasons"
    turns = f"{audit.checked} turns in the canonical order recomputed, {len(audit.differences)} differ"
    return f"{turns}; the sweep is canonical up to virtual time {audit.until:g}, {limit}"


def lost_files(paths: SweepPaths) -> list[str]:
    """Return sentences on lost table files: those that are missing now, and those that nobody could restore."""
    # DuckDB and Arrow, which the progress of a sweep does not need.
    from sweeper.results.queries import READ_TABLES, current_generation, lost_for_good, require_listed_files
    from sweeper.tables.file_list import lost_sentence

    lost = lost_for_good(paths.root)
    faults = [f"lost for good: {lost_sentence(lost)}"] if lost else []
    try:
        require_listed_files(current_generation(paths.root), READ_TABLES)
        stored_predictions(paths)
    except SweeperError as error:
        faults.append(f"{error.message}; {error.remedy}")
    return faults


def audit_all(output: Path) -> tuple[list[str], list[str]]:
    """Audit every sweep in `output` that has a journal; one that cannot be read counts as a difference."""
    said, differences = list[str](), list[str]()
    for status in status_of(output):
        if status.state == TABLES_ONLY:
            said.append(f"{status.sweep}: it has no journal, so no decision can be recomputed")
            continue
        try:
            checks, differ = audit_sweep(status.sweep, output)
        except (SweeperError, PermissionError) as error:
            checks, differ = [], [f"it cannot be read: {str(error).splitlines()[0]}"]
        said += [f"{status.sweep}: {check}" for check in checks]
        differences += [f"{status.sweep}: {difference}" for difference in differ]
    return said, differences


def running(paths: SweepPaths) -> str | None:
    """Return host and process of the sweep's driver, in words; None if none runs."""
    # A local copy of a sweep in a store contains the driver's lease as a file, which was copied with the journal.
    driver = holder(paths.lease) or holder_of_copy(paths.root / LEASE)
    return process_of(driver) if driver is not None else None


def _status(name: str, output: Path) -> SweepStatus:
    paths = find_sweep(name, output)
    if not paths.sweep_file.is_file():  # only the tables were copied
        return SweepStatus(paths.name, TABLES_ONLY)
    sweep = open_sweep(str(paths.root), output, checked=False)
    state = fold(read_journal(sweep.paths.journal), len(sweep.configurations))
    driver, counts = running(sweep.paths), state.count()
    now = Tally(state, sweep.spec.schedule).snapshot()
    left = len(state.unfinished())
    return SweepStatus(
        sweep.name,
        "running" if driver else "finished" if not left else (state.outcome or "interrupted"),
        len(sweep.configurations),
        counts,
        left,
        sweep.spec.objective.metric,
        now.best.objective if now.best is not None else None,
        now.best is not None and now.best.status != COMPLETED,
        driver,
        sweep.spec.is_rehearsal,
    )


#: Seconds between two checks of a local folder.
LOOK_SECONDS = 1.0

#: Seconds between two checks of a store or a cluster. Each check is a request to a server.
FAR_LOOK_SECONDS = 5.0

#: Number of consecutive checks without a driver after which an unfinished sweep counts as interrupted. One check does
#: not suffice, because a driver takes its lease shortly after it creates the folder.
UNDRIVEN_LOOKS = 3


@dataclass(frozen=True)
class WatchUpdate:
    """The result of one check of a sweep.

    Attributes:
        panel: display for terminals.
        line: the same in one line, for other outputs.
        over: whether nothing more will happen.
        complete: whether every trial has ended and none has failed.
    """

    panel: RenderableType
    line: str
    over: bool
    complete: bool = True


class SweepWatch:
    """A sweep whose state is updated at each check."""

    def __init__(
        self,
        name: str,
        output: str,
        clock: Callable[[], float] = time.time,
        folds: Sequence[Callable[[Record], None]] = (),
    ) -> None:
        """Find the sweep `name` in `output`, a folder or a store.

        Args:
            name: name of the sweep.
            output: the folder of sweeps, or a store.
            clock: returns Unix time in seconds.
            folds: functions that are called with every record, in order.

        Raises SweeperError if there is no such sweep.
        """
        self._name, self._output, self._clock, self._folds = name, output, clock, folds
        self.seconds = FAR_LOOK_SECONDS if is_store_address(output) or is_store_address(name) else LOOK_SECONDS
        self.sweep: Sweep = open_sweep(*local_copy(name, output, tables=False), checked=False)
        self.state = SweepState(len(self.sweep.configurations))
        self._tally = Tally(self.state, self.sweep.spec.schedule)
        self._tail = JournalTail(self.sweep.paths.journal)
        self._began, self._before = clock(), 0.0
        self._undriven = 0

    def look(self) -> WatchUpdate:
        """Read new records and return the display. Raises what `read` raises."""
        now, driver = self.read()
        complete = not self.state.unfinished() and not now.counts[FAILED]
        heading = f"{self.sweep.name} · {self.word(driver)}" + (f" · {driver}" if driver else "")
        heading += " · rehearsal" if self.sweep.spec.is_rehearsal else ""
        metric = self.sweep.spec.objective.metric
        panel = Group(Text(heading, style="bold"), progress_panel(now, metric, self.sweep.describe))
        return WatchUpdate(panel, f"{heading} · {progress_line(now, metric)}", self.is_over(driver), complete)

    def read(self) -> tuple[Snapshot, str | None]:
        """Apply new records; return the progress and the driver.

        Raises SweeperError if the journal is damaged or the sweep is gone, StoreError if the store does not answer.
        """
        # Fetches new records from a store, and raises if the sweep was deleted meanwhile.
        find_sweep(*local_copy(self._name, self._output, tables=False))
        for record in self._tail.read():
            self._apply(record)
        driver = running(self.sweep.paths)
        self._undriven = 0 if driver else self._undriven + 1
        # Without a driver, the time of the last record is used, so that throughput does not fall while nothing runs.
        until = self._clock() if driver and self.state.outcome is None else self.state.updated_at or self._began
        seconds = max(0.0, until - self._began)
        return self._tally.snapshot(seconds=seconds, epochs_before=self._before), driver

    def is_over(self, driver: str | None) -> bool:
        """Return whether nothing more will happen."""
        return driver is None and (self.state.outcome is not None or self._undriven >= UNDRIVEN_LOOKS)

    def _apply(self, record: Record) -> None:
        if isinstance(record.body, Attempt):
            # Throughput is measured for the current driver. Epochs of earlier drivers and pauses between them do not
            # count.
            self._began = record.time
            self._before = sum(trial.epochs_trained for trial in self.state.trials.values())
            # `resume` may add trials.
            self.sweep = open_sweep(str(self.sweep.paths.root), self.sweep.paths.root.parent, checked=False)
        self.state.apply(record)
        for fold_in in self._folds:
            fold_in(record)

    def word(self, driver: str | None) -> str:
        """Return the sweep's state in words."""
        if self.state.outcome is not None:
            return f"{self.state.outcome}, writing tables and report" if driver else self.state.outcome
        if driver is None:
            return "interrupted" if self._undriven >= UNDRIVEN_LOOKS else "no driver yet"
        return "running" if self.state.attempt else "starting"


def watch(
    look: Callable[[], WatchUpdate],
    seconds: float,
    console: Console,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> WatchUpdate | None:
    """Show the result of `look` repeatedly until the sweep is over. Return the last result, or None after Ctrl-C.

    Args:
        look: returns the progress of a sweep.
        seconds: seconds between two calls of `look`.
        console: a terminal is redrawn. Another output gets a line after changes, at most every ten seconds.
        sleep: waits until the next call of `look`.
        clock: returns seconds.
    """
    printed, last = float("-inf"), ""
    try:
        with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
            while True:
                seen = look()
                if live is not None:
                    live.update(seen.panel, refresh=True)
                elif seen.line != last and (seen.over or clock() - printed >= PLAIN_LINE_SECONDS):
                    console.print(seen.line, markup=False, soft_wrap=True)
                    printed, last = clock(), seen.line
                if seen.over:
                    return seen
                sleep(seconds)
    except KeyboardInterrupt:
        return None


def look_at_all(output: str) -> WatchUpdate:
    """Return the progress of all sweeps of `output`; it is over if no driver runs."""
    folder = local_copies(output)
    statuses = status_of(folder)
    driven = [status.sweep for status in statuses if status.driver]
    line = f"{len(driven)} sweeps running: {', '.join(driven)}" if driven else "no sweep is running"
    return WatchUpdate(statuses_table(statuses), line, over=not driven)


def local_log(name: str, output: str, *, follow: bool) -> Iterator[str]:
    """Yield a sweep's log; with `follow`, also yield new text until the driver has ended.

    Raises SweeperError if there is no such sweep.
    """
    seen = 0
    while True:
        paths = find_sweep(*local_copy(name, output, tables=False))
        driven = running(paths) is not None  # before the log is read, so that a driver's last lines are not missed
        try:
            text = read_text(paths.log, "replace")
        except FileNotFoundError:  # the driver opens it shortly after it creates the folder
            text = ""
        if len(text) > seen:
            yield text[seen:]
            seen = len(text)
        if not follow or not driven:
            return
        time.sleep(LOOK_SECONDS)
