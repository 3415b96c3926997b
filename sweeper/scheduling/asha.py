"""Asynchronous successive halving (ASHA) as pure functions of (rungs, report): what to do with a trial, and why.

This is the *stopping* variant, as in Ray Tune's AsyncHyperBandScheduler: a trial that reaches a rung is compared
once with everything that reached the rung before it, and either stops there or goes on at once. It departs from
Li et al. 2020 (arXiv:1810.05934), whose algorithm pauses trials and promotes the best of the paused ones when a
worker falls free:

* nothing is ever resumed after a stop, so an early comparison against few competitors is final;
* the first trial at each rung always goes on, and more than one in `reduction_factor` is promoted
  (of 48 trials at rungs 3/9/27, 17.6 reach the second rung on average, not 16, and 9.3 the third, not 5.3);
* the cut-off is the (1 − 1/reduction_factor) quantile, linearly interpolated, of the *others'* values.

Unlike Ray's class, a value that is not a finite number ends the trial as failed at once, rungs are whole epochs
computed without logarithms, and trials are known by their configuration, so a resumed trial cannot compete
with itself. The same rungs and the same report always give the same decision; an audit relies on it.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from sweeper.journal.decision import Decision
from sweeper.journal.records import Record, Reported
from trainables.worker.trial_reports import TrialReport


@dataclass(frozen=True)
class Halving:
    """The scheduler's settings: `none` never stops a trial before `max_epochs`."""

    metric: str
    mode: Literal["min", "max"]
    max_epochs: int
    grace_epochs: int = 1
    reduction_factor: float = 3
    stops: bool = True

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are evaluated and compared; the last one is `max_epochs`."""
        if not self.stops:
            return (self.max_epochs,)
        rungs, epoch = [], float(self.grace_epochs)
        while epoch < self.max_epochs:
            rungs.append(int(epoch))
            epoch *= self.reduction_factor
        return (*rungs, self.max_epochs)

    @property
    def quantile(self) -> float:
        """The share of competitors whose values must not be better for a trial to go on.

        Ray's scheduler asks numpy for a percentile, and numpy divides by 100 again; the round trip through percent
        moves the share by a bit in its last place, and with it a cut-off that a trial may lie exactly on.
        """
        return (1 - 1 / self.reduction_factor) * 100 / 100


class Rung:
    """The values seen at one rung, by configuration, kept in order so that a cut-off costs no sort."""

    def __init__(self) -> None:
        """Start empty."""
        self.values: dict[int, float] = {}
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self.values)

    def add(self, configuration: int, value: float) -> None:
        """Record a configuration's value once; a second one is ignored, for its decision has been made."""
        if configuration not in self.values:
            self.values[configuration] = value
            insort(self._ordered, value)

    def quantile(self, share: float) -> float | None:
        """Return the linearly interpolated quantile of the values, or `None` when there are none.

        The interpolation follows `numpy.percentile` to the last bit, as Ray's scheduler uses it.
        """
        if not self._ordered:
            return None
        position = share * (len(self._ordered) - 1)
        index = math.floor(position)
        weight = position - index
        low = self._ordered[index]
        high = self._ordered[min(index + 1, len(self._ordered) - 1)]
        return low + (high - low) * weight if weight < 0.5 else high - (high - low) * (1 - weight)


class Rungs:
    """All rungs of a sweep."""

    def __init__(self, halving: Halving) -> None:
        """Start with the empty rungs of `halving`."""
        self.halving = halving
        self.by_epoch = {epoch: Rung() for epoch in halving.rungs}

    def add(self, rung: int, configuration: int, metric: float) -> None:
        """Record the value with which a configuration arrived at a rung."""
        self.by_epoch[rung].add(configuration, _score(self.halving, metric))

    def apply(self, record: Record) -> None:
        """Fold one journal record in: a report that was decided on at a rung."""
        if not isinstance(record.body, Reported) or record.body.decision is None:
            return
        decision = record.body.decision
        if decision.rung is not None and decision.metric is not None:
            self.add(decision.rung, record.body.configuration, decision.metric)


