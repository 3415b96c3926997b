"""Which hyperparameters matter, in each branch of the space, at an epoch that every compared trial reached."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.analysis.statistics.importance import FOLDS, MINIMUM_TRIALS, MOST_TRIALS, Branch, importances
from sweeper.figures.base import FIGURES, Axis, Bars, Figure, Panel
from sweeper.results import Results
from sweeper.results.leaderboard import Goal, objective, searcher, varying_columns
from sweeper.results.queries import measured_sql
from sweeper.text.cells import int_of
from sweeper.text.labels import plural, short


@FIGURES.add(
    "importance",
    place=120,
    absent=f"Hyperparameter importance: fewer than {MINIMUM_TRIALS} comparable configurations, or fewer than two "
    "hyperparameters that vary.",
)
def draw(results: Results) -> Figure | None:
    """Return one panel per branch of the space; None where no branch has enough trials."""
    goal, varying = objective(results), varying_columns(results)
    if len(varying) < 2 or goal.metric not in results.columns("epochs"):
        return None
    epoch = common_epoch(results)
    sql = values_sql(results, goal, varying, epoch)
    found = importances(results.rows(sql), varying, "objective")
    if not found:
        return None
    when = "at their last epoch" if epoch is None else f"at epoch {epoch}, the first rung, including early-stopped ones"
    return Figure(
        key="importance",
        title="Which hyperparameters matter",
        caption=(
            f"Share of the variance in the rank of trials by {goal.label} attributed to each hyperparameter, "
            f"with interactions: half the drop of a random forest’s R² on held-out trials when its values are "
            f"shuffled (bars: standard deviation over {FOLDS} folds). Trials are compared {when}. A hyperparameter "
            "is compared among trials that have it, so each branch of the space has its own panel." + chosen(results)
        ),
        sql=[sql],
        tables=["epochs", "evaluations", "trials"],
        panels=[panel(branch) for branch in found],
        findings=findings(found[:1], goal, "the last epoch" if epoch is None else f"epoch {epoch}"),
    )


def chosen(results: Results) -> str:
    """Return what to bear in mind where a searcher chose the configurations, with a space before it."""
    if not searcher(results):
        return ""
    return (
        " A searcher chose these configurations: a hyperparameter that it fixed early varies little and so seems "
        "unimportant."
    )


def common_epoch(results: Results) -> int | None:
    """Return the first rung where trials were stopped early, so that stopped and finished are compared at one epoch.

    None where none was stopped: then all that finished are compared at the end.
    """
    sql = "SELECT min(stop_rung) AS rung FROM trials WHERE status = 'early_stopped'"
    found = results.rows(sql)[0]
    return None if found["rung"] is None else int_of(found, "rung")


def values_sql(results: Results, goal: Goal, varying: Sequence[str], epoch: int | None) -> str:
    """Return the query of one row per trial: its hyperparameters and the objective at the epoch of comparison."""
    at = "status = 'completed' AND epoch = epochs" if epoch is None else f"epoch = {epoch}"
    columns = ", ".join(f"any_value({name}) AS {name}" for name in varying)
    return (
        f"SELECT trial, avg(value) AS objective, count(*) AS replicates,\n  {columns}\n"
        f"FROM ({measured_sql(results, goal.metric)}) JOIN trials USING (trial, replicate)\n"
        f"WHERE {at} GROUP BY trial ORDER BY trial"
    )


def panel(branch: Branch) -> Panel:
    """Return one branch: a bar a hyperparameter, the most important on top."""
    shown = branch.importances[::-1]
    names = [short(item.column) for item in shown]
    bars = Bars(
        names,
        [item.mean for item in shown],
        lying=True,
        errors=[item.deviation for item in shown],
        text=[f"{name}: share {item.mean:.3f} ± {item.deviation:.3f}" for name, item in zip(names, shown, strict=True)],
    )
    heading = "all configurations" if branch.name == "all" else f"{branch.name} only"
    learned = f"R² on held-out trials {branch.r_squared:.2f}, n = {plural(branch.n, 'configuration')}."
    if branch.r_squared <= 0:
        learned += " The forest explains nothing here: ignore the bars."
    if branch.n == MOST_TRIALS:
        learned += " A random sample of all trials."
    return Panel(heading, [learned], [bars], Axis("share of the variance"), Axis("", names=True))


def findings(branches: Sequence[Branch], goal: Goal, when: str) -> list[str]:
    """Return the most important hyperparameter of all trials, where the forest explains anything, and when that was."""
    sentences = []
    for branch in branches:
        first = branch.importances[0]
        if branch.name == "all" and branch.r_squared > 0:
            sentences.append(
                f"Most important for {goal.label} at {when}, over all configurations: {short(first.column)}, with "
                f"{first.mean:.0%} ± {first.deviation:.0%} of the variance in rank (n = {branch.n})."
            )
    return sentences
