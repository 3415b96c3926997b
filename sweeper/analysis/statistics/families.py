"""Loss families of a sweep against a reference: differences, intervals, multiplicity-corrected p-values. No I/O.

What is compared are configurations that finished, each the mean of its replicates. Where the sweep ran families at the
same other settings (a grid), they are paired by those settings: in each, a family stands with the configuration that
validation data would choose, measured on test data. Where settings are drawn at random no two agree, and all finished
configurations of a family are compared with all of the reference. Where a side has one configuration only, the
replicates of each side's best by validation are compared: this covers variation between seeds, not the selection. They
are paired where the two share seeds (`replicates: {seeds: common}`); `compare` pairs sweeps that share theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from sweeper.analysis.statistics.basics import Values
from sweeper.analysis.statistics.paired import RANDOM_SIGNS, PairedDifference, holm, paired_difference, smallest_holm
from sweeper.text.cells import Row, Rows, Value, float_of

REFERENCE = "cross_entropy"
"""What papers compare with; without it, the family with most finished configurations."""

MINIMUM = 2
"""Settings, configurations or replicates on each side, below which nothing is compared."""

SETTINGS, CONFIGURATIONS, SEEDS, REPLICATES = "settings", "configurations", "seeds", "replicates"
"""What is compared: pairs at equal settings, configurations as they come, the chosen ones' replicates on equal seeds,
or these as they come."""

SAME = 1e-12
"""Values that differ by less than this share of the largest are the same but for rounding."""

AT_ONCE = 1_000_000
"""Numbers that are shuffled at a time: 8 MB."""


@dataclass(frozen=True)
class FamilyComparison:
    """One family minus the reference, of one metric.

    Attributes:
        family: name of the loss.
        difference: mean, interval and p, before correction.
        corrected: p after Holm's correction for all families compared by this metric.
        smallest: what `corrected` is at least with so few values, whatever they are.
        sizes: how many units of the family and of the reference went in.
        unit: SETTINGS, CONFIGURATIONS, SEEDS or REPLICATES.
    """

    family: str
    difference: PairedDifference
    corrected: float
    smallest: float
    sizes: tuple[int, int]
    unit: str


def reference_of(rows: Rows) -> str | None:
    """Return the family that others are compared with; None where there are fewer than two."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[str(row["loss"])] = counts.get(str(row["loss"]), 0) + 1
    if len(counts) < 2:
        return None
    return REFERENCE if REFERENCE in counts else max(sorted(counts), key=lambda name: counts[name])


def compare_families(
    rows: Rows,
    varying: Sequence[str],
    metric: str,
    mode: str,
    replicates: Mapping[str, Mapping[int, float | None]],
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
        if len(shared) >= MINIMUM:
            pairs = [[float_of(part[key], metric) for key in shared] for part in chosen]
            found.append((family, paired_difference(*pairs), (len(shared), len(shared)), SETTINGS))
        elif min(len(mine), len(other)) >= MINIMUM:
            values = [[float_of(row, metric) for row in part] for part in (other, mine)]
            found.append((family, unpaired_difference(*values), (len(mine), len(other)), CONFIGURATIONS))
        elif len(common) >= MINIMUM:
            pairs = [[part[seed] for seed in common] for part in each]
            found.append((family, paired_difference(*pairs), (len(common), len(common)), SEEDS))
        elif min(map(len, each)) >= MINIMUM:
            unpaired = unpaired_difference(*([*part.values()] for part in each))
            found.append((family, unpaired, (len(each[1]), len(each[0])), REPLICATES))
    corrected = holm([difference.p for _, difference, _, _ in found])
    smallest = smallest_holm([difference.smallest_p for _, difference, _, _ in found])
    return [FamilyComparison(f, d, p, smallest, n, unit) for (f, d, n, unit), p in zip(found, corrected, strict=True)]


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


def unpaired_difference(a: Values, b: Values, *, seed: int = 0) -> PairedDifference:
    """Return mean(b) − mean(a) of two independent samples, with interval and the p of a permutation test.

    The interval is Welch's t (Welch 1947); None where neither sample varies. The test shuffles which value belongs to
    which sample (Fisher 1935). `n` is the length of b.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    mean = float(second.mean() - first.mean())
    p = permutation_p(first, second, np.random.default_rng(seed))
    smallest = smallest_permutation_p(len(first), len(second))
    return PairedDifference(mean, welch_interval(first, second), p, len(second), smallest)


def smallest_permutation_p(first: int, second: int) -> float:
    """Return the least p of a permutation test of samples of these sizes: the observed split, and its mirror image."""
    exact = (2 if first == second else 1) / math.comb(first + second, first)
    return max(exact, 1 / (1 + RANDOM_SIGNS))


def welch_interval(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float] | None:
    """Return the 95 % interval of mean(b) − mean(a) by Welch's t; None where neither sample varies.

    Source: Welch 1947, with Satterthwaite's degrees of freedom.
    """
    from scipy.special import stdtrit  # scipy.stats, which has it whole, takes half a second to import

    sizes = np.array([len(a), len(b)])
    errors = np.array([values.var(ddof=1) for values in (a, b)]) / sizes
    total = float(errors.sum())
    if total <= (SAME * float(np.abs(np.concatenate([a, b])).max())) ** 2:
        return None
    freedom = total**2 / float((errors**2 / (sizes - 1)).sum())
    middle, half = float(b.mean() - a.mean()), float(stdtrit(freedom, 0.975)) * math.sqrt(total)
    return middle - half, middle + half


def permutation_p(a: NDArray[np.float64], b: NDArray[np.float64], rng: np.random.Generator) -> float:
    """Return the share of random splits whose means differ at least as much as the observed ones, counting those."""
    together = np.concatenate([a, b])
    seen = abs(b.mean() - a.mean()) * (1 - 1e-12)
    more, left_to_do = 0, RANDOM_SIGNS
    while left_to_do:
        count = min(left_to_do, max(1, AT_ONCE // len(together)))
        left = rng.permuted(np.tile(together, (count, 1)), axis=1)[:, : len(a)].sum(axis=1)
        more += int(np.sum(abs((together.sum() - left) / len(b) - left / len(a)) >= seen))
        left_to_do -= count
    return float((1 + more) / (1 + RANDOM_SIGNS))
