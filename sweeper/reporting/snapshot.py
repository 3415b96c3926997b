"""A snapshot of a sweep's progress (counts, rungs, the best trial, throughput, time left), and metrics for Prometheus.

The driver sets Ray gauges. Ray's agent on its node serves them with the prefix `ray_` at the node's metrics port.
Prometheus scrapes this port on launcher clusters (Ray writes a service discovery file) and under KubeRay. This module
only counts and does not import Ray. The dashboard, the alerts and their test use the names defined here.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import NamedTuple

import yaml
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sweeper.core.ids import trial_name
from sweeper.core.labels import duration, plural
from sweeper.journal.best import Rank, Spending, best_words, rank_of
from sweeper.journal.reasons import reason_text
from sweeper.journal.records import Failed, Record, Reported
from sweeper.journal.state import ENDED, FAILED, RUNNING, WAITING, SweepState, TrialState
from sweeper.scheduling.base import Scheduler

#: Statuses used only in this module: a trial waits at a rung to be promoted or stopped; a trial that has begun waits
#: for its turn, to be judged or to get a process again.
PAUSED, QUEUED = "paused", "queued"

#: Statuses of trials from whose epochs those of the other trials are predicted. Paused trials count, because most are
#: later stopped.
RESTING = (*sorted(ENDED), PAUSED)

#: Number of best trials in a live view.
LEADERS = 3


@dataclass
class Snapshot:
    """A sweep's progress at one moment, computed only from its state.

    Attributes:
        counts: number of trials by status, with `paused` for trials that wait at a rung, and `queued` for others that
            have begun and wait for their turn.
        rungs: rung → (number of trials that passed it, number of trials stopped there).
        towards: rung → number of running trials that reach this rung next.
        leaders: the LEADERS best trials, best first.
        epochs, epochs_expected: epochs trained by this driver so far, and total number if the other trials behave like
            the ended ones.
        seconds: seconds since this driver began.
        paused: rung → number of trials that pause there.
        compares: whether trials are compared at rungs.
        last_epoch: seconds from the start to the last reported epoch. It is used so that the time left does not grow
            between reports.
        final_seeds: (number of ended seeds, total number of seeds) of those added to the sweep.
    """

    counts: dict[str, int]
    rungs: dict[int, tuple[int, int]]
    towards: dict[int, int]
    leaders: list[TrialState]
    epochs: float
    epochs_expected: float
    seconds: float
    paused: dict[int, int] = field(default_factory=dict)
    compares: bool = True
    last_epoch: float = 0.0
    final_seeds: tuple[int, int] = (0, 0)

    @property
    def best(self) -> TrialState | None:
        """The best trial, see `sweeper.journal.best`."""
        return self.leaders[0] if self.leaders else None

    @property
    def over(self) -> bool:
        """Whether every trial and every added seed has ended."""
        ended, total = self.final_seeds
        return ended == total and sum(self.counts[status] for status in ENDED) == sum(self.counts.values())

    @property
    def share(self) -> float:
        """Finished share of the expected epochs, 0 to 1."""
        if self.over or self.epochs_expected <= 0:
            return float(self.over)
        return min(1.0, max(0.0, self.epochs) / self.epochs_expected)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds left; None before the first epoch."""
        if self.epochs <= 0 or self.last_epoch <= 0:
            return None
        # The time per epoch is measured up to the last report, because no epoch has been reported since then.
        return max(0.0, self.epochs_expected - self.epochs) * self.last_epoch / self.epochs


class _Counted(NamedTuple):
    """The part of a trial's state that a snapshot needs."""

    status: str
    epochs: int
    trained: float
    stop_rung: int | None
    pause_rung: int | None
    added: bool


