"""Each loss family against cross-entropy on test data, with intervals and multiplicity-corrected p-values.

Loss families are compared with a reference by the configurations that finished, each the mean of its replicates. Where
the sweep ran families at the same other settings (a grid), they are paired by those settings: in each, a family stands
with the configuration that validation data would choose, measured on test data. Where settings are drawn at random no
two agree, and all finished configurations of a family are compared with all of the reference. Where a side has one
configuration only, the replicates of each side's best by validation are compared: this covers variation between seeds,
not the selection. They are paired where the two share seeds (`replicates: {seeds: common}`); `compare` pairs sweeps
that share theirs.
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
from sweeper.core.statistics import differences
from sweeper.core.statistics.differences import SIGNIFICANT, PairedDifference, p_text
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

#: What papers compare with; without it, the family with most finished configurations.
REFERENCE = "cross_entropy"

#: Settings, configurations or replicates on each side, below which nothing is compared: an interval of two reaches
#: thirteen standard errors each way.
MINIMUM = 4

#: What is compared: pairs at equal settings, configurations as they come, the chosen ones' replicates on equal seeds,
#: or these as they come; where configurations share their seeds, means over these, paired by seed.
SETTINGS, CONFIGURATIONS, SEEDS, REPLICATES = "settings", "configurations", "seeds", "replicates"
SHARED_SEEDS = "shared seeds"

#: Trial → seed → the metric of that replicate.
Replicates = Mapping[str, Mapping[int, float | None]]


@dataclass(frozen=True)
class FamilyComparison:
    """One family minus the reference, of one metric.

    Attributes:
        family: name of the loss.
        difference: mean, interval and p, before correction.
        corrected: p after Holm's correction for all families compared by this metric.
        smallest: what `corrected` is at least with so few values, whatever they are.
        sizes: how many units of the family and of the reference went in.
        unit: SETTINGS, CONFIGURATIONS, SEEDS, REPLICATES or SHARED_SEEDS.
    """

    family: str
    difference: PairedDifference
    corrected: float
    smallest: float
    sizes: tuple[int, int]
    unit: str


def reference_of(rows: Rows) -> str | None:
    """Return the family that others are compared with; None where there are fewer than two."""
    counts = Counter(str(row["loss"]) for row in rows)
    if len(counts) < 2:
        return None
    return REFERENCE if REFERENCE in counts else max(sorted(counts), key=lambda name: counts[name])


def compare_families(
    rows: Rows, varying: Sequence[str], metric: str, mode: str, replicates: Replicates
) -> list[FamilyComparison]:
    """Return every family with enough to compare, against the reference, by name.

    Args:
        rows: finished configurations: `trial`, `loss`, `judged` (the objective), the metric, and `varying` columns.
        varying: the `config_…` columns that vary.
        metric: the column to compare.
        mode: `min` or `max`: which `judged` is better.
        replicates: trial → seed → the metric of that replicate.
    """
    usable = [row for row in rows if finite(row.get(metric)) and finite(row.get("judged"))]
    reference = reference_of(usable)
    if reference is None:
        return []
    settings = [name for name in varying if not name.startswith("config_loss_")]
    found: list[tuple[str, PairedDifference, tuple[int, int], str]] = []
    for family in sorted({str(row["loss"]) for row in usable} - {reference}):
        mine, other = ([row for row in usable if str(row["loss"]) == name] for name in (family, reference))
        chosen = [best_by_settings(part, settings, mode) for part in (other, mine)]
        shared = [key for key in chosen[0] if key in chosen[1]]
        best = [best_by_settings(part, (), mode)[()] for part in (other, mine)]
        measured = [replicates.get(str(row["trial"]), {}) for row in best]
        each = [{seed: value for seed, value in part.items() if finite(value)} for part in measured]
        common = [seed for seed in each[0] if seed in each[1]]
        drawn = [[part[key] for key in shared] for part in chosen] if len(shared) >= MINIMUM else [other, mine]
        if min(map(len, drawn)) >= MINIMUM and share_seeds([*other, *mine], replicates):
            pairs = over_seeds(drawn, replicates)
            if len(pairs[0]) > 1:
                found.append((family, differences.paired_difference(*pairs), (len(pairs[0]),) * 2, SHARED_SEEDS))
        elif len(shared) >= MINIMUM:
            pairs = [[float_of(part[key], metric) for key in shared] for part in chosen]
            found.append((family, differences.paired_difference(*pairs), (len(shared), len(shared)), SETTINGS))
        elif min(len(mine), len(other)) >= MINIMUM:
            values = [[float_of(row, metric) for row in part] for part in (other, mine)]
            found.append((family, differences.unpaired_difference(*values), (len(mine), len(other)), CONFIGURATIONS))
        elif len(common) >= MINIMUM:
            pairs = [[part[seed] for seed in common] for part in each]
            found.append((family, differences.paired_difference(*pairs), (len(common), len(common)), SEEDS))
        elif min(map(len, each)) >= MINIMUM:
            unpaired = differences.unpaired_difference(*([*part.values()] for part in each))
            found.append((family, unpaired, (len(each[1]), len(each[0])), REPLICATES))
    corrected = differences.holm([difference.p for _, difference, _, _ in found])
    smallest = differences.smallest_holm([difference.smallest_p for _, difference, _, _ in found])
    return [FamilyComparison(f, d, p, smallest, n, unit) for (f, d, n, unit), p in zip(found, corrected, strict=True)]


def share_seeds(rows: Rows, replicates: Replicates) -> bool:
    """Return whether configurations are trained on the same seeds, so that only seeds are independent."""
    trials = [str(row["trial"]) for row in rows]
    units = differences.independent_units((trial, seed) for trial in trials for seed in replicates.get(trial, {}))
    return any(unit != trial for (trial, _), unit in units.items())


def over_seeds(sides: Sequence[Rows], replicates: Replicates) -> list[list[float]]:
    """Return the mean over each side's configurations for every seed that all of them have."""
    values = [[replicates.get(str(row["trial"]), {}) for row in rows] for rows in sides]
    known = [{seed for seed, value in each.items() if finite(value)} for rows in values for each in rows]
    common = sorted(set.intersection(*known))
    return [[fmean(float(each[seed] or 0.0) for each in rows) for seed in common] for rows in values]


