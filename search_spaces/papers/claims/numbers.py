"""From rows of `final` to the numbers that claims are judged by: means, differences and correlations.

They are taken by configuration, and network by network.

Replicates of a configuration are one cluster: what varies between configurations is in all of them, so that many
replicates of few configurations are few values. Each configuration counts once, with the mean of its replicates; where
the losses were trained at the same other settings (a grid), each setting counts once, with the difference there. Only
where there is one configuration on each side, and nothing but the loss tells them apart, are its replicates the units:
the verdict is then about these settings alone, and its sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter

from sweeper.core.cells import Row, Rows, by_trial, grouped, int_of, text_of
from sweeper.core.statistics.basics import INTERVAL_PAIRS, correlation
from sweeper.core.statistics.differences import Mean, difference_of, mean_of

#: Different values below which one stratum's rank correlation is left out: of three, one order in six is falling.
STRATUM_POINTS = 4

#: Independent values on each side below which there is no interval: two say next to nothing of their spread or skew.
NEEDED = 3

#: What was counted once each; a search is a part of the configurations, with the one that validation data choose.
CONFIGURATIONS, SETTINGS, REPLICATES, SEARCHES = (
    "configurations",
    "settings",
    "replicates of one configuration",
    "searches",
)

#: Most parts that the configurations of a loss are split into: more leave less to choose from in each.
SEARCH_PARTS = 8

#: What may differ between configurations at the same other settings.
ANY_LOSS = ("config_loss_",)


@dataclass(frozen=True)
class Point:
    """One configuration: the two numbers to correlate, means over its replicates, and its stratum."""

    stratum: Hashable
    x: float
    y: float


@dataclass(frozen=True)
class Estimate:
    """A statistic and what is known of it.

    Attributes:
        value: None where it could not be formed.
        interval: 95 %; None where there is too little for one.
        n: how many units.
        unit: what `n` counts.
        p: two-sided, of a value of 0; with an interval, below .05 exactly where that excludes 0.
        lacking: why there is no interval; empty where there is one.
    """

    value: float | None
    interval: tuple[float, float] | None
    n: int
    unit: str = CONFIGURATIONS
    p: float = 1.0
    lacking: str = ""

    def text(self, form: str = ".3g") -> str:
        """Return e.g. `−0.93 (95 % −0.99 … −0.80)`."""
        if self.value is None:
            return "not measurable"
        shown = f"{self.value:{form}}"
        if self.interval is None:
            return f"{shown} ({self.lacking})".replace("-", "−")
        return f"{shown} (95 % {self.interval[0]:{form}} … {self.interval[1]:{form}})".replace("-", "−")


NOTHING = Estimate(None, None, 0)

#: What was estimated, by network or comparison.
Estimates = Mapping[str, Estimate]


def trained_to_the_end(rows: Rows) -> list[Row]:
    """Return the rows of replicates that were trained to the last epoch; others cannot be compared with them.

    Tables have no order, and sums depend on it: the rows come by trial, replicate and split.
    """
    held = [row for row in rows if row.get("stage") == "end"]
    return sorted(held, key=lambda row: (text_of(row, "trial"), int_of(row, "replicate"), text_of(row, "split")))


def of_split(rows: Rows, split: str) -> list[Row]:
    """Return the rows of one split."""
    return [row for row in rows if row["split"] == split]


def number(row: Row, column: str) -> float | None:
    """Return a finite number, or `None` where the row has none."""
    value = row.get(column)
    if value is None or isinstance(value, (str, datetime)) or not math.isfinite(value):
        return None
    return float(value)


#: A column, or a function of a row.
Reading = str | Callable[[Row], float | None]


def readings(rows: Rows, value: Reading) -> list[float]:
    """Return the finite numbers of a column, or of a function of a row."""
    read = value if callable(value) else lambda row: number(row, value)
    return [found for row in rows if (found := read(row)) is not None]


def trial_mean(rows: Rows, value: Reading) -> float | None:
    """Return the mean over replicates of a reading; `None` where no row has it."""
    found = readings(rows, value)
    return math.fsum(found) / len(found) if found else None


def other_settings(row: Row, besides: Sequence[str]) -> Hashable:
    """Return the configuration's values but those of `besides`: configurations that agree in them are one stratum.

    `besides` are columns, or prefixes ending in `_`.
    """
    besides = (*besides, "config_hash")
    prefixes = tuple(name for name in besides if name.endswith("_"))
    return tuple(
        (key, value)
        for key, value in sorted(row.items())
        if key.startswith("config_") and key not in besides and not key.startswith(prefixes or ("\0",))
    )


def mean_correlation(points: Sequence[Point], *, pool: bool = False) -> Estimate:
    """Return Spearman's correlation over configurations, the mean over strata of those that agree in all else.

    A stratum with fewer than `STRATUM_POINTS` different x is left out. With `pool`, where all are left out because the
    other settings were drawn at random as x was, they make one stratum: drawn independently, they only add noise.
    """
    strata = grouped(points, lambda point: point.stratum)
    many = {stratum for stratum, held in strata.items() if len({point.x for point in held}) >= STRATUM_POINTS}
    used = [point for point in points if point.stratum in many]
    if pool and not used and len({point.x for point in points}) >= STRATUM_POINTS:
        used = [Point(None, point.x, point.y) for point in points]
    found = correlation([p.x for p in used], [p.y for p in used], [p.stratum for p in used])
    if found is None:
        return Estimate(None, None, len(used))
    lacking = "" if found.interval else f"{found.n} configurations; {INTERVAL_PAIRS} are needed"
    return Estimate(found.rho, found.interval, found.n, CONFIGURATIONS, found.p, lacking)


def mean_over(groups: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean over configurations, each group being one and its members its replicates."""
    held = [group for group in groups if len(group)]
    if not held:
        return NOTHING
    values, unit = (held[0], REPLICATES) if len(held) == 1 else (_means(held), CONFIGURATIONS)
    return _estimate(mean_of(values), unit, len(values), len(values))