class Tally:
    """The numbers of a snapshot. An update recounts only the trials in new records.

    Otherwise a view that is drawn four times a second would count 100,000 trials each time. Trials with equal states
    are counted together, because most trials are alike.
    """

    def __init__(self, state: SweepState, schedule: Scheduler) -> None:
        """Count all trials of `state`, which keeps changing. `schedule` gives the rungs and the objective's mode."""
        self._state, self._schedule, self._statuses = state, schedule, (*state.count(), QUEUED, PAUSED)
        self._counted: dict[int, _Counted] = {}
        self._by_state: Counter[_Counted] = Counter()
        self._ranks: dict[int, Rank] = {}
        self._leaders: list[Rank] = []
        self._last_epoch = (0.0, 0.0)
        self._seen = len(state.touched)
        self._count(state.trials)

    def snapshot(self, *, seconds: float = 0.0, epochs_before: float = 0.0) -> Snapshot:
        """Return a snapshot.

        Args:
            seconds: seconds since this driver began.
            epochs_before: epochs trained by earlier drivers.
        """
        end = len(self._state.touched)  # read once, because the driver's thread appends while the view's thread counts
        touched = {*self._state.touched[self._seen : end]}
        self._seen = end
        self._count(touched)
        leaders = [self._state.trials[-rank[2]] for rank in self._leaders]
        counts, rungs = dict.fromkeys(self._statuses, 0), self._schedule.rungs
        passed, stopped, paused, towards = (dict.fromkeys(rungs, 0) for _ in range(4))
        for trial, n in self._by_state.items():
            if trial.added:
                continue
            counts[trial.status] += n
            for rung in rungs:
                passed[rung] += n * (trial.epochs >= rung and rung not in (trial.stop_rung, trial.pause_rung))
                stopped[rung] += n * (trial.stop_rung == rung)
                paused[rung] += n * (trial.pause_rung == rung)
            if trial.status == RUNNING:
                towards[next((rung for rung in rungs if rung > trial.epochs), rungs[-1])] += n
        trained = math.fsum(n * trial.trained for trial, n in self._by_state.items())
        done = trained - epochs_before
        if done != self._last_epoch[0]:
            self._last_epoch = done, seconds
        counts = {status: count for status, count in counts.items() if count or status not in (QUEUED, PAUSED)}
        by_rung = {rung: (passed[rung], stopped[rung]) for rung in rungs}
        return Snapshot(
            counts, by_rung, towards, leaders, done, done + self._epochs_left(), seconds, paused,
            self._schedule.compares, self._last_epoch[1], self._final_seeds(),
        )  # fmt: skip

    def _final_seeds(self) -> tuple[int, int]:
        added = {trial: n for trial, n in self._by_state.items() if trial.added}
        return sum(n for trial, n in added.items() if trial.status in ENDED), sum(added.values())

    def _epochs_left(self) -> float:
        """Return the number of epochs still to be trained, if the other trials take as many as the RESTING trials."""
        resting = {trial: n for trial, n in self._by_state.items() if trial.status in RESTING and not trial.added}
        epochs = sum(n * trial.epochs for trial, n in resting.items())
        mean = epochs / sum(resting.values()) if resting else float(self._schedule.max_epochs)

        def due(trial: _Counted) -> float:
            if trial.added:
                return self._schedule.max_epochs
            # A trial that has begun reaches at least its next rung, even if others ended earlier.
            own = next((rung for rung in self._schedule.rungs if rung >= trial.epochs), 0)
            return max(mean, own) if trial.status in (RUNNING, QUEUED) else mean

        others = [(trial, n) for trial, n in self._by_state.items() if trial.status not in RESTING]
        return math.fsum(n * max(0.0, due(trial) - trial.trained) for trial, n in others)

    def _count(self, indices: Iterable[int]) -> None:
        for index in indices:
            trial = self._state.trials[index]
            if index in self._counted:
                self._by_state[self._counted[index]] -= 1
            self._counted[index] = _counted(trial)
            self._by_state[self._counted[index]] += 1
            before, now = self._ranks.pop(index, None), rank_of(trial, self._schedule.mode)
            if now is not None:
                self._ranks[index] = now
            if before != now and before in self._leaders:  # a leader has changed
                self._leaders = heapq.nlargest(LEADERS, self._ranks.values())
            elif before != now and now is not None:  # no other trial can have become a leader
                self._leaders = heapq.nlargest(LEADERS, [*self._leaders, now])
        self._by_state = +self._by_state  # drops zero counts


