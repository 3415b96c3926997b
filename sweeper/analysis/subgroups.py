"""Calibration of subgroups: where samples share a column's value, is a network as often right as it says?

Of each group the gap between mean confidence and accuracy, with an interval for the mean chance of being right on these
very samples: their number of right answers is a sum of independent indicators of unequal chances, whose tails are at
most those of the binomial of the same mean (Hoeffding 1956), so Clopper & Pearson's interval (1934) holds at every n.
Each group's level is 1 − .025/G, so that all G intervals hold together in 97.5 % (Bonferroni). The exact p-value of the
cutoff calibration error (`cutoff_p`), which also sees gaps that cancel within a group, is Holm's and counts at .025: a
calibrated network gets a verdict in at most 5 %. What is said of a configuration holds for each of its networks:
intervals are joined, p-values the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import RenderableType

from sweeper.analysis.predictions import MEASURED_ON, finished_members
from sweeper.analysis.statistics.differences import holm
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.text.display import plain_table
from sweeper.text.labels import plural
from trainables.metrics import evaluate_probabilities
from trainables.metrics.base import Floats, Integers
from trainables.metrics.calibration_tests import cutoff_p
from trainables.posthoc import PosthocUnavailable

#: Numbers of more values are cut into quarters; of texts there may be at most so many.
MOST_GROUPS = 50

#: That all intervals hold; p-values at the rest.
LEVEL = 0.975

MISSING = "(missing)"

MEASURES = ("accuracy", "confidence", "ece")


@dataclass(frozen=True)
class Subgroup:
    """One group of test samples under one configuration: means over its networks.

    Attributes:
        name: the column's value, or the range of its quarter.
        samples: n.
        accuracy, confidence, ece: of the group's samples; the last is biased upwards at small n.
        gap: confidence less accuracy; positive where the network is too sure.
        low, high: of the interval of the gap.
        p: that a calibrated network would look as bad, Holm's over groups.
    """

    name: str
    samples: int
    accuracy: float
    confidence: float
    ece: float
    gap: float
    low: float
    high: float
    p: float

    @property
    def verdict(self) -> str:
        """What the interval and the test say."""
        if self.low > 0:
            return "too sure"
        if self.high < 0:
            return "not sure enough"
        return "miscalibrated" if self.p <= 1 - LEVEL else "no clear gap"


@dataclass(frozen=True)
class Subgroups:
    """The groups of a column, the largest distance of an interval from 0 first."""

    trial: str
    column: str
    method: str | None
    networks: int
    groups: Sequence[Subgroup]


def groups_of(values: Sequence[object], column: str) -> tuple[list[str], Integers]:
    """Return the groups' names and each sample's group. Raises SweeperError for a text of too many values."""
    distinct = {each for each in values if each is not None}
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in distinct)
    if len(distinct) > MOST_GROUPS and not numbers:
        raise SweeperError(
            f"the column {column!r} has {len(distinct):,} values, which are no groups",
            f"name one of at most {MOST_GROUPS}, or of numbers, which are cut into quarters",
        )
    if len(distinct) <= MOST_GROUPS:
        texts = [MISSING if each is None else str(each) for each in values]
    else:
        known = np.array([np.nan if each is None else each for each in values], dtype=np.float64)
        cuts = np.unique(np.nanquantile(known, (0.0, 0.25, 0.5, 0.75, 1.0)))
        quarter = np.clip(np.searchsorted(cuts, known, side="left") - 1, 0, len(cuts) - 2)
        ranges = [f"{low:.4g} … {high:.4g}" for low, high in pairwise(cuts)]
        texts = [MISSING if np.isnan(x) else ranges[q] for x, q in zip(known, quarter, strict=True)]
    names = list(dict.fromkeys(texts))
    return names, np.array([names.index(text) for text in texts])


def right_interval(right: int, samples: int, level: float) -> tuple[float, float]:
    """Return Clopper & Pearson's interval for the mean chance of being right."""
    from scipy.stats import binomtest

    found = binomtest(right, samples).proportion_ci(level, "exact")
    return float(found.low), float(found.high)


