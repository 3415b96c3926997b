"""A sweep at a glance: the best configuration with its uncertainty, the best trials, what the sweep did and saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from sweeper.results.leaderboard import Leaderboard
from sweeper.results.listing import TrialsTable, usual_headings
from sweeper.text.cells import Rows, Value, float_or_none, int_of, text_of
from sweeper.text.labels import STATUS_WORDS, duration, plural

if TYPE_CHECKING:
    from sweeper.results.results import Results

STATUS_SQL = (
    "SELECT status, count(*) AS trials FROM (SELECT DISTINCT ON (trial) trial, status FROM trials ORDER BY trial, "
    "status = 'failed', replicate) GROUP BY status ORDER BY trials DESC"
)
"""A trial of which only some replicates failed counts by those that did not."""

EPOCHS_SQL = (
    "SELECT count(*) AS replicates, coalesce(sum(epochs), 0)::BIGINT AS trained,\n"
    "  coalesce(sum({limit} - epochs) FILTER (status = 'early_stopped'), 0)::BIGINT AS saved\nFROM trials"
)

RUNGS_SQL = (
    "SELECT rung, count(*) AS judged, count(*) FILTER (kind = 'stop') AS stopped\n"
    "FROM decisions WHERE rung IS NOT NULL AND kind IN ('stop', 'continue') GROUP BY rung ORDER BY rung"
)

TIME_SQL = "SELECT (SELECT sum(wall_seconds) FROM trials) AS worked,\n  (SELECT max(decided_at) FROM decisions) AS last"
"""`wall_seconds` is each replicate's share of its trial's, so the sum over rows is the time spent in trials."""


@dataclass(frozen=True)
class Overview:
    """Counts of a sweep.

    Attributes:
        statuses: status → number of trials.
        trials: number of trials.
        replicates: number of trial × replicate.
        trained: epochs trained, summed over replicates.
        saved: epochs that early stopping saved, of the maximum for each replicate.
        full: epochs that all replicates trained to the maximum would take.
        rungs: `rung judged stopped`, one per rung.
        limit: the maximum of epochs.
        worked: seconds spent in trials, summed.
        elapsed: seconds from the sweep's start to its last decision; None before one.
    """

    statuses: Mapping[str, int]
    trials: int
    replicates: int
    trained: int
    saved: int
    full: int
    rungs: Rows
    limit: int
    worked: float
    elapsed: float | None

    def count(self, *names: str) -> int:
        """Return how many trials have one of these statuses."""
        return sum(self.statuses.get(name, 0) for name in names)

    @property
    def in_progress(self) -> bool:
        """Return whether trials are still waiting, running or interrupted."""
        return self.count("waiting", "running", "interrupted") > 0


def overview(results: Results) -> Overview:
    """Return the counts of a sweep."""
    statuses = {text_of(row, "status"): int_of(row, "trials") for row in results.rows(STATUS_SQL)}
    limit = epoch_limit(results)
    epochs = results.rows(EPOCHS_SQL.format(limit=limit))[0]
    replicates = int_of(epochs, "replicates")
    time = results.rows(TIME_SQL)[0]
    return Overview(
        statuses=statuses,
        trials=sum(statuses.values()),
        replicates=replicates,
        trained=int_of(epochs, "trained"),
        saved=int_of(epochs, "saved"),
        full=limit * replicates,
        rungs=results.rows(RUNGS_SQL),
        worked=float_or_none(time, "worked") or 0.0,
        limit=limit,
        elapsed=elapsed(results.manifest.get("created"), time["last"]),
    )


def stratum_column(results: Results) -> str:
    """Return what selects a decision's stratum; sweeps from before there were strata have none."""
    return "stratum" if "stratum" in results.columns("decisions") else "NULL::VARCHAR AS stratum"


def epoch_limit(results: Results) -> int:
    """Return the sweep's maximum number of epochs; without its search space, the most that any trial trained."""
    longest = int_of(results.rows("SELECT coalesce(max(epochs), 0) AS epochs FROM trials")[0], "epochs")
    return int(results.specification.get("scheduler", {}).get("max_epochs") or longest)