def _counted(trial: TrialState) -> _Counted:
    status, waits = (PAUSED, trial.epochs) if trial.paused else (trial.status, None)
    if status == WAITING and trial.reported_epochs:
        status = QUEUED
    added = trial.added is not None
    return _Counted(status, trial.epochs, trial.epochs_trained, trial.stop_rung, waits, added)


#: Width of a progress bar in characters. Together with the times, it fits into a terminal of 80 characters.
BAR = 24


def counts_text(counts: Mapping[str, int], separator: str = ", ") -> str:
    """Return the number of trials in each status, e.g. `3 waiting, 2 running, 1 early stopped`.

    Example:
        >>> counts_text({"waiting": 3, "running": 0, "early_stopped": 1})
        '3 waiting, 1 early stopped'
    """
    return separator.join(f"{n} {status.replace('_', ' ')}" for status, n in counts.items() if n)


def best_text(trial: TrialState, metric: str) -> str:
    """Return the best trial's value, e.g. `best val_nll 0.1234`, or `best so far …` if none has completed."""
    return f"{best_words(trial)} {metric} {trial.objective:.4f}"


def final_text(now: Snapshot) -> str:
    """Return the progress of the added seeds, e.g. `final seeds: 9 of 15`; empty if there are none."""
    return "final seeds: {} of {}".format(*now.final_seeds) if now.final_seeds[1] else ""


def failure_line(body: Failed) -> str:
    """Return a failure as one plain line, e.g. `c00004 crash: its process died`."""
    return f"{trial_name(body.configuration)} {body.failure.kind}: {reason_text(body.failure)}"


def speed_text(now: Snapshot) -> str:
    """Return the throughput, e.g. `12.3 epochs/s`; empty at the start."""
    return f"{now.epochs / now.seconds:.1f} epochs/s" if now.seconds > 0 else ""


def left_text(now: Snapshot) -> str:
    """Return the time left, e.g. `about 2 min left`; empty at the end, or without an estimate."""
    return f"about {duration(now.seconds_left)} left" if now.seconds_left is not None and not now.over else ""


def progress_line(now: Snapshot, metric: str) -> str:
    """Return a snapshot as one plain line."""
    best = f"{best_text(now.best, metric)} ({trial_name(now.best.configuration)})" if now.best else ""
    parts = [counts_text(now.counts), final_text(now), speed_text(now), left_text(now), best]
    return " · ".join(part for part in parts if part)


