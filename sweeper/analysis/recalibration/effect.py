"""Did post-hoc calibration help? The change of ECE and NLL on test data, paired by trial. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.analysis.recalibration.request import UNCALIBRATED, method_label
from sweeper.analysis.statistics.basics import spread
from sweeper.analysis.statistics.paired import PairedDifference, paired_difference
from sweeper.text.cells import Rows, int_of, measured_or_none, text_of
from sweeper.text.labels import label, plural

METRICS = ("ece", "nll")


@dataclass(frozen=True)
class Change:
    """One metric before and after a method, over trials.

    Attributes:
        metric: `ece` or `nll`.
        before: mean over trials.
        after: mean over trials.
        difference: after − before, paired by trial.
        better: trials whose metric fell.
    """

    metric: str
    before: float
    after: float
    difference: PairedDifference
    better: int

    def text(self) -> str:
        """Return e.g. `ECE 0.0350 → 0.0210, −0.014 (95 % −0.02 … −0.008), better in 8 of 9 trials`."""
        found = self.difference
        limits = "" if found.interval is None else f" (95 % {' … '.join(map(signed, found.interval))})"
        change = f"{signed(found.mean)}{limits}"
        values = f"{label(self.metric)} {self.before:.4f} → {self.after:.4f}"
        return f"{values}, {change}, better in {self.better} of {plural(found.n, 'trial')}"


def signed(value: float) -> str:
    """Return a change in two digits with its sign, large ones in whole numbers."""
    return (f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.2g}").replace("-", "−")


@dataclass(frozen=True)
class Effect:
    """What one method did.

    Attributes:
        method: as recalibrations name it.
        options: JSON of what differs from its defaults.
        bins: of the ECE.
        changes: of each metric that both have.
    """

    method: str
    options: str
    bins: int
    changes: Sequence[Change]

    @property
    def key(self) -> tuple[str, str, int]:
        """What the request is known by: method, options and bins."""
        return self.method, self.options, self.bins

    @property
    def label(self) -> str:
        """In words, e.g. `focal_temperature (objective=ece), 15 bins`."""
        return f"{method_label(self.method, json.loads(self.options))}, {plural(self.bins, 'bin')}"

    def sentence(self) -> str:
        """Return the method and its changes on test data in one sentence."""
        return f"{self.label}, test data: {'; '.join(change.text() for change in self.changes)}."


def effects(rows: Rows) -> list[Effect]:
    """Return what each method did, in the order of the rows.

    Args:
        rows: one per trial, replicate, split, method, options and bins, with METRICS; the uncalibrated ones among them.
    """
    means: dict[tuple[str, str, int], dict[str, dict[str, list[float]]]] = {}
    for row in rows:
        if row["split"] == "test":
            key = (text_of(row, "method"), text_of(row, "options"), int_of(row, "bins"))
            trials = means.setdefault(key, {name: {} for name in METRICS})
            for name in METRICS:
                if (value := measured_or_none(row, name)) is not None:
                    trials[name].setdefault(text_of(row, "trial"), []).append(value)
    found = []
    for (method, options, bins), after in means.items():
        before = means.get((UNCALIBRATED, "{}", bins))
        if method != UNCALIBRATED and before is not None:
            changes = [change for name in METRICS if (change := changed(name, before[name], after[name])) is not None]
            if changes:
                found.append(Effect(method, options, bins, changes))
    return found


def changed(metric: str, before: dict[str, list[float]], after: dict[str, list[float]]) -> Change | None:
    """Return a metric's change over the trials that have it before and after; None where none has."""
    trials = sorted(before.keys() & after.keys())
    if not trials:
        return None
    pair = [[spread(part[trial]).mean for trial in trials] for part in (before, after)]
    better = sum(b < a for a, b in zip(*pair, strict=True))
    return Change(metric, spread(pair[0]).mean, spread(pair[1]).mean, paired_difference(*pair), better)
