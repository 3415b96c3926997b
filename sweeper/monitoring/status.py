"""The progress of sweeps, read from their journals alone: while a driver runs, and after it died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from sweeper.core.ids import SweepPaths
from sweeper.core.ray_environment import prepare
from sweeper.journal.best import best_words
from sweeper.journal.journal import read_journal
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, FAILED, fold
from sweeper.monitoring.snapshot import snapshot
from sweeper.scheduling.audit import audit
from sweeper.search.base import SuggestionAudit, audit_suggestions
from sweeper.storage.changes import edited
from sweeper.storage.lease import holder
from sweeper.storage.lookup import find_sweep, sweep_names
from sweeper.storage.object_names import LEASE
from sweeper.storage.store_lease import holder_of_copy
from sweeper.storage.sweeps import Sweep, open_sweep


@dataclass(frozen=True)
class SweepStatus:
    """Where one sweep stands.

    Attributes:
        sweep: its name.
        state: `running`, `finished`, `stopped`, `interrupted`, or `tables only` where there is no journal to count.
        trials: configurations.
        counts: trials by status, e.g. `{"completed": 8, "early_stopped": 38}`.
        left: trials that wait, run or were interrupted.
        reused: trials taken over from other sweeps.
        metric: the objective.
        best: its best value, None before the first.
        best_words: `best`, or `best so far` while no trial has completed.
        driver: who runs it, None where nobody does.
        rehearsal: whether it is one.
    """

    sweep: str
    state: str
    trials: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    left: int = 0
    reused: int = 0
    metric: str = ""
    best: float | None = None
    best_words: str = "best"
    driver: str | None = None
    rehearsal: bool = False

    def row(self) -> list[str]:
        """Return the cells of a table."""
        if not self.counts:
            return [self.sweep, self.state, *["–"] * 7]
        best = "–"
        if self.best is not None:
            best = f"{self.metric} {self.best:.4f}{self.best_words.removeprefix('best')}"
        trials = f"{self.trials}{f' ({self.reused} reused)' if self.reused else ''}"
        numbers = [trials, *(self.counts[name] for name in (COMPLETED, EARLY_STOPPED, FAILED)), self.left]
        word = f"{self.state} (rehearsal)" if self.rehearsal else self.state
        return [self.sweep, word, *map(str, numbers), best, self.driver or "–"]


def status_of(output: Path, name: str | None = None) -> list[SweepStatus]:
    """Return where every sweep below `output` stands, or `name` alone."""
    return [_status(each, output) for each in ([name] if name is not None else sweep_names(output))]


def statuses_table(statuses: Iterable[SweepStatus]) -> Table:
    """Return one row per sweep: trials by status, best value, driver."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("sweep", "state", "trials", "finished", "stopped early", "failed", "left", "best", "driver"):
        table.add_column(heading, no_wrap=True)
    for each in statuses:
        table.add_row(*each.row())
    return table


def audit_sweep(name: str, output: Path) -> tuple[list[str], list[str]]:
    """Recompute every journaled decision and suggestion; return one sentence per check and per difference."""
    sweep = open_sweep(name, output)
    checked, differences = audit(sweep.spec.schedule, read_journal(sweep.paths.journal))
    said = [f"{checked} decisions recomputed from the records before them, {len(differences)} differ"]
    if sweep.spec.searcher.learns:
        found = _audit_suggestions(sweep)
        differ = len(found.differences)
        said.append(f"{found.checked} suggestions recomputed from the records before them, {differ} differ")
        if found.unchecked:
            said.append(f"{found.unchecked} not checked: they follow a difference or were made by another version")
        differences += found.differences
    return said, [*differences, *(f"sweep.yaml: {fault.path}: {fault.rule}" for fault in edited(sweep))]


def _audit_suggestions(sweep: Sweep) -> SuggestionAudit:
    prepare(None)
    from sweeper.space.searchers import searcher_for

    return audit_suggestions(lambda: searcher_for(sweep.spec), read_journal(sweep.paths.journal))


def running(paths: SweepPaths) -> str | None:
    """Return who drives the sweep now, in words, or `None`."""
    driver = holder(paths.lease) or holder_of_copy(paths.root / LEASE)
    return f"process {driver.get('pid', '?')} on {driver.get('host', '?')}" if driver is not None else None


def _status(name: str, output: Path) -> SweepStatus:
    paths = find_sweep(name, output)
    if not paths.sweep_file.is_file():
        return SweepStatus(paths.name, "tables only")
    sweep = open_sweep(str(paths.root), output)
    state = fold(read_journal(sweep.paths.journal), len(sweep.configurations))
    driver, counts = running(sweep.paths), state.count()
    now = snapshot(state, sweep.spec.schedule, seconds=0.0, epochs_before=0)
    left = counts["waiting"] + counts["running"] + counts["interrupted"]
    return SweepStatus(
        sweep.name,
        "running" if driver else "finished" if not left else (state.outcome or "interrupted"),
        len(sweep.configurations),
        counts,
        left,
        sum(trial.reused_from is not None for trial in state.trials.values()),
        sweep.spec.objective.metric,
        now.best.objective if now.best is not None else None,
        best_words(now.best) if now.best is not None else "best",
        driver,
        sweep.spec.is_rehearsal,
    )
