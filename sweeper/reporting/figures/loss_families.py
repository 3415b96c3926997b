"""Each loss family against cross-entropy on test data, with intervals that hold together.

Families are compared with a reference over finished configurations. A configuration's value is the mean of its
replicates.

- If the sweep ran families at the same other settings (a grid), they are paired by those settings. In each setting a
  family is represented by the configuration that validation data would choose, measured on test data.
- If settings were drawn at random, no two are equal: all finished configurations of a family are compared with all of
  the reference.
- If a side has only one configuration, the replicates of each side's best configuration by validation are compared.
  This covers variation between seeds, not the selection. They are paired if both share seeds
  (`replicates: {seeds: common}`).

`compare` pairs two sweeps that share seeds.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeGuard

from sweeper.core.cells import Row, Rows, Value, by_trial, float_of, float_or_none, int_of
from sweeper.core.labels import label, plural
from sweeper.judging.judge import change
from sweeper.judging.pairs import independent_units
from sweeper.judging.question import BETTER, WORSE, Verdict
from sweeper.reporting.figures.base import (
    FIGURES,
    Figure,
    Json,
    Panel,
    bars_to,
    ends,
    names,
    points,
    quantity,
    verticals,
)
from sweeper.reporting.figures.configurations import categories
from sweeper.results import Results
from sweeper.results.leaderboard import Leaderboard, leaderboard, searcher
from trainables.metrics.base import metric_of
from trainables.registry.names import measured_as

METRICS = ("test_ece", "test_nll", "test_accuracy")

#: The usual reference in papers. If a sweep lacks it, the reference is the family with the most finished
#: configurations.
REFERENCE = "cross_entropy"

#: Smallest number of settings, configurations or replicates on each side. A 95 % interval from two values would extend
#: thirteen standard errors to each side.
MINIMUM = 4

#: What is compared: pairs at equal settings, unpaired configurations, replicates of the best configurations paired by
#: seed, or unpaired replicates. If configurations share their seeds: means over configurations, paired by seed.
SETTINGS, CONFIGURATIONS, SEEDS, REPLICATES = "settings", "configurations", "seeds", "replicates"
SHARED_SEEDS = "shared seeds"
PAIRED = (SETTINGS, SEEDS, SHARED_SEEDS)

#: Trial → seed → the metric of that replicate.
Replicates = Mapping[str, Mapping[int, float | None]]


@dataclass(frozen=True)
class FamilyComparison:
    """One family minus the reference, for one metric.

    Attributes:
        family: name of the loss.
        verdict: the judge's verdict; the intervals of all families compared by this metric hold together. WORSE says
            that the family's values are larger.
        sizes: numbers of units of the family and of the reference.
        unit: SETTINGS, CONFIGURATIONS, SEEDS, REPLICATES or SHARED_SEEDS.
    """

    family: str
    verdict: Verdict
    sizes: tuple[int, int]
    unit: str


def reference_of(rows: Rows) -> str | None:
    """Return the reference family; None if there are fewer than two families."""
    counts = Counter(str(row["loss"]) for row in rows)
    if len(counts) < 2:
        return None
    return REFERENCE if REFERENCE in counts else max(sorted(counts), key=lambda name: counts[name])


def compare_families(
    rows: Rows, varying: Sequence[str], metric: str, mode: str, replicates: Replicates
) -> list[FamilyComparison]:
    """Return the comparisons with the reference, by name, of the families with enough units.

    Args:
        rows: finished configurations with `trial`, `loss`, `judged` (the objective), the metric and `varying` columns.
        varying: `config_…` columns that vary.
        metric: column to compare.
        mode: `min` or `max`: whether small or large `judged` is better.
        replicates: trial → seed → the replicate's value of the metric.
    """
    usable = [row for row in rows if finite(row.get(metric)) and finite(row.get("judged"))]
    reference = reference_of(usable)
    if reference is None:
        return []
    settings = [name for name in varying if not name.startswith("config_loss_")]
    sides_of: dict[str, tuple[str, list[list[float]]]] = {}
    for family in sorted({str(row["loss"]) for row in usable} - {reference}):
        mine, other = ([row for row in usable if str(row["loss"]) == name] for name in (family, reference))
        chosen = [best_by_settings(part, settings, mode) for part in (other, mine)]
        shared = [key for key in chosen[0] if key in chosen[1]]
        best = [best_by_settings(part, (), mode)[()] for part in (other, mine)]
        measured = [replicates.get(str(row["trial"]), {}) for row in best]
        by_side = [{seed: value for seed, value in part.items() if finite(value)} for part in measured]
        common = [seed for seed in by_side[0] if seed in by_side[1]]
        drawn = [[part[key] for key in shared] for part in chosen] if len(shared) >= MINIMUM else [other, mine]
        # The first comparison with enough units is used. Paired comparisons come before unpaired ones, since pairing
        # removes the variance that both sides share. The best configurations' replicates come last, since they ignore
        # the spread over configurations.
        if min(map(len, drawn)) >= MINIMUM and share_seeds([*other, *mine], replicates):
            sides, unit = over_seeds(drawn, replicates), SHARED_SEEDS
        elif len(shared) >= MINIMUM:
            sides, unit = [[float_of(part[key], metric) for key in shared] for part in chosen], SETTINGS
        elif min(len(mine), len(other)) >= MINIMUM:
            sides, unit = [[float_of(row, metric) for row in part] for part in (other, mine)], CONFIGURATIONS
        elif len(common) >= MINIMUM:
            sides, unit = [[part[seed] for seed in common] for part in by_side], SEEDS
        else:
            sides, unit = [[*part.values()] for part in by_side], REPLICATES
        # Two shared seeds suffice, because each is a mean over at least MINIMUM configurations.
        if min(map(len, sides)) >= (2 if unit == SHARED_SEEDS else MINIMUM):
            sides_of[family] = unit, sides
    return [
        FamilyComparison(family, judged(unit, sides, len(sides_of)), (len(sides[1]), len(sides[0])), unit)
        for family, (unit, sides) in sides_of.items()
    ]


def judged(unit: str, sides: Sequence[Sequence[float]], among: int) -> Verdict:
    """Return the verdict on the second side against the first, one of `among` families that share the level."""
    if unit not in PAIRED:
        reference, mine = (dict(enumerate(side)) for side in sides)
        return change("", reference, mine, among, paired=False, skewed=True)
    differences = dict(enumerate(mine - other for other, mine in zip(*sides, strict=True)))
    return change("", dict.fromkeys(differences, 0.0), differences, among, skewed=True)


def share_seeds(rows: Rows, replicates: Replicates) -> bool:
    """Return whether configurations were trained on the same seeds, so that only seeds are independent."""
    trials = [str(row["trial"]) for row in rows]
    units = independent_units((trial, seed) for trial in trials for seed in replicates.get(trial, {}))
    return any(unit != trial for (trial, _), unit in units.items())


def over_seeds(sides: Sequence[Rows], replicates: Replicates) -> list[list[float]]:
    """Return, for every seed that all configurations have, the mean over each side's configurations."""
    values = [[replicates.get(str(row["trial"]), {}) for row in rows] for rows in sides]
    known = [{seed for seed, value in seeds.items() if finite(value)} for rows in values for seeds in rows]
    common = sorted(set.intersection(*known))
    return [[fmean(float(seeds[seed] or 0.0) for seeds in rows) for seed in common] for rows in values]