def progress_panel(
    now: Snapshot, metric: str, describe: Callable[[int], str], notes: Sequence[str] = ()
) -> RenderableType:
    """Return a snapshot as a panel: counts, time, trials promoted and stopped at each rung, the best trials.

    Args:
        now: the snapshot.
        metric: the objective's name.
        describe: returns a short description of a configuration.
        notes: sentences between the rungs and the best trials.
    """
    counts = Text("  ".join(filter(None, (counts_text(now.counts, "  "), final_text(now)))))
    if now.counts[FAILED]:
        counts.stylize("red")
    times = Table.grid(padding=(0, 2))
    words = (duration(now.seconds), left_text(now) or ("" if now.over else "estimating time left"), speed_text(now))
    bar = ProgressBar(total=1.0, completed=now.share, width=BAR)
    times.add_row(bar, Text(" · ".join(word for word in words if word)))
    lines: list[RenderableType] = [counts, times, *([rungs_table(now)] if now.compares else [])]
    lines += [Text(note, style="dim") for note in notes]
    for place, trial in enumerate(now.leaders):
        value = f"{metric} {trial.objective:.4f}" if place else best_text(trial, metric)
        named = f"{trial_name(trial.configuration)} {describe(trial.configuration)}"
        text = f"{value} after {plural(trial.epochs, 'epoch')}: {named}"
        lines.append(Text(text, style="dim" if place else "green", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def rungs_table(now: Snapshot) -> Table:
    """Return a table with one column per rung: numbers of trials running towards it, past it, paused and stopped."""
    table = Table(box=None, padding=(0, 2), show_edge=False)
    for heading in ("", *(f"epoch {rung}" for rung in now.rungs)):
        table.add_column(heading, justify="right" if heading else "left", header_style="bold")
    table.add_row("running", *(str(now.towards[rung]) for rung in now.rungs))
    table.add_row("passed", *(str(passed) for passed, _ in now.rungs.values()))
    if any(now.paused.values()):
        table.add_row("paused", *(str(count) for count in now.paused.values()), style="dim")
    table.add_row("stopped", *(str(stopped) for _, stopped in now.rungs.values()), style="dim")
    return table


#: Prefix that Ray adds to the name of a user-defined metric.
PREFIX = "ray_"

_DESCRIPTIONS = yaml.safe_load(resources.files("sweeper.reporting").joinpath("metrics.yaml").read_text("utf-8"))

#: Metric → its description and its labels.
METRICS: dict[str, tuple[str, tuple[str, ...]]] = {
    name: (metric["counts"], ("sweep", *metric.get("labels", ()))) for name, metric in _DESCRIPTIONS.items()
}

#: Seconds between two updates; Ray's agents collect metrics every ten.
PUBLISH_SECONDS = 5.0

Publish = Callable[[str, Mapping[str, str], float], None]


class MetricsSink:
    """A sink of the driver that publishes the sweep's metrics every PUBLISH_SECONDS."""

    def __init__(
        self,
        sweep: str,
        state: SweepState,
        schedule: Scheduler,
        publish: Publish,
        *,
        spending: Spending,
        samples_per_epoch: int,
        gpu: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare to publish.

        Args:
            sweep: name of the sweep, a label of every metric.
            state: state of all trials, kept up to date by the driver.
            schedule: the scheduler, with rungs and objective.
            publish: called with a metric's name, labels and value.
            spending: spending of the trials, kept up to date by the driver.
            samples_per_epoch: samples that all replicates of a trial train on in an epoch.
            gpu: number of GPUs (or fraction of one) for a trial whose reports name none.
            clock: returns seconds, to decide when to publish.
            wall_clock: returns Unix seconds. Before the first report, the start counts as the time of the last report.
        """
        self._sweep, self._state, self._schedule, self._publish = sweep, state, schedule, publish
        self._samples_per_epoch, self._gpu, self._spending = samples_per_epoch, gpu, spending
        self._clock = clock
        self._published = -math.inf
        self._last_report = wall_clock()

    def append(self, record: Record) -> None:
        """Record the time of a trial's report."""
        if isinstance(record.body, Reported):
            self._last_report = record.time

    def flush_if_due(self) -> None:
        """Publish if an update is due."""
        now = self._clock()
        if now - self._published >= PUBLISH_SECONDS:
            self._published = now
            self.publish(running=True)

    def publish(self, *, running: bool) -> None:
        """Publish every metric now."""
        for name, labels, value in self.values():
            self._publish(name, {"sweep": self._sweep, **labels}, value)
        self._publish("sweeper_running", {"sweep": self._sweep}, float(running))

    def values(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield (metric, labels besides the sweep, value)."""
        now = Tally(self._state, self._schedule).snapshot()
        for status, count in now.counts.items():
            yield "sweeper_trials", {"status": status}, count
        for rung, (passed, stopped) in now.rungs.items():
            yield "sweeper_rung_trials", {"rung": str(rung), "outcome": "passed"}, passed
            yield "sweeper_rung_trials", {"rung": str(rung), "outcome": "stopped"}, stopped
        yield "sweeper_epochs", {}, now.epochs
        yield "sweeper_samples", {}, now.epochs * self._samples_per_epoch
        yield "sweeper_trial_hours", {}, self._spending.hours()
        yield "sweeper_gpu_hours", {}, self._spending.gpu_hours(self._gpu)
        if now.best is not None and now.best.objective is not None:
            yield "sweeper_best_objective", {"metric": self._schedule.metric}, now.best.objective
        yield "sweeper_last_report_time_seconds", {}, self._last_report
