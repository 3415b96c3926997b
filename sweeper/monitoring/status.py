"""The progress of sweeps, read from their journals alone: while a driver runs, and after it died."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from sweeper.core.ids import SweepPaths
from sweeper.core.ray_environment import prepare
from sweeper.journal.best import best_words
from sweeper.journal.journal import read_journal
from sweeper.journal.state import fold
from sweeper.monitoring.snapshot import snapshot
from sweeper.scheduling.audit import audit
from sweeper.search.base import SuggestionAudit, audit_suggestions
from sweeper.storage.changes import edited
from sweeper.storage.lease import holder
from sweeper.storage.lookup import find_sweep, sweep_names
from sweeper.storage.object_names import LEASE
from sweeper.storage.store_lease import holder_of_copy
from sweeper.storage.sweeps import Sweep, open_sweep


def status_table(output: Path, name: str | None = None) -> Table:
    """Return one row per sweep (all below `output`, or `name` alone): trials by status, best value, driver."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("sweep", "state", "trials", "finished", "stopped early", "failed", "left", "best", "driver"):
        table.add_column(heading, no_wrap=True)
    for each in [name] if name is not None else sweep_names(output):
        table.add_row(*_row(each, output))
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


def _row(name: str, output: Path) -> list[str]:
    paths = find_sweep(name, output)
    if not paths.sweep_file.is_file():
        return [paths.name, "tables only", *["–"] * 7]
    sweep = open_sweep(str(paths.root), output)
    state = fold(read_journal(sweep.paths.journal), len(sweep.configurations))
    driver = running(sweep.paths)
    counts = state.count()
    now = snapshot(state, sweep.spec.schedule, seconds=0.0, epochs_before=0)
    left = counts["waiting"] + counts["running"] + counts["interrupted"]
    word = "running" if driver else "finished" if not left else (state.outcome or "interrupted")
    word = f"{word} (rehearsal)" if sweep.spec.is_rehearsal else word
    best = "–"
    if now.best is not None:
        best = f"{sweep.spec.objective.metric} {now.best.objective:.4f}{best_words(now.best).removeprefix('best')}"
    reused = sum(trial.reused_from is not None for trial in state.trials.values())
    trials = f"{len(sweep.configurations)}{f' ({reused} reused)' if reused else ''}"
    numbers = [trials, counts["completed"], counts["early_stopped"], counts["failed"], left]
    return [sweep.name, word, *map(str, numbers), best, driver or "–"]
