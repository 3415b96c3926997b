"""The picture that a first screen begins with: each loss on each network as a dot with its interval, on one axis.

A dot is the best configuration of its loss on its network, by the matrix. Filled dots may be the best; hollow ones were
not trained to the end, which their epoch says, and are compared with nothing. Places are per cent of the axis, so that
a terminal and a page of any width draw the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from sweeper.reporting.matrix import Key, Matrix, Measured
from sweeper.results.leaderboard import FINISHED
from sweeper.text.cells import Row, text_of
from sweeper.text.labels import STATUS_WORDS, describe, number

BEST, ALIKE, WORSE, STOPPED, UNKNOWN = "best", "alike", "worse", "stopped", "unknown"

#: How far an axis reaches beyond the dots, in their span or an interval's usual length; the numbers say the rest.
FURTHEST = 1.5

#: Spans of the dots beyond which an interval's length counts no more: they would all lie in one place.
MOST_SPANS = 20.0

#: Ratio of the largest dot to the smallest from which the axis is logarithmic.
LOGARITHMIC_FROM = 3.0


#: Multiples of powers of ten that are labelled on a logarithmic axis, by how many powers of ten it spans at most.
LOG_LABELS = ((0.5, (1, 1.5, 2, 3, 4, 5, 6, 8)), (1.2, (1, 2, 3, 5)), (2.2, (1, 2, 5)), (3.2, (1, 3)))


def log_ticks(low: float, high: float) -> dict[float, str]:
    """Return the ticks of a logarithmic axis between positive values, each with its label."""
    first, last = math.log10(low), math.log10(high)
    multiples = next((m for limit, m in LOG_LABELS if last - first <= limit), (1,))
    ticks = [m * 10.0**e for e in range(math.floor(first) - 1, math.ceil(last) + 2) for m in multiples]
    return {tick: f"{tick:,.6g}" if 1e-4 <= tick < 1e6 else f"{tick:.0e}" for tick in ticks if low <= tick <= high}


class Scale(NamedTuple):
    """An axis.

    Attributes:
        low, high: the values at its ends.
        log: whether it is logarithmic.
    """

    low: float
    high: float
    log: bool

    def place(self, value: float) -> float:
        """Return where a value lies, in per cent of the axis; what lies outside is at its end."""
        low, high, at = (math.log(max(v, 1e-300)) if self.log else v for v in (self.low, self.high, value))
        return round(min(100.0, max(0.0, 100 * (at - low) / (high - low))), 2)

    def ticks(self) -> dict[float, str]:
        """Return place → label of at most six round values."""
        if self.log:
            found = log_ticks(self.low, self.high)
        else:
            rough = (self.high - self.low) / 4
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
            first = math.ceil(self.low / step - 1e-9)
            values = [step * at for at in range(first, math.floor(self.high / step + 1e-9) + 1)]
            found = {value: f"{value:.6g}" for value in values}
        return {self.place(value): words for value, words in [*found.items()][:: -(-len(found) // 6) or 1]}


def scale_of(values: Sequence[float], limits: Sequence[tuple[float, float]] = ()) -> Scale:
    """Return the axis of some values, one at least; their `limits` are shown as far as FURTHEST allows."""
    low, high = min(values), max(values)
    log = low > 0 and high / low >= LOGARITHMIC_FROM
    change: Callable[[float], float] = math.log if log else float
    back: Callable[[float], float] = math.exp if log else float
    pairs = [(change(first), change(last)) for first, last in limits if first > 0 or not log]
    usual = median([last - first for first, last in pairs if last > first] or [0.0])
    dots = change(high) - change(low) or 0.1 * abs(low) or 1.0
    span = max(dots, min(usual, MOST_SPANS * dots))
    ends = [change(low), change(high), *(end for pair in pairs for end in pair)]
    first = max(min(ends), change(low) - FURTHEST * span) - 0.04 * span
    last = min(max(ends), change(high) + FURTHEST * span) + 0.04 * span
    return Scale(back(max(first, 0.0) if low > 0 and not log else first), back(last), log)


class Dot(NamedTuple):
    """The best configuration of a loss on a network.

    Attributes:
        place, loss, network: what it is the best of; `place` is the data set's setting.
        trial: its name.
        mark: BEST, ALIKE (one of that loss on that network may be the best), WORSE, STOPPED or UNKNOWN.
        words: the same for readers, e.g. `may be the best` or `stopped at epoch 9`.
        value: its mean in the digits of its column.
        interval: 95 %, e.g. `0.0390 … 0.0570`; empty without one.
        other: the mean after temperature scaling (before it, where that is the objective); empty where not measured.
        second: another metric, e.g. `ECE 0.035`; empty where it is not measured.
        configuration: its hyperparameters in words.
        at, low, high, beside: where mean, interval and `other` lie on the axis, None where they do not.
    """

    place: str
    loss: str
    network: str
    trial: str
    mark: str
    words: str
    value: str
    interval: str
    other: str
    second: str
    configuration: str
    at: float
    low: float | None
    high: float | None
    beside: float | None

    @property
    def diamond(self) -> str:
        """The sign of `beside`: an arrow where it lies beyond the axis."""
        return "◁" if self.beside == 0 else "▷" if self.beside == 100 else "◇"


class Picture(NamedTuple):
    """The dots, by setting of the data set and network, the best first, and their axis.

    Attributes:
        dots: as drawn, from top to bottom.
        scale: their axis.
        value: what is drawn, in words.
        other: what `other` is, in words; empty where it is not measured.
        larger: whether larger is better.
    """

    dots: Sequence[Dot]
    scale: Scale
    value: str
    other: str
    larger: bool

    @property
    def caption(self) -> str:
        """What is drawn, in one line."""
        better = "larger is better" if self.larger else "smaller is better"
        return f"{self.value[0].upper()}{self.value[1:]} of the best of each loss on each network ({better})"


def picture(found: Matrix) -> Picture:
    """Return the picture of a matrix."""
    keys = in_order(found)
    rows = {key: found.cells[key][0] for key in keys}
    main, other = found.decides, found.before if found.decides is found.after else found.after
    means = {key: mean for key, row in rows.items() if (mean := mean_of(main, row)) is not None}
    beside = {key: mean for key, row in rows.items() if (mean := mean_of(other, row)) is not None}
    limits = {key: main.interval(text_of(rows[key], "trial")) for key in means}
    scale = scale_of([*means.values()], [*filter(None, limits.values()), *((v, v) for v in beside.values())])
    places, around = digits([*means.values()], [*limits.values()]), digits([*beside.values()])
    seconds = [mean for row in rows.values() for part in found.second if (mean := mean_of(part, row)) is not None]
    dots = []
    for key, mean in means.items():
        row, pair, after = rows[key], limits[key], beside.get(key)
        mark, words = verdict(found, key)
        low, high = (None, None) if pair is None else map(scale.place, pair)
        dots.append(
            Dot(
                *key, text_of(row, "trial"), mark, words, f"{mean:.{places}f}",
                "" if pair is None else " … ".join(f"{end:.{places}f}" for end in pair),
                "" if after is None else f"{after:.{around}f}",
                second_of(found, row, digits(seconds)), configuration_of(found, row), scale.place(mean),
                low, high, None if after is None else scale.place(after),
            )
        )  # fmt: skip
    return Picture(dots, scale, main.label, other.label if other is not None and beside else "", main.larger)


def in_order(found: Matrix) -> list[Key]:
    """Return the cells by setting of the data set and network, the best network and the best loss first."""
    known = [*found.cells]
    sign = -1 if found.decides.larger else 1

    def rank(key: Key) -> tuple[bool, float]:
        mean = mean_of(found.decides, found.cells[key][0])
        return found.cells[key][0]["status"] != FINISHED, math.inf if mean is None else sign * mean

    places = found.slices
    networks = {key[::2]: min(rank(each) for each in known if each[::2] == key[::2]) for key in known}
    return sorted(known, key=lambda key: (places.index(key[0]), networks[key[::2]], key[2], rank(key)))


def verdict(found: Matrix, key: Key) -> tuple[str, str]:
    """Return the mark of a cell, and what it says in words."""
    row, best = found.cells[key][0], found.best(key[0])
    if row["status"] != FINISHED:
        words = STATUS_WORDS[text_of(row, "status")].removesuffix(" early")
        return STOPPED, f"{words} at epoch {row['epochs']}"
    if row is best:
        others = [found.none_may_be_best(each) for each in found.cells if each[0] == key[0] and each != key]
        return BEST, "the best" if True in others and False not in others else "best mean"
    marks = {True: (WORSE, "worse"), False: (ALIKE, "may be the best"), None: (UNKNOWN, "")}
    return marks[found.none_may_be_best(key)]


def mean_of(measured: Measured | None, row: Row) -> float | None:
    """Return a configuration's mean at its last evaluation; None where there is none."""
    value = measured.last(row) if measured is not None else None
    return None if value is None else value.mean


