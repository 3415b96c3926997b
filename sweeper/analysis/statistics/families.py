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

from sweeper.analysis.statistics.basics import Values
from sweeper.analysis.statistics.differences import (
    PairedDifference,
    difference_of,
    holm,
    paired_difference,
    smallest_holm,
)
from sweeper.text.cells import Row, Rows, Value, float_of

REFERENCE = "cross_entropy"
"""What papers compare with; without it, the family with most finished configurations."""

MINIMUM = 2
"""Settings, configurations or replicates on each side, below which nothing is compared."""

SETTINGS, CONFIGURATIONS, SEEDS, REPLICATES = "settings", "configurations", "seeds", "replicates"
"""What is compared: pairs at equal settings, configurations as they come, the chosen ones' replicates on equal seeds,
or these as they come."""


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


def unpaired_difference(a: Values, b: Values) -> PairedDifference:
    """Return mean(b) − mean(a) of two independent samples, with the interval and p of `means.difference_of`.

    No interval where neither sample varies. `n` is the length of b. Shuffling which value belongs to which sample
    (Fisher 1935) rejects equal means in up to 20 % of samples of 4 and 24, where the few spread more.
    """
    found = difference_of(b, a)
    return PairedDifference(found.value, found.interval(), found.p, len(b))
