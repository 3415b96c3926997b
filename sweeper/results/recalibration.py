"""A request for recalibration: a post-hoc method with options, and the number of bins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from sweeper.core.cells import Row, Rows, grouped, int_of, measured_or_none, text_of
from sweeper.core.errors import SweeperError
from sweeper.core.labels import label, plural
from sweeper.core.statistics.basics import spread
from sweeper.core.statistics.differences import PairedDifference, independent_units, paired_difference
from trainables.metrics import METRIC_NAMES
from trainables.metrics.base import Metrics, further_metrics
from trainables.registry import Component, column_label, hyperparameter_values
from trainables.registry.names import did_you_mean

#: The method that leaves the network's own probabilities as they are: what the others are compared with.
UNCALIBRATED = "none"

#: As in a search space's `evaluation.bins`.
MOST_BINS = 1000


@dataclass(frozen=True)
class Request:
    """One post-hoc method to fit and measure.

    Attributes:
        method: a name of the post-hoc registry, or `UNCALIBRATED`.
        bins: of the calibration errors.
        options: the method's options that differ from its defaults.
    """

    method: str
    bins: int
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def options_text(self) -> str:
        """The options as JSON with sorted keys; `{}` where all are defaults."""
        return json.dumps(dict(self.options), sort_keys=True)

    @property
    def part(self) -> str:
        """The name of the file that holds the answer: the same request always has the same."""
        label = column_label(self.method)
        asked = self.options_text if label == self.method else f"{self.method} {self.options_text}"
        digest = hashlib.sha256(asked.encode()).hexdigest()[:8]
        return f"{label}-bins{self.bins}-{digest}.parquet"

    @property
    def label(self) -> str:
        """In words, e.g. `temperature (objective=ece), 15 bins`; `uncalibrated` for no method."""
        method = "uncalibrated" if self.method == UNCALIBRATED else method_label(self.method, self.options)
        return f"{method}, {self.bins} {'bin' if self.bins == 1 else 'bins'}"


def method_label(method: str, options: Mapping[str, object]) -> str:
    """Return a method with its options in words, e.g. `temperature (objective=ece)`."""
    written = {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in sorted(options.items())}
    words = ", ".join(f"{key}={value}" for key, value in written.items())
    return f"{method} ({words})" if words else method


def read_requests(methods: Sequence[str], options: Sequence[str], bins: Sequence[int]) -> list[Request]:
    """Return what the command line asks for: every method at every number of bins, each once.

    The uncalibrated probabilities are always measured too, so that before and after stand in one table.

    Args:
        methods: names of post-hoc methods.
        options: `key=value`, for every one of `methods` that takes it, or `method.key=value` for one of them.
        bins: numbers of bins, 1 to 1000.

    Raises:
        SweeperError: with every unknown name, misplaced option and value out of range at once.
    """
    from trainables.posthoc import POSTHOC

    wanted = [name for name in dict.fromkeys(methods) if name != UNCALIBRATED]
    faults = [f"--method {fault}" for name in wanted if (fault := POSTHOC.fault(name))]
    faults += [f"--bins {count} is outside 1 … {MOST_BINS}" for count in bins if not 1 <= count <= MOST_BINS]
    chosen = {name: POSTHOC[name] for name in wanted if name in POSTHOC}
    values: dict[str, dict[str, object]] = {name: {} for name in chosen}
    for text in options if len(chosen) == len(wanted) else ():
        faults += _assign(text, chosen, values)
    for name, component in chosen.items():
        faults += [f"--option {fault}{_only_for(name, chosen)}" for fault in component.faults(values[name])]
    if faults:
        count = "1 error" if len(faults) == 1 else f"{len(faults)} errors"
        raise SweeperError(
            "\n".join([f"recalibrate: {count}, nothing was computed", *(f"  {fault}" for fault in faults)]),
            "see `sweeper spaces --posthoc` for methods and their options",
        )
    counts = list(dict.fromkeys(bins))
    settings = {name: options_that_differ(component, values[name]) for name, component in chosen.items()}
    return [Request(name, count, settings.get(name, {})) for name in (UNCALIBRATED, *chosen) for count in counts]


def _assign(text: str, chosen: Mapping[str, Component], values: dict[str, dict[str, object]]) -> list[str]:
    """Put one `--option` into `values` of the methods it is for; return its faults."""
    place, equals, written = text.partition("=")
    owner, dot, key = place.strip().rpartition(".")
    if not equals or not key:
        return [f"--option {text!r} must be key=value or method.key=value"]
    if dot and owner not in chosen:
        near = did_you_mean(owner, tuple(chosen))
        return [f"--option {text!r} is for {owner!r}, which is not among the methods{near}"]
    try:
        value = yaml.safe_load(written)
    except yaml.YAMLError:
        return [f"--option {text!r}: {written!r} is not a YAML value; quote it"]
    takers = [owner] if dot else [name for name, component in chosen.items() if component.hyperparameter(key)]
    if not takers:
        known = tuple(dict.fromkeys(h.name for component in chosen.values() for h in component.hyperparameters))
        named = ", ".join(chosen) or "no --method"
        return [f"--option {text!r}: {named} take{'' if len(chosen) > 1 else 's'} no {key!r}{did_you_mean(key, known)}"]
    for name in takers:
        values[name][key] = value
    return []


def _only_for(name: str, chosen: Mapping[str, Component]) -> str:
    return f" (of {name}; write method.key=value for an option of one method)" if len(chosen) > 1 else f" (of {name})"


def options_that_differ(component: Component, values: Mapping[str, object]) -> dict[str, object]:
    """Return the options that are not at their defaults, numbers of one value written one way (`3` is `3.0`).

    Raises SweeperError where the component has no such option, as of a damaged `sweep.yaml`.
    """
    found: dict[str, object] = {}
    for key, value in values.items():
        description = component.hyperparameter(key)
        if description is None:
            known = tuple(each.name for each in component.hyperparameters)
            raise SweeperError(
                f"{component.name} takes no option {key!r}{did_you_mean(key, known)}", "see `sweep.yaml`"
            )
        if description.kind == "number" and isinstance(value, (int, float)):
            value = float(value)
        elif description.kind == "integer" and isinstance(value, (int, float)):
            value = int(value)
        if value != description.default:
            found[key] = value
    return found


def read_metrics(names: Sequence[str], given: Sequence[Mapping[str, object]]) -> Metrics:
    """Return further metrics by name, each with its options in `given`, `{name: …, option: value}`, or its defaults.

    Raises:
        SweeperError: with every name that no further metric has.
    """
    measured = [f"--metric {name} is always measured: omit it" for name in names if name in METRIC_NAMES]
    others = [name for name in dict.fromkeys(names) if name not in METRIC_NAMES]
    known = further_metrics()
    faults = [*measured, *(f"--metric {fault}" for name in others if (fault := known.fault(name)))]
    if faults:
        raise SweeperError("\n".join(["recalibrate:", *faults]), "see `sweeper spaces --metrics`")
    options = {str(each["name"]): {key: value for key, value in each.items() if key != "name"} for each in given}
    return tuple((name, hyperparameter_values(options.get(name, {}))) for name in others)


METRICS = ("ece", "nll")


@dataclass(frozen=True)
class Change:
    """One metric before and after a method, over trials.

    Attributes:
        metric: `ece` or `nll`.
        before: mean over units.
        after: mean over units.
        difference: after − before, paired by unit; units with equal values before and after are one.
        better: units whose metric fell.
        unit: `trial`, or `seed` where trials share their seeds.
        trials: how many there are.
    """

    metric: str
    before: float
    after: float
    difference: PairedDifference
    better: int
    unit: str = "seed"
    trials: int = 1

    def arrow(self) -> str:
        """Return e.g. `0.0350 → 0.0210`."""
        return f"{self.before:.4f} → {self.after:.4f}"

    def verdict(self) -> str:
        """Return `lower` or `higher` where the difference's 95 % interval excludes 0, else `no clear change`.

        Fewer than two units that differ have no interval: `cannot be judged`.
        """
        limits = self.difference.interval
        if limits is None:
            return "cannot be judged"
        if limits[0] <= 0 <= limits[1]:
            return "no clear change"
        return "lower" if limits[1] < 0 else "higher"

    def text(self) -> str:
        """Return e.g. `ECE 0.0350 → 0.0210, −0.014 (95 % −0.02 … −0.008), better in 8 of 9 trials`."""
        found = self.difference
        counted = f"better in {self.better} of {plural(found.n, self.unit)}"
        return f"{label(self.metric)} {self.arrow()}, {signed(found.mean)}{self.limits()}, {counted}"

    def limits(self) -> str:
        """Return the difference's interval, e.g. ` (95 % −0.02 … −0.008)`, narrow ones in more digits; or nothing."""
        found = self.difference.interval
        if found is None:
            return ""
        digits = next((digits for digits in range(2, 9) if signed(found[0], digits) != signed(found[1], digits)), 2)
        return f" (95 % {' … '.join(signed(end, digits) for end in found)})"


