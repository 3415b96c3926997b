"""The finalists of a sweep: the rows of its first screen, the lines of values among them, and what each row is called.

A finalist is the best configuration of a loss on a network. Configurations of the final stage, and those that differ
from the best only in the value of one hyperparameter, are finalists, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.cells import Row, Value, grouped, text_of
from sweeper.core.labels import Symbols, group, number, short, split
from sweeper.reporting.answering.matrix import Key, Matrix
from sweeper.results.leaderboard import FINISHED
from sweeper.scheduling.lines import simplest
from trainables.registry import Options

#: Finalists by loss and network, best first.
Shown = Mapping[Key, Sequence[Row]]

#: The name of a loss, and a configuration's settings besides its loss.
Plain = tuple[str, tuple[Value, ...]]


@dataclass(frozen=True)
class Series:
    """Finalists that differ in the value of one hyperparameter only.

    Attributes:
        column: the hyperparameter's `config_…` column; of a series of losses, the column of their names.
        key: setting of the data set, loss and network. Of a series of losses, the loss is empty; of networks, the
            network.
        rows: value in words → row, best first.
        numbers: value in words → number, of a numeric hyperparameter.
    """

    column: str
    key: Key
    rows: Mapping[str, Row]
    numbers: Mapping[str, float]

    @property
    def trials(self) -> list[str]:
        """Names of the trials, in the order of the values."""
        return [text_of(row, "trial") for row in self.rows.values()]


def chosen_rows(grid: Matrix, place: str) -> tuple[Shown, list[Series]]:
    """Return the configurations shown for each loss on each network, and the lines among them.

    After a final stage, exactly the configurations with fresh seeds are shown. The best network comes first, and for
    each network the best loss.
    """
    cells: Shown = {key: rows for key, rows in grid.cells.items() if key[0] == place}
    raced = any(row["trial"] in grid.fresh for rows in cells.values() for row in rows)
    if raced:
        cells = {key: kept for key, rows in cells.items() if (kept := [r for r in rows if r["trial"] in grid.fresh])}
    networks = list(dict.fromkeys(key[2] for key in cells))  # the best cells come first
    cells = {key: cells[key] for key in sorted(cells, key=lambda key: networks.index(key[2]))}
    asked = [found for column in grid.asked if (found := _series(grid, cells, column))]
    lines = [longest for found in asked for longest in _longest_on_networks(grid, found)]
    if not asked:
        lines = [line for key in cells if (line := _longest(grid, cells, key)) is not None]
    if raced:
        return cells, lines
    on_lines = {trial for line in lines for trial in line.trials}
    shown = {key: [row for row in rows if row is rows[0] or row["trial"] in on_lines] for key, rows in cells.items()}
    return shown, lines


def _longest_on_networks(grid: Matrix, lines: Sequence[Series]) -> list[Series]:
    """Return the line of a column that has most values, on each network if the sweep asked for one there."""
    groups = grouped(lines, lambda line: line.key[2]) if lines[0].column in grid.on_each else {"": lines}
    return [max(of_one, key=lambda line: len(line.rows)) for of_one in groups.values()]


def _longest(grid: Matrix, cells: Shown, key: Key) -> Series | None:
    """Return the line of a cell, along the hyperparameter of the loss that has most values; None without any."""
    columns = [name for name in grid.varying if group(name) == "loss" and split(name)[1] != "name"]
    lines = [line for column in columns if (line := _of_values(grid, cells, key, column)) is not None]
    return max(lines, key=lambda line: len(line.rows), default=None)


def _series(grid: Matrix, cells: Shown, column: str) -> list[Series]:
    """Return the lines along one column, one for each cell that has one."""
    part, name = split(column)
    if name != "name":
        of_cells = (_of_values(grid, cells, key, column) for key in cells)
        return [line for line in of_cells if line is not None]
    # A series of components: everything but the part of the configuration is equal.
    others = [other for other in grid.varying if group(other) != part]
    axis = {"loss": 1, "architecture": 2}.get(part)
    finished = [(key, row) for key, rows in cells.items() for row in rows if row["status"] == FINISHED]
    every = grouped(finished, lambda of: (of[0][3 - axis] if axis else of[0], *(of[1][other] for other in others)))
    found = list[Series]()
    for members in every.values():
        rows = {str(row[column]): row for _, row in reversed(members)}
        key = members[0][0]
        if axis:
            key = (key[0], "" if axis == 1 else key[1], "" if axis == 2 else key[2])
        if len(rows) > 1:
            found.append(Series(column, key, dict(reversed(rows.items())), {}))
    return found


def _of_values(grid: Matrix, cells: Shown, key: Key, column: str) -> Series | None:
    """Return the line with most values of a cell; None if no two finished configurations differ in the column alone."""
    others = [name for name in grid.varying if name != column]
    finished = [row for row in cells[key] if row["status"] == FINISHED and row.get(column) is not None]
    every = grouped(finished, lambda row: tuple(row[name] for name in others))
    order = {text_of(row, "trial"): at for at, row in enumerate(row for rows in cells.values() for row in rows)}
    plain = _without_the_loss(grid, cells, key)
    lines = [_line(grid, key, column, rows, plain, order) for rows in every.values()]
    return max((line for line in lines if len(line.rows) > 1), key=lambda line: len(line.rows), default=None)


def _line(
    grid: Matrix, key: Key, column: str, rows: Sequence[Row], others: Mapping[Plain, Row], order: Mapping[str, int]
) -> Series:
    """Return the line of rows that differ in the column alone. `order` is the place of each trial, best first."""
    loss, (part, name) = grid.loss_of(key, rows[0]), split(column)
    plain = str((simplest({**loss, name: 0.0}, grid.at_zero) if part == "loss" else loss)["name"])
    values = [(number(row[column]), row, row[column]) for row in rows]
    # The finalist that equals a row if its hyperparameter is 0, e.g. cross-entropy with all else equal.
    zero = others.get((plain, _besides_the_loss(grid, rows[0])))
    values += [] if zero is None else [(f"0 ({plain})", zero, 0.0)]
    numbers = {word: float(value) for word, _, value in values if isinstance(value, int | float | bool)}
    values = sorted(values, key=lambda of: order[text_of(of[1], "trial")])
    # Of equal values, such as a configuration drawn twice, the better one is on the line.
    best = grouped(values, lambda of: of[0])
    return Series(column, key, {word: same[0][1] for word, same in best.items()}, numbers)


def _without_the_loss(grid: Matrix, cells: Shown, key: Key) -> dict[Plain, Row]:
    """Return the best finished configurations of a network with other losses, by loss and settings besides the loss."""
    there = {at[1]: rows for at, rows in cells.items() if (at[0], at[2]) == (key[0], key[2]) and at[1] != key[1]}
    finished = [(loss, row) for loss, rows in there.items() for row in rows if row["status"] == FINISHED]
    # Reversed, so that of equal configurations the first one, which is the best, remains.
    return {(loss, _besides_the_loss(grid, row)): row for loss, row in reversed(finished)}


def _besides_the_loss(grid: Matrix, row: Row) -> tuple[Value, ...]:
    return tuple(row[name] for name in grid.varying if group(name) != "loss")


def labels(grid: Matrix, rows: Sequence[Row], key: Key) -> dict[str, list[str]]:
    """Return trial → the columns that tell it from the other finalists of its loss on its network.

    The settings in which the loss differs from cross-entropy, such as γ, are always told. The others follow where they
    are needed, asked ones first.
    """
    options = [name for name in grid.varying if split(name)[1] != "name"
               and (group(name) != "dataset" or name in grid.asked)]  # fmt: skip
    own = [name for name in options if group(name) == "loss" and split(name)[1] in grid.at_zero.get(key[1], ())]
    order = [*own, *(name for name in grid.asked if name in options and name not in own)]
    order += [name for name in options if name not in order]
    told = {text_of(row, "trial"): [name for name in own if row.get(name) is not None] for row in rows}
    _tell(rows, order, told, grid.symbols)
    return told


def _tell(rows: Sequence[Row], columns: Sequence[str], told: dict[str, list[str]], symbols: Symbols) -> None:
    """Add columns until no two rows read alike; the trial's name tells rows apart that no column does."""
    for alike in grouped(rows, lambda row: in_words(row, told[text_of(row, "trial")], symbols)).values():
        if len(alike) > 1:
            differs = [name for name in columns if len({number(row.get(name)) for row in alike}) > 1]
            for row in alike:
                told[text_of(row, "trial")].append(differs[0] if differs else "trial")
            _tell(alike, columns, told, symbols)


def in_words(row: Row, columns: Sequence[str], symbols: Symbols) -> str:
    """Return settings in words, e.g. `γ 1.32 lr 0.138`."""
    return " ".join(_setting(row, name, symbols) for name in columns)


def _setting(row: Row, column: str, symbols: Symbols) -> str:
    if column == "trial":
        return f"({row[column]})"
    value, name = row.get(column), short(column, symbols)
    return f"no {name}" if value is None else f"{name} {number(value)}"


def against_cross_entropy(grid: Matrix, loss: Options) -> str:
    """Return the settings in which a loss differs from cross-entropy, e.g. `γ 3`; empty if it declares none."""
    names = [name for name in grid.at_zero.get(str(loss.get("name")), ()) if loss.get(name)]
    return " ".join(f"{short(f'config_loss_{name}', grid.symbols)} {number(loss[name])}" for name in names)
