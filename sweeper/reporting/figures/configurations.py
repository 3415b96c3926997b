"""Shared by the scatter figures: one row per configuration, its categories, and points by architecture and status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from sweeper.core.cells import Row, Rows, float_of, float_or_none, grouped, measured_or_none, text_of
from sweeper.core.labels import STATUS_WORDS, label, number, plural
from sweeper.core.statistics.basics import MINIMUM_PAIRS, correlation, spread_text
from sweeper.reporting.figures.base import DONE, FRAME, Json, bars_to, colour, ends, full_where, mark, points
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED
from trainables.curvature.statistics.base import headline_columns, measured_loss
from trainables.registry.names import QUANTITIES

#: Loss whose Hessian an evaluation can measure → name of the Hessian. A sweep can also request just one of them.
HESSIANS = {loss: f"Hessian of {measured_loss(loss)}" for loss in ("training", "cross_entropy")}

MEASURED = ("ece", "nll", "accuracy", *headline_columns())


AnyRow = TypeVar("AnyRow", bound=Row)
Member = TypeVar("Member")

#: Largest number of finished trials, and of others, drawn in a panel or listed in a table of the report. More points
#: would cover each other and take seconds to draw.
MOST_POINTS = 1000


def categories(rows: Iterable[Row], column: str) -> list[str]:
    """Return the sorted values of `column`, so that a category has the same colour in all figures."""
    return sorted({str(row[column]) for row in rows})


def statuses(rows: Iterable[Row]) -> list[str]:
    """Return the statuses that occur, finished first."""
    order = list(STATUS_WORDS)
    return sorted({str(row["status"]) for row in rows}, key=order.index)


def counted(rows: Rows, noun: str = "configuration") -> str:
    """Return e.g. `14 configurations (5 finished, 9 stopped early)`."""
    parts = [f"{sum(row['status'] == s for row in rows)} {STATUS_WORDS[s]}" for s in statuses(rows)]
    return f"{plural(len(rows), noun)} ({', '.join(parts)})"


def thin_points(rows: Sequence[AnyRow]) -> tuple[list[AnyRow], list[str]]:
    """Return at most MOST_POINTS finished rows and as many others, and a remark on each kind that is thinned.

    They are chosen at equal distances, in the order of `rows`. Statistics must use all rows.
    """
    shown, remarks = list[int](), list[str]()
    for kind in ("finished", "unfinished"):
        places = [at for at, row in enumerate(rows) if (row["status"] == "completed") == (kind == "finished")]
        kept = evenly(places, MOST_POINTS)
        shown += kept
        if len(kept) < len(places):
            few = f"{MOST_POINTS:,} of {len(places):,} {kind} points are drawn"
            remarks.append(f"Evenly thinned: {few}; statistics use all.")
    return [rows[at] for at in sorted(shown)], remarks


def evenly(members: Sequence[Member], most: int) -> list[Member]:
    """Return at most `most` (at least two) members at equal distances, the first and the last among them.

    Example:
        >>> evenly("abcdefg", 3), evenly("ab", 3)
        (['a', 'd', 'g'], ['a', 'b'])
    """
    if len(members) <= most:
        return [*members]
    return [members[at * (len(members) - 1) // (most - 1)] for at in range(most)]


def measured_hessians(results: Results) -> dict[str, str]:
    """Return the members of HESSIANS for which this sweep's evaluations have columns, even if these are empty."""
    present = set(results.columns("evaluations"))
    return {loss: words for loss, words in HESSIANS.items() if f"hessian_{loss}_samples" in present}


def configuration_rows(
    results: Results, condition: str = "true", more: Mapping[str, str] | None = None
) -> tuple[str, Rows]:
    """Return the query and rows of every evaluated configuration: validation split, last evaluation.

    The columns are `trial status epoch loss architecture samples replicates`, the loss's QUANTITIES, the columns in
    MEASURED with their `…_sd`, and the names in `more` (name → `config_…` column). Replicates of a trial are averaged
    only if they have the same epoch, status and Hessian sample size. NaN becomes None.
    """
    trials = set(results.columns("trials"))
    present = set(results.columns("evaluations"))
    keys = {"loss": "config_loss_name", "architecture": "config_architecture_name", **(more or {})}
    # A sweep with one loss has no `config_loss_…` column, but users of the rows rely on the same names everywhere.
    selected = [f"{column if column in trials else 'NULL'} AS {name}" for name, column in keys.items()]
    selected += [f"{results.quantity(name) or 'NULL'} AS {name}" for name in QUANTITIES]
    sizes = [f"hessian_{loss}_samples" for loss in measured_hessians(results)]
    selected.append(f"coalesce({', '.join([*sizes, 'NULL'])}) AS samples")
    measured = [f"avg({name}) AS {name}, stddev_samp({name}) AS {name}_sd" for name in MEASURED if name in present]
    columns = ",\n  ".join([*selected, "count(*) AS replicates", *measured])
    sql = (
        f"SELECT trial, status, epoch,\n  {columns}\nFROM final\nWHERE split = 'val' AND {condition}\n"
        "GROUP BY ALL ORDER BY trial, epoch"
    )
    rows = results.rows(sql)
    # Only NaN differs from itself. `isnan` would refuse the columns of text.
    return sql, [{name: None if value != value else value for name, value in row.items()} for row in rows]