def signed(value: float, digits: int = 2) -> str:
    """Return a change with its sign in so many digits, large ones in whole numbers."""
    return (f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.{digits}g}").replace("-", "−")


@dataclass(frozen=True)
class Effect:
    """What one method did.

    Attributes:
        method: as recalibrations name it.
        options: JSON of what differs from its defaults.
        bins: of the ECE.
        changes: of each metric that both have.
        fits: how many fits there were.
        at_bound: how many of them their validation data do not determine: a search ended at an end of its range, or a
            class had no sample.
    """

    method: str
    options: str
    bins: int
    changes: Sequence[Change]
    fits: int = 0
    at_bound: int = 0

    @property
    def key(self) -> tuple[str, str, int]:
        """What the request is known by: method, options and bins."""
        return self.method, self.options, self.bins

    @property
    def words(self) -> str:
        """The method as it is called in a sentence, e.g. `focal temperature (objective=ece)`."""
        return method_label(self.method.replace("_", " "), json.loads(self.options))

    @property
    def label(self) -> str:
        """In words, e.g. `focal_temperature (objective=ece), 15 bins`."""
        return f"{method_label(self.method, json.loads(self.options))}, {plural(self.bins, 'bin')}"

    @property
    def warning(self) -> str:
        """That validation data do not determine some fits; empty where they determine all."""
        if not self.at_bound:
            return ""
        return (
            f"validation data do not determine {self.at_bound} of {plural(self.fits, 'fit')} of {self.words}, which "
            "ended at their bound (too few samples, all predicted right, or none of a class): do not rely on them"
        )

    def sentence(self) -> str:
        """Return the method and its changes on test data in one sentence."""
        return f"{self.label}, test data: {'; '.join(change.text() for change in self.changes)}."


