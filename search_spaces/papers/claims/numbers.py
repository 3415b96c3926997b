"""Means, differences and correlations of rows of `final`, by which claims are judged network by network.

Replicates of a configuration are one cluster. They share the effect of their configuration, so many replicates of few
configurations are few independent values. Each configuration counts once, with the mean of its replicates. Where losses
were trained at the same other settings (a grid), each setting counts once, with the difference there. Replicates are
the units only if each side has one configuration and the two differ only in the loss. The verdict then holds for these
settings alone, and its sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter

from sweeper.core.cells import Row, Rows, by_trial, grouped, int_of, text_of
from sweeper.core.statistics.basics import INTERVAL_PAIRS, correlation
from sweeper.judging.judge import change

#: Fewest different values for a stratum's rank correlation: three values are in falling order by chance in one case of
#: six.
STRATUM_POINTS = 4

#: Fewest independent values on each side for an interval: two show next to nothing of their spread or skew.
NEEDED = 3

#: An estimate with a smaller p counts as shown; Fisher's conventional level.
SIGNIFICANT = 0.05

#: Units that count once each. A search is a part of the configurations; validation data choose one to represent it.
CONFIGURATIONS, SETTINGS = "configurations", "settings"
REPLICATES, SEARCHES = "replicates of one configuration", "searches"

#: Most searches that the configurations of a loss are divided into: with more, each has less to choose from.
SEARCH_PARTS = 8

#: Columns that may differ between configurations at the same other settings.
ANY_LOSS = ("config_loss_",)


@dataclass(frozen=True)
class Point:
    """One configuration: two means over its replicates, to be correlated, and its stratum."""

    stratum: Hashable
    x: float
    y: float


@dataclass(frozen=True)
class Estimate:
    """A statistic with its uncertainty.

    Attributes:
        value: the statistic; None if it cannot be formed.
        interval: 95 % interval; None if there are too few units.
        n: number of units.
        unit: the things that `n` counts.
        p: two-sided p value for 0; with an interval, below .05 exactly if the interval excludes 0.
        lacking: reason for a missing interval, else empty.
    """

    value: float | None
    interval: tuple[float, float] | None
    n: int
    unit: str = CONFIGURATIONS
    p: float = 1.0
    lacking: str = ""

    def shown(self, among: int = 1) -> bool:
        """Return whether the statistic differs from 0, as one of `among` ones (Bonferroni)."""
        return self.p * among < SIGNIFICANT

    def text(self, form: str = ".3g") -> str:
        """Return e.g. `−0.93 (95 % −0.99 … −0.80)`."""
        if self.value is None:
            return "not measurable"
        shown = f"{self.value:{form}}"
        if self.interval is None:
            return f"{shown} ({self.lacking})".replace("-", "−")
        return f"{shown} (95 % {self.interval[0]:{form}} … {self.interval[1]:{form}})".replace("-", "−")


NOTHING = Estimate(None, None, 0)

#: Estimates by network or comparison.
Estimates = Mapping[str, Estimate]


def trained_to_the_end(rows: Rows) -> list[Row]:
    """Return the rows of replicates trained to the last epoch, by trial, replicate and split.

    Unfinished replicates cannot be compared with these. Rows are sorted because tables have no order, and the rounding
    of sums depends on it.
    """
    held = [row for row in rows if row.get("stage") == "end"]
    return sorted(held, key=lambda row: (text_of(row, "trial"), int_of(row, "replicate"), text_of(row, "split")))


def of_split(rows: Rows, split: str) -> list[Row]:
    """Return the rows of one split."""
    return [row for row in rows if row["split"] == split]


def number(row: Row, column: str) -> float | None:
    """Return a finite number from a column, else `None`."""
    value = row.get(column)
    # A diverged replicate has NaN, which would make every mean over it NaN.
    if value is None or isinstance(value, (str, datetime)) or not math.isfinite(value):
        return None
    return float(value)


#: A column, or a function of a row.
Reading = str | Callable[[Row], float | None]


def readings(rows: Rows, value: Reading) -> list[float]:
    """Return the finite numbers of a column, or of a function of a row."""
    read = value if callable(value) else lambda row: number(row, value)
    return [reading for row in rows if (reading := read(row)) is not None]


def trial_mean(rows: Rows, value: Reading) -> float | None:
    """Return the mean over replicates of a reading; `None` if no row has it."""
    values = readings(rows, value)
    return math.fsum(values) / len(values) if values else None  # fsum: equal whatever the rows' order


def other_settings(row: Row, besides: Sequence[str]) -> Hashable:
    """Return the configuration's values without `besides`; configurations that agree in them form a stratum.

    `besides` are columns, or prefixes ending in `_`.
    """
    besides = (*besides, "config_hash")
    prefixes = tuple(name for name in besides if name.endswith("_"))
    return tuple(
        (key, value)
        for key, value in sorted(row.items())
        if key.startswith("config_") and key not in besides and not key.startswith(prefixes)
    )


def mean_correlation(points: Sequence[Point], *, pool: bool = False) -> Estimate:
    """Return Spearman's correlation over configurations: the mean over strata that agree in all other settings.

    A stratum with fewer than `STRATUM_POINTS` different x is left out. With `pool`, all points form one stratum if
    every stratum is left out. Other settings that were drawn at random, independently of x, only add noise.
    """
    strata = grouped(points, lambda point: point.stratum)
    many = {stratum for stratum, held in strata.items() if len({point.x for point in held}) >= STRATUM_POINTS}
    used = [point for point in points if point.stratum in many]
    if pool and not used and len({point.x for point in points}) >= STRATUM_POINTS:
        used = [Point(None, point.x, point.y) for point in points]
    ranks = correlation([p.x for p in used], [p.y for p in used], [p.stratum for p in used])
    if ranks is None:
        return Estimate(None, None, len(used))
    lacking = "" if ranks.interval else f"{ranks.n} configurations; {INTERVAL_PAIRS} are needed"
    return Estimate(ranks.rho, ranks.interval, ranks.n, CONFIGURATIONS, ranks.p, lacking)


def mean_over(groups: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean over configurations; each group holds the replicates of one."""
    held = [group for group in groups if len(group)]
    if not held:
        return NOTHING
    # A single configuration has only its replicates; the unit then shows that the estimate rests on it alone.
    values, unit = (held[0], REPLICATES) if len(held) == 1 else (_means(held), CONFIGURATIONS)
    return _estimate(values, None, unit)