#: The replicates' values of each configuration, by setting and trial.
Clusters = Mapping[Hashable, Mapping[str, Sequence[float]]]


def clusters(rows: Rows, value: Reading, besides: Sequence[str] = ANY_LOSS) -> dict[Hashable, dict[str, list[float]]]:
    """Return a reading of each configuration's replicates, by the settings besides the loss and by trial."""
    found: dict[Hashable, dict[str, list[float]]] = {}
    for trial, held in by_trial(rows).items():
        if values := readings(held, value):
            found.setdefault(other_settings(held[0], besides), {})[trial] = values
    return found


def difference(first: Clusters, second: Clusters, unit: str | None = None) -> Estimate:
    """Return mean(first) − mean(second) over configurations.

    Where at least `NEEDED` settings have both, it is the mean of their differences. Where settings differ, settings of
    one side are compared with those of the other as independent. Where there is one setting in all, its configurations
    are compared, or, one against one, their replicates.
    """
    if not first or not second:
        return NOTHING
    settings = [setting for setting in first if setting in second]
    if len(settings) >= NEEDED:
        pairs = [_setting_mean(first[each]) - _setting_mean(second[each]) for each in settings]
        return _estimate(mean_of(pairs), unit or SETTINGS, len(pairs), len(pairs))
    if len({*first, *second}) > 1:
        sides = [[_setting_mean(side[setting]) for setting in side] for side in (first, second)]
        unit = unit or SETTINGS
    else:
        configurations = [next(iter(side.values())) for side in (first, second)]
        alone = all(len(side) == 1 for side in configurations)
        sides = [[*next(iter(side.values()))] if alone else _means(side.values()) for side in configurations]
        unit = REPLICATES if alone else CONFIGURATIONS
    return _estimate(difference_of(*sides), unit, min(map(len, sides)), sum(map(len, sides)))