def decide(rungs: Rungs, configuration: int, epoch: int, metric: float | None) -> Decision | None:
    """Return the decision on a trial that reports after `epoch` epochs, or `None` between rungs. Changes nothing.

    Args:
        rungs: what reached each rung before.
        configuration: the trial's configuration.
        epoch: completed epochs.
        metric: the objective's value, mean over replicates.
    """
    halving = rungs.halving
    if metric is None or not math.isfinite(metric):
        if epoch not in rungs.by_epoch and metric is None:
            return None
        return Decision(
            epoch if epoch in rungs.by_epoch else None,
            "fail",
            f"{halving.metric} is {metric} after epoch {epoch}: not a finite number",
            metric,
            None,
            0,
        )
    if epoch >= halving.max_epochs:
        competitors = len(rungs.by_epoch[halving.max_epochs])
        reason = f"reached the last epoch, {halving.max_epochs}"
        return Decision(halving.max_epochs, "complete", reason, metric, None, competitors)
    rung = rungs.by_epoch.get(epoch)
    if rung is None or not halving.stops:
        return None
    return _compare(halving, rung, epoch, metric)


def decide_on(rungs: Rungs, report: TrialReport) -> Decision | None:
    """Return the decision on a trial's report: `decide` on its objective, which is a mean over sound replicates.

    Where replicates diverged, or failed otherwise in processes of their own, the mean is over the others and the reason
    says so: such a configuration competes, but never unmarked.
    """
    decision = decide(rungs, report.configuration, report.epoch, report.objective)
    diverged = sorted(report.replicate_errors)
    if decision is None or decision.kind == "fail" or not diverged:
        return decision
    named = f"replicate{'s' if len(diverged) > 1 else ''} {', '.join(map(str, diverged))}"
    word = "failed" if report.replicate_kinds else "diverged"
    return replace(decision, reason=f"{decision.reason}; the mean leaves out {named}, which {word}")


def audit(halving: Halving, records: Iterable[Record]) -> tuple[int, list[str]]:
    """Recompute every decision, and every absence of one, from the records before it.

    Returns how many decisions were checked, and one sentence for each that differs. Of a failure only the sentence
    is taken on trust: it is the trial's own, and may say more than that its objective is not a number.
    """
    rungs, checked, differences = Rungs(halving), 0, []
    for record in records:
        if isinstance(record.body, Reported):
            journaled = record.body.decision
            again = decide_on(rungs, record.body.report)
            checked += journaled is not None
            if _comparable(again) != _comparable(journaled):
                differences.append(f"record {record.sequence}: journaled {_text(journaled)}, recomputed {_text(again)}")
                if journaled is not None and journaled.rung not in rungs.by_epoch:
                    continue
        rungs.apply(record)
    return checked, differences


def _comparable(decision: Decision | None) -> Decision | None:
    return replace(decision, reason="") if decision is not None and decision.kind == "fail" else decision


def _text(decision: Decision | None) -> str:
    return str(decision.to_dict() if decision is not None else None)


def _compare(halving: Halving, rung: Rung, epoch: int, metric: float) -> Decision:
    cutoff_score = rung.quantile(halving.quantile)
    if cutoff_score is None:
        reason = f"first trial at rung {epoch}: nothing to compare with"
        return Decision(epoch, "continue", reason, metric, None, 0)
    cutoff = _score(halving, cutoff_score)
    stops = _score(halving, metric) < cutoff_score
    relation = "worse than" if stops else "at least as good as"
    reason = (
        f"{halving.metric} {metric:.6g} at rung {epoch} is {relation} the cut-off {cutoff:.6g} "
        f"of {len(rung)} competitor{'s' if len(rung) != 1 else ''}"
    )
    return Decision(epoch, "stop" if stops else "continue", reason, metric, cutoff, len(rung))


def _score(halving: Halving, value: float) -> float:
    """Return the value with larger meaning better; its own inverse."""
    return value if halving.mode == "max" else -value