#: Setting → trial → the replicates' values.
Clusters = Mapping[Hashable, Mapping[str, Sequence[float]]]


def clusters(rows: Rows, value: Reading, besides: Sequence[str] = ANY_LOSS) -> dict[Hashable, dict[str, list[float]]]:
    """Return a reading of each configuration's replicates, by its settings without `besides` and by trial."""
    by_setting: dict[Hashable, dict[str, list[float]]] = {}
    for trial, held in by_trial(rows).items():
        if values := readings(held, value):
            by_setting.setdefault(other_settings(held[0], besides), {})[trial] = values
    return by_setting


def difference(first: Clusters, second: Clusters, unit: str = SETTINGS) -> Estimate:
    """Return mean(first) − mean(second) over configurations.

    If at least `NEEDED` settings occur on both sides, the estimate is the mean of their differences. If settings
    differ, the two sides' settings are compared as independent samples. If there is only one setting, its
    configurations are compared; if each side has one configuration, its replicates are compared.
    """
    if not first or not second:
        return NOTHING
    settings = [setting for setting in first if setting in second]
    if len(settings) >= NEEDED:
        pairs = [_setting_mean(first[setting]) - _setting_mean(second[setting]) for setting in settings]
        return _estimate(pairs, None, unit)
    if len({*first, *second}) > 1:
        sides = [[_setting_mean(side[setting]) for setting in side] for side in (first, second)]
    else:
        configurations = [next(iter(side.values())) for side in (first, second)]
        # Replicates are units only if each side has one configuration: else they would be counted as independent.
        alone = all(len(side) == 1 for side in configurations)
        sides = [[*next(iter(side.values()))] if alone else _means(side.values()) for side in configurations]
        unit = REPLICATES if alone else CONFIGURATIONS
    return _estimate(sides[0], sides[1], unit)


