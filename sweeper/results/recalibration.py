"""Requests for recalibration (a post-hoc method, its options, a number of bins), and the effects of the methods."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from sweeper.core.cells import Row, Rows, grouped, int_of, measured_or_none, text_of
from sweeper.core.errors import SweeperError
from sweeper.core.statistics.basics import spread
from sweeper.judging.judge import change
from sweeper.judging.pairs import independent_units
from sweeper.judging.question import Verdict
from sweeper.space.file import Document, apply_overrides
from trainables.metrics import METRIC_NAMES
from trainables.metrics.base import Metrics, further_metrics
from trainables.metrics.refinement import FOLDS
from trainables.registry import FITTED_ON, Component, column_label, hyperparameter_values
from trainables.registry.names import did_you_mean

#: The method that leaves the network's probabilities unchanged; the others are compared with it.
UNCALIBRATED = "none"

#: Largest number of bins, as for a search space's `evaluation.bins`.
MOST_BINS = 1000


@dataclass(frozen=True)
class Request:
    """One post-hoc method to fit and measure.

    Attributes:
        method: name of a post-hoc method, or `UNCALIBRATED`.
        bins: number of bins of the calibration errors.
        options: the method's options that differ from its defaults.

    Example:
        >>> Request("temperature", 15, {"objective": "ece"}).label
        'temperature (objective=ece), 15 bins'
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
        """Name of the file with the resulting rows. Equal requests have equal names, so they replace each other."""
        # If the method's name can be a file name, only the options are hashed. Otherwise the name, a user's
        # `module:Class`, is hashed too, because `column_label` shortens it.
        label = column_label(self.method)
        asked = self.options_text if label == self.method else f"{self.method} {self.options_text}"
        digest = hashlib.sha256(asked.encode()).hexdigest()[:8]
        return f"{label}-bins{self.bins}-{digest}.parquet"

    @property
    def label(self) -> str:
        """Name for readers, e.g. `temperature (objective=ece), 15 bins`; `uncalibrated` for no method."""
        method = "uncalibrated" if self.method == UNCALIBRATED else method_label(self.method, self.options)
        return f"{method}, {self.bins} {'bin' if self.bins == 1 else 'bins'}"


def method_label(method: str, options: Mapping[str, object]) -> str:
    """Return a method with its options, e.g. `temperature (objective=ece)`."""
    written = {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in sorted(options.items())}
    words = ", ".join(f"{key}={value}" for key, value in written.items())
    return f"{method} ({words})" if words else method


def read_requests(methods: Sequence[str], options: Sequence[str], bins: Sequence[int]) -> list[Request]:
    """Return the requests of a command line: every method with every number of bins, each once.

    The uncalibrated probabilities are always included, so that values before and after are in one table.

    Args:
        methods: names of post-hoc methods.
        options: `key=value` for every method in `methods` that has the option.
        bins: numbers of bins, 1 to 1000.

    Raises:
        SweeperError: a name is unknown, an option is misplaced, or a value is out of range; the message lists all
            errors.

    Example:
        >>> [request.label for request in read_requests(["temperature"], ["objective=ece"], [15])]
        ['uncalibrated, 15 bins', 'temperature (objective=ece), 15 bins']
    """
    from trainables.posthoc import POSTHOC

    wanted = [name for name in dict.fromkeys(methods) if name != UNCALIBRATED]
    faults = [f"--method {fault}" for name in wanted if (fault := POSTHOC.fault(name))]
    faults += [f"--bins {count} is outside 1 … {MOST_BINS}" for count in bins if not 1 <= count <= MOST_BINS]
    chosen = {name: POSTHOC[name] for name in wanted if name in POSTHOC}
    values: dict[str, dict[str, object]] = {name: {} for name in chosen}
    # Options are checked only if all methods are known. Otherwise each option of an unknown method would be a second,
    # misleading error.
    for text in options if len(chosen) == len(wanted) else ():
        faults += _assign(text, chosen, values)
    for name, component in chosen.items():
        faults += [f"--option {fault} (of {name})" for fault in component.faults(values[name])]
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
    """Store one `--option` in `values` for the methods that have it; return its errors."""
    key, equals, written = (part.strip() for part in text.partition("="))
    if not equals or not key:
        return [f"--option {text!r} must be key=value"]
    read = Document()
    apply_overrides(read, [f"value={written}"])
    if read.faults:
        return [f"--option {text!r}: {read.faults[0].rule}"]
    takers = [name for name, component in chosen.items() if component.hyperparameter(key)]
    if not takers:
        known = tuple(dict.fromkeys(h.name for component in chosen.values() for h in component.hyperparameters))
        named = ", ".join(chosen) or "no --method"
        return [f"--option {text!r}: no option {key!r} of {named}{did_you_mean(key, known)}"]
    for name in takers:
        values[name][key] = read.values["value"]
    return []