def tuned_difference(first: Rows, second: Rows, objective: str, column: str) -> Estimate:
    """Return mean(first) − mean(second) of a column on test data, each side tuned by its least objective on validation.

    The choice is part of what is repeated: it is made anew at each setting that both have, or, where settings differ,
    in each of several searches, among which the configurations of a side are dealt out.
    """
    sides = [_candidates(rows, objective, column) for rows in (first, second)]
    if not all(sides):
        return NOTHING
    settings = [{each.setting for each in side} for side in sides]
    at_once = len(settings[0] | settings[1]) == 1 and all(len(side) == 1 for side in sides)
    if at_once or len(settings[0] & settings[1]) >= NEEDED:
        return difference(_best_of_settings(sides[0]), _best_of_settings(sides[1]))
    fewest = min(map(len, sides))
    parts = fewest if fewest < SEARCH_PARTS else max(SEARCH_PARTS // 2, min(SEARCH_PARTS, fewest // 2))
    searches: list[dict[Hashable, Mapping[str, Sequence[float]]]] = [
        {(at, part): _best(side[part::parts]) for part in range(parts)} for at, side in enumerate(sides)
    ]
    return difference(searches[0], searches[1], SEARCHES if parts >= NEEDED else CONFIGURATIONS)


@dataclass(frozen=True)
class _Candidate:
    setting: Hashable
    trial: str
    objective: float
    values: Sequence[float]


def _candidates(rows: Rows, objective: str, column: str) -> list[_Candidate]:
    """Return the configurations that have the objective on validation data and the column on test data."""
    found = []
    for trial, held in by_trial(rows).items():
        chosen_by, values = trial_mean(of_split(held, "val"), objective), readings(of_split(held, "test"), column)
        if chosen_by is not None and values:
            found.append(_Candidate(other_settings(held[0], ANY_LOSS), trial, chosen_by, values))
    return found


def _best_of_settings(candidates: Sequence[_Candidate]) -> Clusters:
    return {setting: _best(held) for setting, held in grouped(candidates, lambda each: each.setting).items()}


def _best(candidates: Sequence[_Candidate]) -> dict[str, Sequence[float]]:
    best = min(candidates, key=lambda each: each.objective)
    return {best.trial: best.values}


def _setting_mean(configurations: Mapping[str, Sequence[float]]) -> float:
    means = _means(configurations.values())
    return math.fsum(means) / len(means)


def _means(groups: Iterable[Sequence[float]]) -> list[float]:
    return [math.fsum(group) / len(group) for group in groups]


def _estimate(found: Mean, unit: str, smaller: int, n: int) -> Estimate:
    """Return an estimate from a mean; without an interval where the smaller side has too few."""
    if smaller < NEEDED:
        one = unit.replace("settings", "setting").replace("configurations", "configuration") if smaller == 1 else unit
        return Estimate(found.value, None, n, unit, 1.0, f"{smaller} {one}; {NEEDED} are needed")
    interval = found.interval()
    if interval is None:
        return Estimate(found.value, None, n, unit, found.p, "all alike")
    return Estimate(found.value, interval, n, unit, found.p)


#: Selects the rows of one loss.
Ours = Callable[[Row], bool]


def by_network(rows: Rows) -> dict[str, list[Row]]:
    """Return rows by network, called after its architecture and the hyperparameters of it that vary among the rows."""
    columns = sorted({key for row in rows for key in row if key.startswith("config_architecture_")})
    named = "config_architecture_name"
    varying = {
        name: [c for c in columns if c != named and len({row.get(c) for row in held}) > 1]
        for name, held in grouped(rows, itemgetter(named)).items()
    }

    def name_of(row: Row) -> str:
        words = (f"{c.removeprefix('config_architecture_')} {row.get(c)}" for c in varying[row.get(named)])
        return " ".join((text_of(row, named), *words))

    return dict(sorted(grouped(rows, name_of).items()))


def differences(
    rows: Rows, column: str, ours: Ours, others: Mapping[str, Ours], extra: Mapping[str, str] | None = None
) -> dict[str, Estimate]:
    """Return every other loss's mean of a column minus ours, network by network. What has no rows is left out.

    Args:
        rows: of one split.
        column: what is compared.
        ours: the loss that the claim is about.
        others: those that it is compared with, by name.
        extra: further columns to compare besides, by the word that stands behind the comparison's name.
    """
    columns = {"": column, **{f" {word}": each for word, each in (extra or {}).items()}}
    found: dict[str, Estimate] = {}
    for network, held in by_network(rows).items():
        for name, is_other in others.items():
            for word, each in columns.items():
                theirs, mine = (clusters([row for row in held if of_it(row)], each) for of_it in (is_other, ours))
                if theirs and mine:
                    found[f"{network}, {name}{word}"] = difference(theirs, mine)
    return found


def means(rows: Rows, reading: Reading) -> dict[str, Estimate]:
    """Return network → the mean of what is read of each replicate, where something is, over configurations."""
    found = {}
    for network, held in by_network(rows).items():
        groups = [readings(each, reading) for each in by_trial(held).values()]
        if any(groups):
            found[network] = mean_over(groups)
    return found


def points_of(rows: Rows, x: Reading, column: Reading, besides: Sequence[str] = ANY_LOSS) -> list[Point]:
    """Return `x` and the mean of a column of each configuration that has both; strata agree in all but `besides`."""
    points = []
    for held in by_trial(rows).values():
        a, b = trial_mean(held[:1], x), trial_mean(held, column)
        if a is not None and b is not None:
            points.append(Point(other_settings(held[0], besides), a, b))
    return points


def correlations(
    rows: Rows, x: Reading, column: Reading, *, pool: bool = True, besides: Sequence[str] = ANY_LOSS
) -> dict[str, Estimate]:
    """Return each network's rank correlation of `x` and a column over its configurations, at equal other settings.

    With `pool`, where no four agree in all but `besides` (the loss), all of a network are taken together.
    """
    found = {network: points_of(held, x, column, besides) for network, held in by_network(rows).items()}
    return {network: mean_correlation(points, pool=pool) for network, points in found.items() if points}


def losses(names: Sequence[str]) -> dict[str, Ours]:
    """Return losses by name, each with what selects its rows, whatever their hyperparameters."""
    return {name: is_loss(name) for name in names}


def is_loss(name: Hashable) -> Ours:
    """Return what selects the rows of a loss."""
    return lambda row: row["config_loss_name"] == name