def tuned_difference(first: Rows, second: Rows, objective: str, column: str) -> Estimate:
    """Return mean(first) − mean(second) of a column on test data, each side tuned by the least validation objective.

    The interval has to include the uncertainty of the choice. So the choice is made anew at each setting that both
    sides have. If settings differ, each side's configurations are dealt out to several searches, and each search makes
    its own choice.
    """
    sides = [_candidates(rows, objective, column) for rows in (first, second)]
    if not all(sides):
        return NOTHING
    settings = [{candidate.setting for candidate in side} for side in sides]
    at_once = len(settings[0] | settings[1]) == 1 and all(len(side) == 1 for side in sides)
    if at_once or len(settings[0] & settings[1]) >= NEEDED:
        return difference(_best_of_settings(sides[0]), _best_of_settings(sides[1]))
    # From 8 configurations on, a search has two or more to choose from; below, each configuration is a search.
    fewest = min(map(len, sides))
    parts = fewest if fewest < SEARCH_PARTS else max(SEARCH_PARTS // 2, min(SEARCH_PARTS, fewest // 2))
    searches: list[dict[Hashable, Mapping[str, Sequence[float]]]] = [
        # The keys of both sides differ, so that `difference` takes the searches as independent.
        {(at, part): _best(side[part::parts]) for part in range(parts)}
        for at, side in enumerate(sides)
    ]
    return difference(searches[0], searches[1], SEARCHES if parts >= NEEDED else CONFIGURATIONS)


@dataclass(frozen=True)
class _Candidate:
    setting: Hashable
    trial: str
    objective: float
    values: Sequence[float]


def _candidates(rows: Rows, objective: str, column: str) -> list[_Candidate]:
    """Return the configurations with both the objective on validation data and the column on test data."""
    candidates = []
    for trial, held in by_trial(rows).items():
        chosen_by, values = trial_mean(of_split(held, "val"), objective), readings(of_split(held, "test"), column)
        if chosen_by is not None and values:
            candidates.append(_Candidate(other_settings(held[0], ANY_LOSS), trial, chosen_by, values))
    return candidates


def _best_of_settings(candidates: Sequence[_Candidate]) -> Clusters:
    return {setting: _best(held) for setting, held in grouped(candidates, lambda candidate: candidate.setting).items()}


def _best(candidates: Sequence[_Candidate]) -> dict[str, Sequence[float]]:
    # On validation data, never on the test data that are compared.
    best = min(candidates, key=lambda candidate: candidate.objective)
    return {best.trial: best.values}


def _setting_mean(configurations: Mapping[str, Sequence[float]]) -> float:
    means = _means(configurations.values())
    return math.fsum(means) / len(means)


def _means(groups: Iterable[Sequence[float]]) -> list[float]:
    return [math.fsum(group) / len(group) for group in groups]


def _estimate(values: Sequence[float], others: Sequence[float] | None, unit: str) -> Estimate:
    """Return the estimate of the values' mean, minus that of independent others if given, as the service judges it.

    There is no interval if a side has too few values.
    """
    sides = [values] if others is None else [values, others]
    smaller, n = min(map(len, sides)), sum(map(len, sides))
    if smaller < NEEDED:
        one = unit.replace("settings", "setting").replace("configurations", "configuration") if smaller == 1 else unit
        means = [math.fsum(side) / len(side) for side in (*sides, [0.0])]
        return Estimate(means[0] - means[1], None, n, unit, 1.0, f"{smaller} {one}; {NEEDED} are needed")
    against = dict(enumerate(others or [0.0] * n))
    verdict = change("", against, dict(enumerate(values)), paired=others is None, skewed=True)
    return Estimate(verdict.estimate, (verdict.low, verdict.high), n, unit, verdict.p)


#: Selects the rows of one loss.
Ours = Callable[[Row], bool]


def by_network(rows: Rows) -> dict[str, list[Row]]:
    """Return rows by network, named by architecture and those of its hyperparameters that vary among the rows."""
    columns = sorted({key for row in rows for key in row if key.startswith("config_architecture_")})
    # A hyperparameter that all rows share would only lengthen the name.
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
    """Return every other loss's mean of a column minus ours by network, without comparisons that have no rows.

    Args:
        rows: rows of one split.
        column: column to compare.
        ours: the loss that the claim is about.
        others: losses to compare it with, by name.
        extra: further columns to compare, by the word appended to the comparison's name.
    """
    columns = {"": column, **{f" {word}": compared for word, compared in (extra or {}).items()}}
    estimates: dict[str, Estimate] = {}
    for network, held in by_network(rows).items():
        for name, is_other in others.items():
            for word, compared in columns.items():
                theirs, mine = (clusters([row for row in held if of_it(row)], compared) for of_it in (is_other, ours))
                if theirs and mine:
                    estimates[f"{network}, {name}{word}"] = difference(theirs, mine)
    return estimates


def means(rows: Rows, reading: Reading) -> dict[str, Estimate]:
    """Return network → the mean of a reading over configurations, for networks that have one."""
    estimates = {}
    for network, held in by_network(rows).items():
        groups = [readings(replicates, reading) for replicates in by_trial(held).values()]
        if any(groups):
            estimates[network] = mean_over(groups)
    return estimates


def points_of(rows: Rows, x: Reading, column: Reading, besides: Sequence[str] = ANY_LOSS) -> list[Point]:
    """Return a point (x, mean of a column) for each configuration; strata agree in all settings but `besides`."""
    points = []
    for held in by_trial(rows).values():
        # x is a setting and thus equal in all replicates: the first row is enough.
        a, b = trial_mean(held[:1], x), trial_mean(held, column)
        if a is not None and b is not None:
            points.append(Point(other_settings(held[0], besides), a, b))
    return points


def correlations(
    rows: Rows, x: Reading, column: Reading, *, pool: bool = True, besides: Sequence[str] = ANY_LOSS
) -> dict[str, Estimate]:
    """Return each network's rank correlation of `x` and a column over its configurations, at equal other settings.

    With `pool`, a network's configurations are taken together if no four agree in all but `besides` (the loss).
    """
    points_by_network = {network: points_of(held, x, column, besides) for network, held in by_network(rows).items()}
    return {network: mean_correlation(points, pool=pool) for network, points in points_by_network.items() if points}


def losses(names: Sequence[str]) -> dict[str, Ours]:
    """Return a predicate for the rows of each loss, by name, with any hyperparameters."""
    return {name: is_loss(name) for name in names}


def is_loss(name: Hashable) -> Ours:
    """Return a predicate for the rows of a loss."""
    return lambda row: row["config_loss_name"] == name