def options_that_differ(component: Component, values: Mapping[str, object]) -> dict[str, object]:
    """Return the options that differ from their defaults; equal numbers are written in the same way (`3` as `3.0`).

    Raises SweeperError for an option that the component does not have, e.g. from a damaged `sweep.yaml`.
    """
    differing: dict[str, object] = {}
    for key, value in values.items():
        description = component.hyperparameter(key)
        if description is None:
            known = tuple(hyperparameter.name for hyperparameter in component.hyperparameters)
            raise SweeperError(
                f"{component.name} has no option {key!r}{did_you_mean(key, known)}", "correct it in `sweep.yaml`"
            )
        # `3` and `3.0` are the same request, so they must have the same file and equal the same default.
        if description.kind == "number" and isinstance(value, (int, float)):
            value = float(value)
        elif description.kind == "integer" and isinstance(value, (int, float)):
            value = int(value)
        if value != description.default:
            differing[key] = value
    return differing


def read_metrics(names: Sequence[str], given: Sequence[Mapping[str, object]]) -> Metrics:
    """Return optional metrics by name, each with its options from `given` (`{name: …, option: value}`) or its defaults.

    Raises:
        SweeperError: a name is not an optional metric; the message lists all such names.
    """
    measured = [f"--metric {name} is always measured: omit it" for name in names if name in METRIC_NAMES]
    others = [name for name in dict.fromkeys(names) if name not in METRIC_NAMES]
    known = further_metrics()
    faults = [*measured, *(f"--metric {fault}" for name in others if (fault := known.fault(name)))]
    if faults:
        raise SweeperError("\n".join(["recalibrate:", *faults]), "see `sweeper spaces --metrics`")
    options = {str(metric["name"]): {key: value for key, value in metric.items() if key != "name"} for metric in given}
    return tuple((name, hyperparameter_values(options.get(name, {}))) for name in others)


#: The metrics whose change is judged: a calibration error, and a proper score that shows the method's cost.
METRICS = ("ece", "nll")


@dataclass(frozen=True)
class Change:
    """One metric before and after a method, over trials.

    Attributes:
        metric: `ece` or `nll`.
        before: mean over units before the method.
        after: mean over units after the method.
        verdict: on after against before, paired by unit; BETTER if the metric fell.
        units: number of units. Those with the same pair of values count once.
        better: number of units whose metric fell.
        unit: `trial`, or `seed` if trials share their seeds.
        trials: number of trials.
    """

    metric: str
    before: float
    after: float
    verdict: Verdict
    units: int
    better: int
    unit: str = "seed"
    trials: int = 1

    @property
    def difference(self) -> float:
        """Mean of after − before."""
        return self.after - self.before


@dataclass(frozen=True)
class Effect:
    """The effect of one method.

    Attributes:
        request: the method, its options, and the number of bins of the ECE.
        changes: change of each metric that was measured before and after.
        fits: number of fits.
        at_bound: number of fits that the validation data do not determine, because the search ended at an end of its
            range or a class had no sample.
        split: the split that was measured; methods were cross-fitted on `val`.
        free: mean number of free parameters k of a fit; None if they cannot be counted, or data or fits are unknown.
        samples: number of validation samples n.
        gain: mean NLL that the method would save with unlimited validation data, estimated from n.
    """

    request: Request
    changes: Sequence[Change]
    fits: int = 0
    at_bound: int = 0
    split: str = "test"
    free: float | None = None
    samples: int = 0
    gain: float = 0.0

    @property
    def cost(self) -> float:
        """The NLL that the error of the fitted parameters is expected to cost, k/(2n)."""
        return (self.free or 0.0) / (2 * max(self.samples, 1))

    @property
    def needed(self) -> float:
        """Number of validation samples at which the cost equals the gain; infinite without a gain."""
        return (self.free or 0.0) / (2 * self.gain) if self.gain > 0 else math.inf

    @property
    def too_few(self) -> bool:
        """Whether the method is expected to cost more NLL than it gains, so that new data are predicted worse."""
        return self.free is not None and self.cost >= self.gain