def finite(value: Value) -> TypeGuard[float]:
    """Return whether a value is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def best_by_settings(rows: Rows, settings: Sequence[str], mode: str) -> dict[tuple[Value, ...], Row]:
    """Return the row with the best objective for each combination of `settings`."""
    best: dict[tuple[Value, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in settings)
        if key not in best or (float_of(row, "judged") > float_of(best[key], "judged")) == (mode == "max"):
            best[key] = row
    return best


REPLICATES_SQL = (
    "SELECT trial, replicate, seed, ece AS test_ece, nll AS test_nll, accuracy AS test_accuracy FROM final\n"
    "WHERE split = 'test' AND status = 'completed' ORDER BY trial, replicate"
)


@FIGURES.add(
    "loss_families",
    place=90,
    absent=f"Loss families compared: on no network have two families {MINIMUM} finished configurations or replicates.",
)
def draw(results: Results) -> Figure | None:
    """Return the differences from the reference family, one panel per network and metric; None if there are none."""
    board = leaderboard(results)
    if reference_of(board.finished) is None:
        return None
    panels, tested = [], set()
    measured, networks = by_trial(results.rows(REPLICATES_SQL)), categories(board.finished, "architecture")
    for network, metric in itertools.product(networks, METRICS):
        by_trial_and_seed = {
            trial: {int_of(row, "seed"): float_or_none(row, metric) for row in mine} for trial, mine in measured.items()
        }
        rows = [row for row in board.finished if str(row["architecture"]) == network]
        comparisons = compare_families(rows, board.varying, metric, board.objective.mode, by_trial_and_seed)
        if comparisons:
            panels.append(
                panel(comparisons, metric, str(reference_of(rows)), f"{network}: " if len(networks) > 1 else "")
            )
            tested |= {item.unit for item in comparisons}
    if not panels:
        return None
    return Figure(
        title="Loss families compared",
        caption=(
            "Mean difference from a reference loss on the same network, on test data; finished "
            f"configurations only, {MINIMUM} of each at least. "
            f"{how(tested, board, searched=bool(searcher(results)))} The intervals of a panel hold together "
            "(95 %), and allow for unequal spread and skew."
        ),
        sql=[board.sql, REPLICATES_SQL],
        panels=panels,
    )


def how(tested: set[str], board: Leaderboard, *, searched: bool = False) -> str:
    """Return sentences on how the configurations were compared."""
    best = f"best configuration by {board.objective.label}"
    parts = []
    if SETTINGS in tested:
        parts.append(
            f"Paired by equal other settings, means over replicates; each family is represented by its {best}."
        )
    if CONFIGURATIONS in tested:
        parts.append("Unpaired where other settings differ: means over replicates of all configurations of a family.")
        if any(row["status"] == "early_stopped" for row in board.rows):
            parts.append("Early stopping kept the best of each family, so these are not random samples of it.")
        if searched:
            parts.append(
                "A searcher preferred configurations that did well, so these are not random samples of a family."
            )
    if SHARED_SEEDS in tested:
        parts.append("Configurations share their seeds: means over each family's configurations, paired by seed.")
    if SEEDS in tested:
        parts.append(f"Families with one configuration: replicates of each side’s {best}, paired by seed.")
    if REPLICATES in tested:
        parts.append(
            f"Families with one configuration: replicates of each side’s {best}, which covers the variance of seeds, "
            "not of the selection; unpaired, because seeds differ."
        )
    return " ".join(parts)


def panel(comparisons: Sequence[FamilyComparison], metric: str, reference: str, before: str) -> Panel:
    """Return the panel of one metric, with a point and interval per family. `before` starts the heading."""
    # A difference cannot be larger than the width of the metric's range, which is infinite for NLL.
    split, name = measured_as(metric)
    metric_known = metric_of(name)
    furthest = math.inf if metric_known is None else metric_known.range[1] - metric_known.range[0]
    rows: list[Json] = []
    for item in comparisons:
        interval = item.verdict.low, item.verdict.high
        # An interval from few values can be wider than the metric's range, and would dwarf the others.
        seen = (max(interval[0], -furthest), min(interval[1], furthest))
        rows.append({"family": item.family, "mean": item.verdict.estimate, "says": sentence(item), **ends(seen)})
    layers = [*verticals({0: ""}), bars_to(rows, along="x"), points(rows, size=80)]
    x, y = quantity("mean", f"difference from {reference}"), names("family")
    return Panel(f"{before}{split} {label(name)}", layers, x, y, [f"{sentence(item)}." for item in comparisons])


def sentence(item: FamilyComparison) -> str:
    """Return one comparison in words, e.g. `focal: −0.01 (95 % … , n = 4 pairs), lower`."""
    mine, other = item.sizes
    size = plural(mine, "pair") if item.unit in PAIRED else f"{mine} against {other} {item.unit}"
    verdict = item.verdict
    text = f"{verdict.estimate:+.3g} (95 % {verdict.low:+.3g} … {verdict.high:+.3g}, n = {size})".replace("-", "−")
    said = {BETTER: "lower", WORSE: "higher"}.get(verdict.code, "no difference shown")
    return f"{item.family}: {text}, {said}"
