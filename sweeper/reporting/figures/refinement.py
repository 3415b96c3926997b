"""Refinement and calibration of the finalists: the part of each score that no temperature corrects, and the rest."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from sweeper.core.cells import text_of
from sweeper.core.labels import label, number, plural
from sweeper.reporting.answering.finalists import chosen_rows, in_words, labels
from sweeper.reporting.answering.matrix import Matrix, evaluated, matrix
from sweeper.reporting.figures.base import FIGURES, Figure, Json, Panel, colour, fields, mark, names, quantity
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, leaderboard
from trainables.metrics.refinement import REFINEMENT_COLUMNS

#: The parts of a bar, from 0, and the scores that they add up to.
PARTS = tuple(dict.fromkeys(column.partition("_")[0] for column in REFINEMENT_COLUMNS))
SCORES = tuple(dict.fromkeys(column.partition("_")[2] for column in REFINEMENT_COLUMNS))

#: Score → trial → part → mean over seeds.
Measured = Mapping[str, Mapping[str, Mapping[str, float]]]


@FIGURES.add(
    "refinement",
    place=8,
    absent="Refinement and calibration: no finished configuration has NLL or Brier score in these two parts.",
)
def draw(results: Results) -> Figure | None:
    """Return one panel per score and setting of the data set, a bar for each finalist; None without any."""
    board = leaderboard(results)
    grid = matrix(results, board)
    if grid is None or not grid.cells:
        return None
    split = "test" if results.rows("SELECT 1 FROM evaluations WHERE split = 'test' LIMIT 1") else "val"
    measured = parts_of(results, split)
    panels = [panel for place in grid.slices for score in SCORES if (panel := panel_of(grid, place, score, measured))]
    if not panels:
        return None
    return Figure(
        title="Refinement and calibration of the finalists",
        caption=(
            f"Each bar is a score on {split} data, the mean over seeds. Refinement is the score after cross-fitted "
            "temperature scaling; calibration is what temperature scaling takes away. It is left of 0 where "
            "temperature scaling makes the score worse."
        ),
        sql=[board.sql],
        panels=panels,
        legend=PARTS,
    )


def parts_of(results: Results, split: str) -> Measured:
    """Return the finite parts of the scores at each trial's last evaluation."""
    present = {*results.columns("evaluations")}
    values = evaluated(results, split, [column for column in REFINEMENT_COLUMNS if column in present])
    found: dict[str, dict[str, dict[str, float]]] = {score: {} for score in SCORES}
    for column, trials in values.items():
        part, _, score = column.partition("_")
        for trial, epochs in trials.items():
            found[score].setdefault(trial, {})[part] = fmean(epochs[max(epochs)].values())
    return found


def panel_of(grid: Matrix, place: str, score: str, measured: Measured) -> Panel | None:
    """Return the bars of one score; None if no finalist has both parts."""
    rows: list[Json] = []
    for key, finalists in chosen_rows(grid, place)[0].items():
        told = labels(grid, finalists, key)
        for row in finalists:
            trial = text_of(row, "trial")
            of = measured[score].get(trial, {})
            if row["status"] == FINISHED and of.keys() == {*PARTS}:
                name = " ".join(filter(None, [key[1], in_words(row, told[trial], grid.symbols), f"on {key[2]}"]))
                rows += [_bar(name, part, at, of, trial) for at, part in enumerate(PARTS)]
    if not rows:
        return None
    by = colour("part", PARTS)
    bars = mark("bar", rows, color=by, order={"field": "at", "type": "ordinal"}, tooltip=fields("says"))
    heading = ": ".join(filter(None, [place, plural(len(rows) // len(PARTS), "finalist")]))
    return Panel(heading, [bars], quantity("value", label(score), zero=True), names("name"))


def _bar(name: str, part: str, at: int, of: Mapping[str, float], trial: str) -> Json:
    says = f"{name}\n{part} {number(of[part])} of {number(sum(of.values()))}"
    return {"name": name, "part": part, "at": at, "value": of[part], "says": says, "trial": trial, "status": FINISHED}