def measured_groups(
    networks: Sequence[Floats], targets: Integers, names: Sequence[str], of: Integers
) -> list[Subgroup]:
    """Return every group's calibration under `networks`' probabilities, each [N, K], the clearest gap first."""
    level = 1 - (1 - LEVEL) / len(names)
    mine = [of == number for number in range(len(names))]
    ps = holm([max(cutoff_p(values[rows], targets[rows]) for values in networks) for rows in mine])
    found: list[Subgroup] = []
    for name, rows, p in zip(names, mine, ps, strict=True):
        parts, lows, highs, labels = [], [], [], targets[rows]
        for probabilities in networks:
            values = probabilities[rows]
            parts.append(evaluate_probabilities(values, labels, min(15, len(labels)), MEASURES))
            low, high = right_interval(int((values.argmax(1) == labels).sum()), len(labels), level)
            lows.append(parts[-1]["confidence"] - high)
            highs.append(parts[-1]["confidence"] - low)
        accuracy, confidence, ece = (float(np.mean([part[key] for part in parts])) for key in MEASURES)
        gap = confidence - accuracy
        found.append(Subgroup(name, len(labels), accuracy, confidence, ece, gap, min(lows), max(highs), p))
    return sorted(found, key=lambda each: (-max(each.low, -each.high), each.p))


def subgroup_calibration(
    results: Results, column: str, *, file: str | None = None, method: str | None = None
) -> Subgroups:
    """Return the calibration of a column's groups on test data, of the best finished configuration.

    Args:
        results: of the sweep.
        column: of the data set's own table (`table` and `text_table`), also one that is no feature; or of `file`.
        file: CSV, Parquet or JSON Lines with a row for each test sample, in their order.
        method: a post-hoc method that is fitted on validation data and applied first; None for none.

    Raises:
        SweeperError: as `finished_members`; the data set has no columns, or others than the sweep had; the method
            cannot be fitted.
    """
    members = finished_members(results, most=1)
    targets = members[0].targets[MEASURED_ON]
    names, of = groups_of(_column(results.specification.get("dataset"), column, file, targets), column)
    try:
        networks = [member.probabilities(MEASURED_ON, method) for member in members]
    except (PosthocUnavailable, ValueError) as error:
        raise SweeperError(str(error), "see `sweeper spaces --posthoc`") from error
    return Subgroups(members[0].trial, column, method, len(members), measured_groups(networks, targets, names, of))


def _column(dataset: object, column: str, file: str | None, targets: Integers) -> list[object]:
    """Return a column's value for each test sample."""
    from trainables.datasets.cache import DataSetUnavailableError
    from trainables.datasets.own_tables import read_table, split_column

    options: Mapping[str, Any] = dataset if isinstance(dataset, Mapping) else {"name": dataset}
    try:
        if file is None and options.get("name") not in ("table", "text_table"):
            raise SweeperError(
                f"the data set {options.get('name')} has no columns",
                "give --file, a table with a row for each test sample in their order",
            )
        if file is None:
            values, classes = split_column(options, column, MEASURED_ON)
            if not np.array_equal(classes, targets):
                raise SweeperError(f"{options['file']} has other test rows than the sweep had", "give the file it had")
            return values
        table = read_table(file)
        if column not in table.column_names or len(table) != len(targets):
            raise SweeperError(
                f"{file} has {len(table):,} rows with the columns {', '.join(table.column_names)}",
                f"it needs the column {column!r} and a row for each of the {len(targets):,} test samples",
            )
        found: list[object] = table.column(column).to_pylist()
        return found
    except DataSetUnavailableError as error:
        raise SweeperError(str(error), "check the file and the column") from error


def subgroups_view(found: Subgroups) -> RenderableType:
    """Return the groups as a table for a terminal, and what holds for all in a sentence."""
    headings = (found.column, "n", "accuracy", "confidence", "gap", "97.5 % for all", "ECE", "p", "")
    rows = []
    for each in found.groups:
        interval = f"{each.low:+.3f} … {each.high:+.3f}"
        shown = (f"{each.accuracy:.3f}", f"{each.confidence:.3f}", f"{each.gap:+.3f}", interval, f"{each.ece:.3f}")
        rows.append((each.name, f"{each.samples:,}", *shown, f"{each.p:.3g}", each.verdict))
    after = f" after {found.method}" if found.method else ""
    note = (
        f"{found.trial}, {plural(found.networks, 'network')}{after}, test data. Gap: mean confidence less accuracy; "
        f"all {len(found.groups)} intervals hold together, for each network. p: cutoff calibration test, Holm's. "
        "A calibrated network gets any verdict in at most 5 %. ECE is biased upwards in small groups."
    )
    return plain_table(headings, rows, left=(found.column, ""), note=note)
