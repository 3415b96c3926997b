"""What a checkpoint holds of a trial, after a report or in the middle of an epoch, and what its next try needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainables.worker.checkpoints import load_newest_checkpoint, load_partial
from trainables.worker.trial_reports import Row, TrialReport
from trainables.worker.trial_settings import Assignment


@dataclass(frozen=True)
class SavedTrial:
    """A trial as its newest sound checkpoint has it.

    Attributes:
        replicates: number → its state; `None` for one that has diverged.
        wall_seconds: that it has trained for.
        report: plain values of the report that was last sent with a checkpoint; `None` before the first.
        rows: of epochs that no report tells of.
        trained: rows of the replicates that have completed the epoch in the middle of which it was saved.
        errors: of replicates that have diverged.
        packing: how the replicates shared their process. Another rounds otherwise: a trial continues as it began, so
            that it ends as if never interrupted.
    """

    replicates: Mapping[int, Mapping[str, Any] | None]
    wall_seconds: float
    report: dict[str, Any] | None
    rows: list[Row] = field(default_factory=list)
    trained: list[dict[str, Any]] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    packing: str | None = None

    @property
    def repeat(self) -> TrialReport | None:
        """The last report once more, which may have been lost on its way."""
        return None if self.report is None else TrialReport.from_dict(self.report)


def saved_trial(folder: Path | None, assignment: Assignment) -> SavedTrial | None:
    """Return what the newest sound checkpoint in `folder` has of an assignment; `None` where there is none of it."""
    state = (load_partial(folder) or load_newest_checkpoint(folder)) if folder else None
    if state is None or state["seeds"] != list(assignment.seeds):
        return None
    replicates = dict(zip(assignment.numbers, state["replicates"], strict=True))
    saved = SavedTrial(replicates, state["wall_seconds"], state["report"])
    if "trained" in state:  # in the middle of an epoch, of which no report tells
        rows, trained, errors = [*state["rows"]], [*state["trained"]], dict(state["errors"])
        return replace(saved, rows=rows, trained=trained, errors=errors, packing=state["packing"])
    if (sent := saved.repeat) is not None:
        return replace(saved, errors=dict(sent.replicate_errors), packing=sent.packing)
    return saved


def state_of(
    assignment: Assignment,
    replicates: Sequence[Mapping[str, Any] | None],
    wall_seconds: float,
    report: Mapping[str, Any] | None,
) -> dict[str, object]:
    """Return what a checkpoint holds of a trial, as plain values and tensors; one within an epoch holds more.

    Args:
        assignment: the trial's.
        replicates: their states in the order of the assignment's numbers; `None` for one that has diverged.
        wall_seconds: that it has trained for.
        report: that is sent with it, or was last, as plain values.
    """
    return {
        "trial": assignment.trial,
        "seeds": list(assignment.seeds),
        "replicates": list(replicates),
        "wall_seconds": wall_seconds,
        "report": report,
    }