def effects(rows: Rows) -> list[Effect]:
    """Return what each method did, in the order of the rows.

    Args:
        rows: one per trial, replicate (with its `seed`), split, method, options and bins, with METRICS and
            `parameters`; the uncalibrated ones among them.
    """
    tested = grouped(
        (row for row in rows if row["split"] == "test"),
        lambda row: (text_of(row, "method"), text_of(row, "options"), int_of(row, "bins")),
    )
    found = []
    for (method, options, bins), after in tested.items():
        before = [] if method == UNCALIBRATED else tested.get((UNCALIBRATED, "{}", bins), [])
        changes = [_over_units(name, before, after) for name in METRICS]
        if any(changes):
            bounds = [at_bound(row) for row in after]
            known = [change for change in changes if change is not None]
            found.append(Effect(method, options, bins, known, len(bounds), sum(bounds)))
    return found


def at_bound(row: Row) -> bool:
    """Return whether the `parameters` of a row say that validation data do not determine the fit."""
    return bool(json.loads(str(row.get("parameters") or "{}")).get("at_bound"))


def seed_of(row: Row) -> object:
    """Return a row's seed; without one its replicate is a seed of its own."""
    return row.get("seed", (row["trial"], row["replicate"]))


def _over_units(metric: str, before: Rows, after: Rows) -> Change | None:
    """Return a metric's change over what is independent: trials, or the seeds that they share."""
    sides = [
        {(row["trial"], seed_of(row)): value for row in rows if (value := measured_or_none(row, metric)) is not None}
        for rows in (before, after)
    ]
    units = independent_units(sides[0].keys() & sides[1].keys())
    pair: list[dict[object, list[float]]] = [{}, {}]
    for key in sorted(units, key=str):
        for held, side in zip(pair, sides, strict=True):
            held.setdefault(units[key], []).append(side[key])
    change = changed(metric, *pair)
    trials = {trial for trial, _ in units}
    unit = "trial" if set(units.values()) == trials else "seed"
    return None if change is None else replace(change, unit=unit, trials=len(trials))


def changed(metric: str, before: Mapping[Any, list[float]], after: Mapping[Any, list[float]]) -> Change | None:
    """Return a metric's change over the units that have it before and after; None where none has.

    Units with the same values before and after are one: a trial of a configuration that has no effect is no evidence.
    """
    units = [unit for unit in before if unit in after]
    pairs = sorted({(spread(before[unit]).mean, spread(after[unit]).mean) for unit in units})
    if not pairs:
        return None
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    better = sum(b < a for a, b in pairs)
    return Change(metric, spread(first).mean, spread(second).mean, paired_difference(first, second), better)