def effects(rows: Rows, dataset: Mapping[str, Any] | None = None) -> list[Effect]:
    """Return the effect of each method, in the order of the rows.

    Args:
        rows: one per trial, replicate (with its `seed`), split, method, options and bins, with METRICS and
            `parameters`; includes the uncalibrated ones. Test data are measured, without them `val`.
        dataset: the manifest's `classes` and `samples` by split, to judge whether validation samples are too few.
    """
    split = measured_split(rows)
    by_split = grouped(rows, lambda row: row["split"])
    tested, validated = ({**grouped(by_split.get(name, []), _request_of)} for name in (split, "val"))
    method_effects = []
    for (method, options, bins), after in tested.items():
        before = [] if method == UNCALIBRATED else tested.get((UNCALIBRATED, "{}", bins), [])
        changes = [_over_units(name, before, after) for name in METRICS]
        if any(changes):
            bounds = [at_bound(row) for row in after]
            known = [change for change in changes if change is not None]
            request = Request(method, bins, json.loads(options))
            effect = Effect(request, known, len(bounds), sum(bounds), split)
            sides = (validated.get((UNCALIBRATED, "{}", bins), []), validated.get((method, options, bins), []))
            method_effects.append(_with_gain(effect, *sides, dataset or {}))
    return method_effects


def _request_of(row: Row) -> tuple[str, str, int]:
    return text_of(row, "method"), text_of(row, "options"), int_of(row, "bins")


def _with_gain(effect: Effect, before: Rows, after: Rows, dataset: Mapping[str, Any]) -> Effect:
    """Return an effect with its free parameters and its gain, from validation rows without and with the method."""
    from trainables.posthoc import POSTHOC

    count = None if POSTHOC.is_own(effect.request.method) else POSTHOC[effect.request.method].free
    samples, classes = dataset.get("samples", {}).get("val"), dataset.get("classes")
    change = _over_units("nll", before, after)
    if count is None or not samples or not classes or change is None or FITTED_ON in effect.request.options:
        return effect
    fitted = [json.loads(str(row["parameters"])) for row in after if not row["unavailable"]]
    if not fitted:
        return effect
    free = fmean(count(classes, parameters) for parameters in fitted)
    # n samples show a gain that is k/(2n) too large to the fit, and k/(2n) too small to others; folds are 4/5 of them.
    bias = free / (2 * samples) if effect.split == "test" else -free / (2 * samples) * FOLDS / (FOLDS - 1)
    return replace(effect, free=free, samples=samples, gain=-change.difference - bias)


def measured_split(rows: Rows) -> str:
    """Return the split that shows how good methods are: `test`; without it `val`, where methods were cross-fitted."""
    return "test" if any(row["split"] == "test" for row in rows) else "val"


def at_bound(row: Row) -> bool:
    """Return whether a row's `parameters` state that validation data do not determine the fit."""
    return bool(json.loads(str(row.get("parameters") or "{}")).get("at_bound"))


def seed_of(row: Row) -> object:
    """Return a row's seed. If it is unknown, return trial and replicate, which no other row shares."""
    return row.get("seed", (row["trial"], row["replicate"]))


def _over_units(metric: str, before: Rows, after: Rows) -> Change | None:
    """Return a metric's change over independent units: trials, or the seeds that they share."""
    # Trials on common seeds are correlated, so an interval over trials would be too narrow.
    sides = [
        {(row["trial"], seed_of(row)): value for row in rows if (value := measured_or_none(row, metric)) is not None}
        for rows in (before, after)
    ]
    units = independent_units(sides[0].keys() & sides[1].keys())
    pair: list[dict[object, list[float]]] = [{}, {}]
    for key in sorted(units, key=str):
        for held, side in zip(pair, sides, strict=True):
            held.setdefault(units[key], []).append(side[key])
    found = changed(metric, *pair)
    trials = {trial for trial, _ in units}
    unit = "trial" if set(units.values()) == trials else "seed"
    return None if found is None else replace(found, unit=unit, trials=len(trials))


def changed(metric: str, before: Mapping[Any, list[float]], after: Mapping[Any, list[float]]) -> Change | None:
    """Return a metric's change over the units with a value before and after; None if there are none.

    Units with equal pairs of values count once, because repeating a deterministic training adds no evidence.
    """
    units = [unit for unit in before if unit in after]
    pairs = sorted({(spread(before[unit]).mean, spread(after[unit]).mean) for unit in units})
    if not pairs:
        return None
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    better = sum(b < a for a, b in pairs)
    verdict = change(metric, dict(enumerate(first)), dict(enumerate(second)))
    return Change(metric, spread(first).mean, spread(second).mean, verdict, len(pairs), better)