def digits(means: Sequence[float], limits: Sequence[tuple[float, float] | None] = ()) -> int:
    """Return the decimals of a column: three digits of its smallest mean, and one at least of its shortest interval."""
    sizes = [abs(mean) for mean in means if mean]
    halves = [(pair[1] - pair[0]) / 2 for pair in limits if pair is not None and pair[1] > pair[0]]
    wanted = [2 - math.floor(math.log10(size)) for size in sizes and [min(sizes)]]
    wanted += [-math.floor(math.log10(half)) for half in halves and [min(halves)]]
    return min(6, max([0, *wanted]))


def second_of(found: Matrix, row: Row, places: int) -> str:
    """Return the other metric, before and after temperature scaling, in so many decimals: `ECE 0.035 → 0.021`."""
    before, after = (mean_of(part, row) for part in found.second)
    if before is None or found.second[0] is None:
        return ""
    return f"{found.second[0].label} {before:.{places}f}" + ("" if after is None else f" → {after:.{places}f}")


def configuration_of(found: Matrix, row: Row) -> str:
    """Return the hyperparameters that loss, network and the data set's setting do not tell."""
    told = {"config_loss_name", "config_architecture_name"}
    names = [n for n in found.varying if n not in told and not n.startswith("config_dataset_") and row[n] is not None]
    return describe(row, names) if names else ""


