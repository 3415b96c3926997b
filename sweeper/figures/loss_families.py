"""Each loss family against cross-entropy on test data, with intervals and multiplicity-corrected p-values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from sweeper.analysis.statistics.differences import (
    CONFIGURATIONS,
    MINIMUM,
    REPLICATES,
    SEEDS,
    SETTINGS,
    SIGNIFICANT,
    FamilyComparison,
    compare_families,
    p_text,
    reference_of,
)
from sweeper.figures.base import FIGURES, Axis, Curve, Figure, Panel, error_bars
from sweeper.figures.configurations import categories
from sweeper.results import Results
from sweeper.results.leaderboard import Leaderboard, leaderboard, searcher
from sweeper.text.cells import by_trial, float_or_none, int_of
from sweeper.text.labels import label, plural
from trainables.metrics.base import metric_of
from trainables.registry.names import measured_as

METRICS = ("test_ece", "test_nll", "test_accuracy")

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
    shown = found[::-1]
    means = [item.difference.mean for item in shown]
    split, name = measured_as(metric)
    metric_known = metric_of(name)
    furthest = math.inf if metric_known is None else metric_known.range[1] - metric_known.range[0]
    known = [item.difference.interval for item in shown]
    limits = [pair and (max(pair[0], -furthest), min(pair[1], furthest)) for pair in known]
    names, said = [item.family for item in shown], [sentence(item) for item in shown]
    points = Curve(means, names, size=9, error_x=error_bars(means, limits), text=said)
    x, y = Axis(f"difference from {reference}"), Axis("", names=True)
    return Panel(f"{before}{split} {label(name)}", notes(found), [points], x, y, verticals={0: ""})


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
    size = plural(mine, "pair") if item.unit in (SETTINGS, SEEDS) else f"{mine} against {other} {item.unit}"
    limits = item.difference.interval
    around = "no interval" if limits is None else f"95 % {limits[0]:+.3g} … {limits[1]:+.3g}"
    text = f"{item.difference.mean:+.3g} ({around}, n = {size})".replace("-", "−")
    return f"{item.family}: {text}"