def finite(value: Value) -> TypeGuard[float]:
    """Return whether a value is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def best_by_settings(rows: Rows, settings: Sequence[str], mode: str) -> dict[tuple[Value, ...], Row]:
    """Return for each combination of `settings` the row whose objective is best."""
    found: dict[tuple[Value, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in settings)
        if key not in found or (float_of(row, "judged") > float_of(found[key], "judged")) == (mode == "max"):
            found[key] = row
    return found


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
    """Return the differences from the reference family, one panel per metric; None where nothing can be compared."""
    board = leaderboard(results)
    if reference_of(board.finished) is None:
        return None
    panels, tested = [], set()
    measured, networks = by_trial(results.rows(REPLICATES_SQL)), categories(board.finished, "architecture")
    for network, metric in itertools.product(networks, METRICS):
        each = {
            trial: {int_of(row, "seed"): float_or_none(row, metric) for row in mine} for trial, mine in measured.items()
        }
        rows = [row for row in board.finished if str(row["architecture"]) == network]
        found = compare_families(rows, board.varying, metric, board.objective.mode, each)
        if found:
            panels.append(panel(found, metric, str(reference_of(rows)), f"{network}: " if len(networks) > 1 else ""))
            tested |= {item.unit for item in found}
    if not panels:
        return None
    return Figure(
        key="loss-families",
        title="Loss families compared",
        caption=(
            "Mean difference from a reference loss on the same network, on test data, with 95 % intervals; finished "
            f"configurations only, {MINIMUM} of each at least. "
            f"{how(tested, board, searched=bool(searcher(results)))} p: t-tests that allow for unequal spread and "
            "skew, of pairs also permutation tests; Holm-corrected over the families of a panel."
        ),
        sql=[board.sql, REPLICATES_SQL],
        panels=panels,
    )


def how(tested: set[str], board: Leaderboard, *, searched: bool = False) -> str:
    """Return how the configurations were compared."""
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


def panel(found: Sequence[FamilyComparison], metric: str, reference: str, before: str) -> Panel:
    """Return one metric: a point and an interval a family, drawn as far as differences can be; `before` the heading."""
    split, name = measured_as(metric)
    metric_known = metric_of(name)
    furthest = math.inf if metric_known is None else metric_known.range[1] - metric_known.range[0]
    rows: list[Json] = []
    for item in found:
        interval = item.difference.interval
        seen = interval and (max(interval[0], -furthest), min(interval[1], furthest))
        rows.append({"family": item.family, "mean": item.difference.mean, "says": sentence(item), **ends(seen)})
    layers = [*verticals({0: ""}), bars_to(rows, along="x"), points(rows, size=80)]
    x, y = quantity("mean", f"difference from {reference}"), names("family")
    return Panel(f"{before}{split} {label(name)}", layers, x, y, notes(found))


def notes(found: Sequence[FamilyComparison]) -> list[str]:
    """Return the comparisons in words; where samples are too few for any p to show something, one sentence says so."""
    smallest = min(item.smallest for item in found)
    if smallest < SIGNIFICANT:
        return [f"{sentence(item)}." for item in found]
    reason = f"Too few configurations to test: corrected, no p can be below {smallest:.2g}."
    return [*(f"{difference(item)}." for item in found), reason]


def sentence(item: FamilyComparison) -> str:
    """Return one comparison in words, e.g. `focal: −0.01 (95 % … , n = 4 pairs), p = 0.02`."""
    return f"{difference(item)}, {p_text(item.corrected, item.smallest)}"


def difference(item: FamilyComparison) -> str:
    """Return a difference in words, e.g. `focal: −0.01 (95 % … , n = 4 pairs)`."""
    mine, other = item.sizes
    paired = item.unit in (SETTINGS, SEEDS, SHARED_SEEDS)
    size = plural(mine, "pair") if paired else f"{mine} against {other} {item.unit}"
    limits = item.difference.interval
    around = "no interval" if limits is None else f"95 % {limits[0]:+.3g} … {limits[1]:+.3g}"
    text = f"{item.difference.mean:+.3g} ({around}, n = {size})".replace("-", "−")
    return f"{item.family}: {text}"