def one_sample_size(rows: Rows) -> tuple[Rows, str]:
    """Return the rows with the most frequent Hessian sample size, and a sentence on the size and the rows left out.

    A subset's size biases its curvature, so values of different sizes are never shown together. Both are empty if no
    Hessian was measured.
    """
    sizes = Counter(float_of(row, "samples") for row in rows if row["samples"] is not None)
    if not sizes:
        return [], ""
    size, count = sizes.most_common(1)[0]
    text = f"Hessian on {int(size)} validation samples."
    if left_out := sizes.total() - count:
        text += f" {left_out} measured on a different number of samples are left out; their values are not comparable."
    return [row for row in rows if row["samples"] == size], text


def rank_correlations(rows: Rows, x: str, y: str) -> list[str]:
    """Return Spearman's correlation of two columns over finished trials in words, one sentence per architecture.

    If unfinished trials were evaluated too, the correlation over all trials follows.
    """
    sentences: list[str] = []
    for architecture in sorted({str(row["architecture"]) for row in rows}):
        mine = [row for row in rows if str(row["architecture"]) == architecture]
        finished = [row for row in mine if row["status"] == FINISHED]
        text = f"{architecture}: finished {correlated(finished, x, y)}"
        if len(finished) < len(mine):
            text += f"; including unfinished {correlated(mine, x, y)}"
        sentences.append(f"{text}.")
    return sentences


def correlated(rows: Rows, x: str, y: str) -> str:
    """Return one correlation with its interval and n, or why there is none."""
    # Rows with equal pairs of values are repetitions of one training. Counting them would narrow the interval.
    every = [(measured_or_none(row, x), measured_or_none(row, y)) for row in rows]
    known = dict.fromkeys((a, b) for a, b in every if a is not None and b is not None)
    rho = correlation([a for a, _ in known], [b for _, b in known])
    if rho is not None:
        return rho.text()
    return f"n = {len(known)}, too few for ρ" if len(known) < MINIMUM_PAIRS else f"n = {len(known)}, all values equal"


def above_zero(rows: Rows, column: str) -> Rows:
    """Return the rows with a positive value, which a logarithmic axis can show."""
    return [row for row in rows if (float_or_none(row, column) or 0) > 0]


#: Largest number of points with error bars. More bars would only blacken the plot; tooltips still have the deviations.
ERROR_BARS_UP_TO = 300


def configuration_points(
    rows: Rows, x: str, y: str, architectures: Sequence[str], *, connect: bool = False, apart: bool = False
) -> list[Json]:
    """Return points coloured by architecture. Finished trials have error bars with their standard deviations.

    Args:
        rows: one per configuration, with `trial status epoch architecture replicates` and the columns x and y.
        x: column of the abscissa.
        y: column of the ordinate; `<y>_sd` is its error bar.
        architectures: all categories, in the order of their colours.
        connect: draw a line through finished trials, if each x occurs once, as in a grid.
        apart: draw squares instead. They mark configurations that are not part of the comparison.
    """
    by, finished = colour("architecture", architectures), [row for row in rows if row["status"] == FINISHED]
    layers = []  # the line and the bars come first, so that points lie on top of them
    if connect:
        at = grouped(finished, lambda row: str(row["architecture"]))
        lines = [
            {x: row[x], y: row[y], "architecture": name}
            for name, mine in at.items() if is_grid([row[x] for row in mine])
            for row in sorted(mine, key=lambda row: float_of(row, x))
        ]  # fmt: skip
        layers.append(mark("line", lines, look={"strokeDash": [2, 3], "strokeWidth": 1.2}, color=by))
    if len(rows) <= ERROR_BARS_UP_TO:
        there = [(row, mean) for row in finished if (mean := float_or_none(row, y)) is not None]  # None was NaN
        spreads = [(row, mean, float_or_none(row, f"{y}_sd") or 0.0) for row, mean in there]
        layers.append(bars_to([{**row, **ends((mean - d, mean + d))} for row, mean, d in spreads], color=by))
    says = partial(hover, columns=(x, y))
    if not apart:
        return [*layers, points(rows, says, color=by)]
    return [*layers, points(rows, says, color=by, shape=full_where(DONE, "square", FRAME))]


def is_grid(values: Sequence[object]) -> bool:
    """Return whether a line through the points is meaningful: three to thirty points with distinct x."""
    return len(set(values)) == len(values) and 2 < len(values) <= 30


def hover(row: Row, columns: Sequence[str] = ()) -> str:
    """Return a point's tooltip: the configuration, and its values in `columns`."""
    own = ", ".join(f"{sign} {number(row[name])}" for name, sign in QUANTITIES.items() if row.get(name) is not None)
    lines = [
        f"{row['trial']} {row['loss']} {own}".rstrip() + f" · {row['architecture']}",
        f"{STATUS_WORDS[text_of(row, 'status')]}, epoch {row['epoch']}, n = {row['replicates']}",
        *(f"{label(name)} {with_deviation(row, name)}" for name in columns if name not in QUANTITIES),
    ]
    return "\n".join(lines)


def with_deviation(row: Row, name: str) -> str:
    """Return a mean with its standard deviation in words."""
    mean = float_or_none(row, name)
    return "not measured" if mean is None else spread_text(mean, float_or_none(row, f"{name}_sd"))