def elapsed(created: object, last: Value) -> float | None:
    """Return the seconds between the manifest's time of creation and the last decision, where both are known."""
    if not isinstance(last, datetime) or not isinstance(created, str):
        return None
    began = datetime.fromisoformat(created)
    # Times of the tables are in UTC, and a manifest may say so or leave it out.
    both = [moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in (began, last)]
    return max(0.0, (both[1] - both[0]).total_seconds())


def headline(board: Leaderboard, counts: Overview, confirmed: str = "") -> str:
    """Return one sentence: the best configuration, the objective as mean ± standard deviation, n.

    `confirmed` is its value on seeds that did not pick it, which then stands first.
    """
    best = board.best
    if best is None:
        return "Every evaluated trial has failed." if board.rows else "No trial has been evaluated yet."
    finished = len(board.finished)
    among = plural(finished, "finished configuration") if finished else plural(len(board.rows), "configuration")
    state = " so far" if counts.in_progress else ""
    caution = "" if finished else f" None has finished yet; this one was evaluated at epoch {best['epochs']}."
    if board.breaks_constraint(best):
        caution = f" Every finished configuration breaks a constraint: {', '.join(board.constraints)}."
    seen = f"{board.value(best)} (mean ± standard deviation, n = {plural(int_of(best, 'replicates'), 'replicate')})"
    value = f"{confirmed}; {seen} on the seeds that picked it" if confirmed else seen
    return f"Best {board.objective.label} of {among}{state}: {value}, by {board.describe(best)}.{caution}"


def details(board: Leaderboard) -> list[str]:
    """Return the sentences below the headline: test metrics of the best."""
    best = board.best
    if best is None:
        return []
    measured = [
        f"accuracy {board.value(best, 'test_accuracy', 100)} %" if best.get("test_accuracy") is not None else "",
        f"NLL {board.value(best, 'test_nll')}" if best.get("test_nll") is not None else "",
        f"ECE {board.value(best, 'test_ece')}" if best.get("test_ece") is not None else "",
    ]
    after = "test_posthoc_temperature_ece"
    if best.get(after) is not None:
        measured.append(f"ECE after temperature scaling {board.value(best, after)}")
    sentences = []
    if any(measured):
        sentences.append(
            f"On test data, not used for selection ({best['trial']}): {', '.join(filter(None, measured))}."
        )
    return sentences


BEST = 5
"""Trials listed: with headline, counts and the commands that follow, this fits a terminal of 24 lines."""


def overview_table(
    board: Leaderboard, counts: Overview, answers: RenderableType | None = None, most: int = BEST, confirmed: str = ""
) -> RenderableType:
    """Return headline, best trials, trials by status and rung, and epochs spent.

    Args:
        board: the sweep's configurations.
        counts: its trials and epochs.
        answers: shown between the headline and the best trials.
        most: how many of the best trials are listed.
        confirmed: the best one's value on fresh seeds, in words.
    """
    parts: list[RenderableType] = [Text(headline(board, counts, confirmed), style="bold")]
    parts += [Text(sentence, style="dim") for sentence in details(board)[:1]]
    parts += [Text(), answers] if answers is not None else []
    if board.rows:
        parts += [Text(), TrialsTable(board, board.rows[:most], usual_headings(board))]
    parts += [Text(), Text(count_line(counts)), *(Text(line, style="dim") for line in cost_lines(counts))]
    return Group(*parts)


def count_line(counts: Overview) -> str:
    """Return trials by status in one line, e.g. `48 trials: 8 finished, 38 stopped early, 2 failed`."""
    named = [f"{counts.count(status)} {words}" for status, words in STATUS_WORDS.items() if counts.count(status)]
    return f"{plural(counts.trials, 'trial')}: {', '.join(named)}"


def cost_lines(counts: Overview) -> list[str]:
    """Return what was stopped at each rung, and what that saved."""
    lines: list[str] = []
    if counts.rungs:
        stops = (f"{row['stopped']} of {row['judged']} at rung {row['rung']}" for row in counts.rungs)
        lines.append(f"stopped {', '.join(stops)}")
    if counts.full:
        spent = f"{counts.trained:,} epochs, {counts.trained / counts.full:.0%} of the full-training budget"
        lines.append(f"{spent}; {duration(counts.worked)} of trial time")
    return lines
