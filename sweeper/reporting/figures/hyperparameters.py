"""Hyperparameters: the importance of each, and all in one plot with the objective and test metrics.

Importance is measured at an epoch that every compared trial reached. A conditional space has branches: γ exists only
for focal losses, and focal's γ differs from inverse focal's. So each branch is analysed separately. One analysis uses
all trials, with the hyperparameters that all of them have. Another uses the trials of one component, with its own
hyperparameters and the common ones.

In each branch, a random forest learns the rank of the objective from the hyperparameters. A hyperparameter's importance
is half the drop of R² on held-out trials when its values are shuffled (Breiman 2001, Random Forests, §10). Shuffling
adds twice the variance that the hyperparameter explains (Gregorutti, Michel & Saint-Pierre 2017, arXiv:1310.5726), so
half the drop is its share of the variance, interactions included. Forests as models of the objective: Hutter, Hoos &
Leyton-Brown 2014, An Efficient Approach for Assessing Hyperparameter Importance. Shuffling gives plausible
configurations only if hyperparameters were drawn independently, which holds within a branch of a sweep. Ranks are used
because a few diverged trials would otherwise dominate the variance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeper.core.cells import Rows, Value, float_of, float_or_none, floats, int_of, text_of
from sweeper.core.labels import STATUS_WORDS, Symbols, number, plural, short, symbols_of
from sweeper.reporting.figures.base import (
    FIGURES,
    Figure,
    Json,
    Panel,
    bars_to,
    ends,
    mark,
    names,
    paint,
    quantity,
    unseen,
)
from sweeper.reporting.figures.configurations import counted, evenly, statuses
from sweeper.results import Results
from sweeper.results.leaderboard import Goal, Leaderboard, leaderboard, objective, searcher, varying_columns
from sweeper.results.queries import measured_sql

#: Smallest number of trials in an analysed branch. With fewer, each of the five folds would test on fewer than four.
MINIMUM_TRIALS = 20

#: Number of trials sampled from a larger branch. With more trials R² no longer changes, but the time grows linearly.
MOST_TRIALS = 2_000

#: Five folds are usual (Hastie, Tibshirani & Friedman 2009, §7.10). With 60 trees and 5 shuffles per fold, the
#: Monte-Carlo error is well below the spread over folds.
FOLDS, TREES, SHUFFLES = 5, 60, 5

#: Random seed of folds, forests and shuffles.
SEED = 0


class Importance(NamedTuple):
    """One hyperparameter in one branch.

    Attributes:
        column: its `config_…` column.
        mean: share of the variance of ranks on held-out trials, mean over folds. Noise can make it negative.
        deviation: standard deviation over folds. It is not a standard error, because folds share training data.
    """

    column: str
    mean: float
    deviation: float


class Branch(NamedTuple):
    """A set of trials that have the same hyperparameters.

    Attributes:
        name: `all`, or the component's name, e.g. `focal`.
        importances: importances, largest first.
        r_squared: R² of ranks on held-out trials, mean over folds. It is at most 0 if the forest learned nothing.
        n: number of trials.
    """

    name: str
    importances: Sequence[Importance]
    r_squared: float
    n: int


def importances(rows: Rows, columns: Sequence[str]) -> list[Branch]:
    """Return the branches with enough trials, all trials first.

    Args:
        rows: one row per trial, with `columns` and `objective`. Rows without a finite objective are left out.
        columns: `config_…` columns that vary.
    """
    usable = [row for row, value in zip(rows, floats(rows, "objective"), strict=True) if math.isfinite(value)]
    analysed_branches = []
    for name, mine in branches(usable, columns):
        own = [column for column in columns if explains(mine, column)]
        if len(mine) >= MINIMUM_TRIALS and len(own) > 1:
            analysed_branches.append(analysed(name, mine, own))
    return analysed_branches


def branches(rows: Rows, columns: Sequence[str]) -> list[tuple[str, Rows]]:
    """Return all rows, and the rows of each component that has its own hyperparameters."""
    parts: list[tuple[str, Rows]] = [("all", rows)]
    for owner in (column for column in columns if column.endswith("_name")):
        prefix = owner.removesuffix("name")
        for name in sorted({str(row[owner]) for row in rows}):
            mine = [row for row in rows if str(row[owner]) == name]
            own = [c for c in columns if c.startswith(prefix) and c != owner and explains(mine, c)]
            if own and len(mine) < len(rows):  # the branch of the only component would repeat that of all rows
                parts.append((name, mine))
    return parts


def explains(rows: Rows, column: str) -> bool:
    """Return whether every row has the hyperparameter and it has more than one value."""
    values = {row.get(column) for row in rows}
    return None not in values and len(values) > 1


def analysed(name: str, rows: Rows, columns: Sequence[str]) -> Branch:
    """Return the importances of `columns` among `rows`."""
    # Imported here, because importing scikit-learn takes a second and most commands do not need it.
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.model_selection import KFold

    if len(rows) > MOST_TRIALS:
        kept = np.random.default_rng(SEED).choice(len(rows), MOST_TRIALS, replace=False)
        rows = [rows[at] for at in sorted(kept)]
    features = np.column_stack([encoded(rows, column) for column in columns])
    ranks = np.argsort(np.argsort(floats(rows, "objective"))) / len(rows)
    scores, shares, rng = [], [], np.random.default_rng(SEED)
    for train, test in KFold(FOLDS, shuffle=True, random_state=SEED).split(features):
        forest = RandomForestRegressor(TREES, min_samples_leaf=2, random_state=SEED, n_jobs=1)
        forest.fit(features[train], ranks[train])
        held_out = ranks[test]
        variance = float(held_out.var()) or np.nan
        # One call predicts all shuffles, because a forest takes longer to start than to predict: scikit-learn's
        # permutation_importance takes three times as long. The first copy of the test data is unchanged; each further
        # copy has one column shuffled.
        copies = np.repeat(features[test][None], 1 + len(columns) * SHUFFLES, axis=0)
        for at, copy in enumerate(copies[1:]):
            copy[:, at // SHUFFLES] = rng.permutation(copy[:, at // SHUFFLES])
        predicted = forest.predict(copies.reshape(-1, len(columns))).reshape(len(copies), -1)
        r_squared = 1 - ((predicted - held_out) ** 2).mean(axis=1) / variance
        scores.append(r_squared[0])
        shares.append((r_squared[0] - r_squared[1:].reshape(len(columns), SHUFFLES).mean(axis=1)) / 2)
    means, deviations = np.mean(shares, axis=0).tolist(), np.std(shares, axis=0, ddof=1).tolist()
    ranked = sorted(map(Importance, columns, means, deviations), key=lambda importance: -importance.mean)
    return Branch(name, ranked, float(np.mean(scores)), len(rows))


def encoded(rows: Rows, column: str) -> NDArray[np.float64]:
    """Return a hyperparameter as numbers. Names become alphabetical ranks, which trees can split as needed."""
    values = [row[column] for row in rows]
    if any(isinstance(value, (str, bool)) for value in values):
        names = sorted({str(value) for value in values})
        return np.array([names.index(str(value)) for value in values], dtype=np.float64)
    return np.array(values, dtype=np.float64)


#: Caution for sweeps in which a searcher chose the configurations.
CHOSEN = (
    " A searcher chose these configurations: a hyperparameter that it fixed early varies little and so seems "
    "unimportant."
)


@FIGURES.add(
    "importance",
    place=120,
    absent=f"Hyperparameter importance: fewer than {MINIMUM_TRIALS} comparable configurations, or fewer than two "
    "hyperparameters that vary.",
)
def draw_importance(results: Results) -> Figure | None:
    """Return one panel per branch of the space; None if no branch has enough trials."""
    goal, varying = objective(results), varying_columns(results)
    if len(varying) < 2 or goal.metric not in results.columns("epochs"):
        return None
    epoch, symbols = common_epoch(results), symbols_of(results.quantities)
    sql = values_sql(results, goal, varying, epoch)
    branches_found = importances(results.rows(sql), varying)
    if not branches_found:
        return None
    when = "at their last epoch" if epoch is None else f"at epoch {epoch}, the first rung, including early-stopped ones"
    return Figure(
        title="Which hyperparameters matter",
        caption=(
            f"Share of the variance in the rank of trials by {goal.label} attributed to each hyperparameter, "
            f"with interactions: half the drop of a random forest’s R² on held-out trials when its values are "
            f"shuffled (bars: standard deviation over {FOLDS} folds). Trials are compared {when}. A hyperparameter "
            "is compared among trials that have it, so each branch of the space has its own panel."
            + (CHOSEN if searcher(results) else "")
        ),
        sql=[sql],
        tables=["epochs", "evaluations", "trials"],
        panels=[branch_panel(branch, symbols) for branch in branches_found],
        findings=findings(branches_found[0], goal, "the last epoch" if epoch is None else f"epoch {epoch}", symbols),
    )


def common_epoch(results: Results) -> int | None:
    """Return the first rung at which trials were stopped. There, stopped and finished trials can be compared.

    None if no trial was stopped. Finished trials are then compared at their end.
    """
    sql = "SELECT min(stop_rung) AS rung FROM trials WHERE status = 'early_stopped'"
    first = results.rows(sql)[0]
    return None if first["rung"] is None else int_of(first, "rung")


def values_sql(results: Results, goal: Goal, varying: Sequence[str], epoch: int | None) -> str:
    """Return the query of one row per trial: its hyperparameters and the objective at the epoch of comparison."""
    at = "status = 'completed' AND epoch = epochs" if epoch is None else f"epoch = {epoch}"
    columns = ", ".join(f"any_value({name}) AS {name}" for name in varying)
    return (
        f"SELECT trial, avg(value) AS objective, count(*) AS replicates,\n  {columns}\n"
        f"FROM ({measured_sql(results, goal.metric)}) JOIN trials USING (trial, replicate)\n"
        f"WHERE {at} GROUP BY trial ORDER BY trial"
    )


def branch_panel(branch: Branch, symbols: Symbols) -> Panel:
    """Return the panel of one branch: one bar per hyperparameter, the most important on top."""
    rows = [
        {"name": short(column, symbols), "share": mean, **ends((mean - deviation, mean + deviation)),
         "says": f"{short(column, symbols)}: share {mean:.3f} ± {deviation:.3f}"}
        for column, mean, deviation in branch.importances
    ]  # fmt: skip
    layers = [mark("bar", rows), bars_to(rows, along="x", color=paint("soft"))]
    heading = "all configurations" if branch.name == "all" else f"{branch.name} only"
    learned = f"R² on held-out trials {branch.r_squared:.2f}, n = {plural(branch.n, 'configuration')}."
    if branch.r_squared <= 0:
        learned += " The forest explains nothing here: ignore the bars."
    if branch.n == MOST_TRIALS:
        learned += " A random sample of all trials."
    across, up = quantity("share", "share of the variance", zero=True), names("name")
    return Panel(heading, layers, across, up, [learned])


def findings(branch: Branch, goal: Goal, when: str, symbols: Symbols) -> list[str]:
    """Return a sentence on the most important hyperparameter of all trials; empty if the forest explains nothing."""
    first = branch.importances[0]
    if branch.name != "all" or branch.r_squared <= 0:
        return []
    return [
        f"Most important for {goal.label} at {when}, over all configurations: {short(first.column, symbols)}, "
        f"with {first.mean:.0%} ± {first.deviation:.0%} of the variance in rank (n = {branch.n})."
    ]


#: Smallest width of an axis with its labels, in pixels.
AXIS_WIDTH = 90

#: Largest number of lines. More would cover each other, and drawing them without a GPU would take seconds.
MOST_LINES = 1500

#: Number of best configurations that are always among the lines.
BEST_LINES = 500

#: An axis is logarithmic if the ratio of its largest to its smallest positive value is at least this.
WIDE_RANGE = 20.0


@FIGURES.add(
    "parallel_coordinates",
    place=110,
    absent="Parallel coordinates: fewer than two evaluated configurations, or nothing varies.",
)
def draw_parallel_coordinates(results: Results) -> Figure | None:
    """Return the plot over all evaluated configurations; None if nothing varies."""
    board = leaderboard(results)
    # A diverged configuration is left out: it has no rank, and so no colour.
    rows = [row for row in board.rows if (judged := float_or_none(row, "judged")) is not None and math.isfinite(judged)]
    if len(rows) < 2 or not board.varying:
        return None
    shown = thin_lines(rows, board.objective.mode)
    thinned = f" {len(shown):,} are drawn: the best {BEST_LINES}, and the others thinned evenly by rank."
    left_out = thinned if len(shown) < len(rows) else ""
    return Figure(
        title="Hyperparameters and outcome",
        caption=(
            f"One line per configuration, {counted(rows)}; only hyperparameters that vary. “none”: the "
            f"configuration does not have it. Colour: rank by {board.objective.label}, the best stand out. Drag over "
            "an axis to select a range: other plots and the table of trials then have those alone; click to end."
            f"{left_out}"
        ),
        sql=[board.sql],
        panels=[panel(board, shown)],
    )


def thin_lines(rows: Rows, mode: str) -> Rows:
    """Return at most MOST_LINES rows in their order: the BEST_LINES best, and others at equal distances by rank."""
    if len(rows) <= MOST_LINES:
        return rows
    ordered = sorted(range(len(rows)), key=lambda at: float_of(rows[at], "judged"), reverse=mode == "max")
    kept = {*ordered[:BEST_LINES], *evenly(ordered[BEST_LINES:], MOST_LINES - BEST_LINES)}
    return [row for at, row in enumerate(rows) if at in kept]


class Dimension(NamedTuple):
    """An axis of parallel coordinates: label, positions of the lines in [0, 1], and position → tick label."""

    label: str
    places: Sequence[float]
    ticks: Mapping[float, str]

    @property
    def width(self) -> int:
        """Width of the widest label, in pixels."""
        # 5.3 is the mean width of a character at 9.5 pixels, and 10 the gap to the next axis.
        return max(AXIS_WIDTH, 10 + math.ceil(5.3 * max(map(len, [self.label, *self.ticks.values()]))))


def panel(board: Leaderboard, rows: Rows) -> Panel:
    """Return the parallel coordinates: status, hyperparameters and outcome, one column of the data per axis."""
    dimensions = dimensions_of(board, rows)
    columns = [f"axis_{at}" for at in range(len(dimensions))]
    # Ranks spread the colours evenly. By value, one bad configuration would stretch the whole scale.
    best_first = sorted(
        range(len(rows)), key=lambda at: float_of(rows[at], "judged"), reverse=board.objective.mode == "max"
    )
    lines: list[Json] = [
        {"trial": rows[at]["trial"], "status": rows[at]["status"], "rank": rank, "says": board.describe(rows[at]),
         **{column: axis.places[at] for column, axis in zip(columns, dimensions, strict=True)}}
        for rank, at in enumerate(best_first)
    ]  # fmt: skip
    ticks: list[Json] = [
        {"axis": column, "place": place, "words": words}
        for column, axis in zip(columns, dimensions, strict=True)
        for place, words in axis.ticks.items()
    ]
    labels = json.dumps({column: axis.label for column, axis in zip(columns, dimensions, strict=True)})
    x = names("axis", "", columns)
    x["axis"] = {"labelExpr": f"{labels}[datum.value]", "orient": "top", "labelAngle": 0, "grid": True, "title": None}
    rank: Json = {"field": "rank", "type": "quantitative", "legend": None}
    drawn = mark("line", lines[::-1], look={"strokeWidth": 1.3, "opacity": 0.8}, color=rank, detail={"field": "trial"})
    drawn["transform"] = [{"fold": columns, "as": ["axis", "place"]}]
    halo = {
        "align": "left",
        "dx": 4,
        "fontSize": 9.5,
        "stroke": {"expr": "card"},
        "strokeWidth": 3,
        "strokeJoin": "round",
    }
    words: Json = {"field": "words"}
    # Texts are drawn twice: Vega paints a text's stroke over its fill, so the halo needs a separate layer below.
    layers = [
        drawn,
        mark("text", ticks, look=halo, text=words),
        mark("text", ticks, look={**halo, "strokeWidth": 0}, text=words),
    ]
    width = max(axis.width for axis in dimensions) * len(dimensions)
    return Panel("", layers, x, unseen("place", (-0.03, 1.03)), width=width)


def dimensions_of(board: Leaderboard, rows: Rows) -> list[Dimension]:
    """Return the axes from left to right."""
    goal = board.objective
    words, order = [STATUS_WORDS[text_of(row, "status")] for row in rows], [STATUS_WORDS[s] for s in statuses(rows)]
    axes = [named_axis("status", words, order)] if len(order) > 1 else []
    axes += [dimension(short(column, board.symbols), [row[column] for row in rows]) for column in board.varying]
    outcomes = {"judged": goal.label, "test_accuracy": "test accuracy", "test_ece": "test ECE"}
    return axes + [dimension(text, [row[name] for row in rows]) for name, text in outcomes.items() if name in rows[0]]


def dimension(heading: str, values: Sequence[Value]) -> Dimension:
    """Return one axis: names are spread evenly, numbers over a wide range are logarithmic, None is at the bottom."""
    if any(isinstance(value, (str, bool)) for value in values):
        texts = ["none" if value is None else str(value) for value in values]
        return named_axis(heading, texts, sorted({*texts}, key=lambda name: (name != "none", name)))
    present = [value for value in values if isinstance(value, (int, float)) and value == value]
    log = min(present, default=0) > 0 and max(present) / min(present) >= WIDE_RANGE
    scaled: dict[Value, float] = {value: math.log10(value) if log else float(value) for value in set(present)}
    low, high = min(scaled.values(), default=0.0), max(scaled.values(), default=1.0)
    missing = len(present) < len(values)
    ticks = {tick: number(10**tick if log else tick) for tick in ticks_between(low, high, log)}
    bottom = 0.13 if missing else 0.0  # leaves room for "none" at 0

    def place(value: float) -> float:
        return round(bottom + (1 - bottom) * (value - low) / ((high - low) or 1.0), 5)

    places = [place(scaled[value]) if value in scaled else 0.0 for value in values]
    return Dimension(heading, places, {**({0.0: "none"} if missing else {}), **{place(at): ticks[at] for at in ticks}})


def named_axis(heading: str, values: Sequence[str], order: Sequence[str]) -> Dimension:
    """Return an axis of names, in the given order from the bottom."""
    place = {name: at / max(1, len(order) - 1) for at, name in enumerate(order)}
    return Dimension(heading, [place[value] for value in values], {at: name for name, at in place.items()})


def ticks_between(low: float, high: float, log: bool) -> list[float]:
    """Return four to six ticks within [low, high]: 1, 2, 5 times powers of ten on a logarithmic axis."""
    if log:
        multiples = (1, 3) if high - low > 1.5 else (1, 2, 5)
        ticks = [math.log10(m) + e for e in range(math.floor(low), math.ceil(high) + 1) for m in multiples]
        return [tick for tick in ticks if low <= tick <= high]
    if high <= low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(step * m for m in (1, 2, 2.5, 5, 10) if (high - low) / (step * m) <= 5)
    first = math.ceil(low / step)
    return [round(at * step, 12) for at in range(first, math.floor(high / step) + 1)]