class Point(NamedTuple):
    """A configuration in a small plot: where it lies (per cent from the left and the bottom), and what it is.

    Attributes:
        mark: ALIKE where its value may be the best, STOPPED where it was not trained to the end, else UNKNOWN.
        x, y: of its mean.
        low, high: of its 95 % interval, None without one.
        epoch: at which it was stopped; empty for one that was not.
        text: the same in words.
    """

    mark: str
    x: float
    y: float
    low: float | None
    high: float | None
    epoch: str
    text: str


class SmallPlot(NamedTuple):
    """A hyperparameter against the objective, for one loss on one network."""

    points: Sequence[Point]
    across: Scale
    up: Scale


#: Points of a small plot; beyond, only configurations that were trained to the end are drawn, the best ones first.
MOST_POINTS = 120


def small_plot(rows: Sequence[Row], column: str, found: Matrix, inside: Sequence[float]) -> SmallPlot:
    """Return the plot of a column's values among a cell's rows; those of `inside` may be the best."""
    measured = found.decides
    shown = [row for row in rows if len(rows) <= MOST_POINTS or row["status"] == FINISHED][:MOST_POINTS] or [*rows][:1]
    values: Mapping[str, float] = {text_of(row, "trial"): float(str(row[column])) for row in shown}
    means = {name: mean for row in shown if (mean := mean_of(measured, row)) is not None
             for name in [text_of(row, "trial")]}  # fmt: skip
    around = {name: measured.interval(name, picked=False) for name in means}
    across = scale_of([*values.values()])
    up = scale_of([*means.values()], [*filter(None, around.values())])
    points = []
    for row in shown:
        name = text_of(row, "trial")
        if name not in means:
            continue
        ended, pair = row["status"] == FINISHED, around[name]
        mark = STOPPED if not ended else ALIKE if values[name] in inside else UNKNOWN
        epoch = "" if ended else str(row["epochs"])
        text = f"{name}: {number(values[name])}, {measured.label} {number(means[name])}"
        text += f", {STATUS_WORDS[text_of(row, 'status')]} at epoch {epoch}" if epoch else ""
        ends = (None, None) if pair is None or epoch else tuple(map(up.place, pair))
        points.append(Point(mark, across.place(values[name]), up.place(means[name]), ends[0], ends[1], epoch, text))
    return SmallPlot(points, across, up)
