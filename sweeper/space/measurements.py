"""The parts of a search space file about measuring: what an evaluation measures, and what trials are compared by."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sweeper.scheduling.ranking import Constraint, constraint_of
from sweeper.space.plug_ins import Part


class Objective(Part):
    """What the scheduler compares: one metric's mean over the replicates that have not diverged.

    A trial of which some replicates diverged continues with the others; every decision on it names those left out.
    """

    metric: str = "val_nll"
    mode: Literal["min", "max"] = "min"


class Guard(Part):
    """What a trial must keep to, to continue before those that do not and to be the best.

    Attributes:
        metric: what is looked at, as an objective names it.
        within: at most so far from the best trial at the same rung; `0.5 points of the best` are 0.005.
        min: at least so much.
        max: at most so much.
        mode: which direction of the metric is good, for `within`; by its name where none is given.
    """

    metric: str
    within: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    min: float | None = Field(default=None, allow_inf_nan=False)
    max: float | None = Field(default=None, allow_inf_nan=False)
    mode: Literal["min", "max"] | None = None

    @property
    def constraint(self) -> Constraint:
        """The same, as schedulers know it."""
        return constraint_of(self.model_dump())


class Trajectory(Part):
    """What is measured after each epoch besides the usual, as further columns of the table `epochs`.

    Attributes:
        splits: where losses, entropies and norms are measured.
        every: epochs from one measurement to the next.
        gradient_norms: epochs after which the training samples' gradient norms are counted (mukhoti Fig. 4).
    """

    splits: list[str] = Field(default=["train", "test"])
    every: int = Field(default=1, ge=1)
    gradient_norms: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)


class Evaluation(Part):
    """What an evaluation measures.

    Attributes:
        bins: bins of the calibration errors; 15 as in Guo et al. 2017 (arXiv:1706.04599), section 5.
        posthoc: calibration methods fitted on validation data, each `{name: …, option: value}`.
        curvature: settings of the curvature measurement, or `False` for none.
        bootstrap: resamples for the calibration errors' standard errors; 0 for none.
        trajectory: what to measure after each epoch (mukhoti Figs. 2 to 4); `null` for nothing but the usual.
        metrics: what is measured besides, the project's further metrics or your own, each `{name: …, option: value}`.
        splits: the data set's splits to measure on by name, among them `val`, which post-hoc methods are fitted on; and
            shifts, which finished networks are measured on, each `{name: …, option: value}`.
    """

    bins: int = Field(default=15, ge=1, le=1000)
    posthoc: list[dict[str, Any]] = Field(default_factory=list)
    curvature: dict[str, Any] | Literal[False] = Field(default_factory=dict)
    bootstrap: int = Field(default=100, ge=0, le=100_000)
    trajectory: Trajectory | None = None
    metrics: list[dict[str, Any]] = Field(default_factory=list)
    splits: list[str | dict[str, Any]] = Field(default=["val", "test"])

    @property
    def own_splits(self) -> list[str]:
        """The data set's splits that every evaluation measures on."""
        return [each for each in self.splits if isinstance(each, str)]

    @property
    def shifts(self) -> list[dict[str, Any]]:
        """The splits beyond the data set's own, which the last evaluation measures on."""
        return [each for each in self.splits if isinstance(each, dict)]
