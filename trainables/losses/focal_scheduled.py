"""Focal loss whose γ falls in three steps over the run (mukhoti App. E, FLSc)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from trainables.losses.base import LOSSES, Loss, State
from trainables.losses.focal import SMOOTHING, Focal, FocalTypeLoss
from trainables.losses.numerics import Number
from trainables.registry import Component, Hyperparameter, number_in

SCHEDULES = {"flsc_532": (5.0, 3.0, 2.0), "flsc_531": (5.0, 3.0, 1.0)}


class FocalScheduled(FocalTypeLoss):
    """Focal loss with γ 5, then 3, then 2 (FLSc-532) or 1 (FLSc-531), switching at given shares of the run.

    γ changes in `begin_epoch` alone: epoch e of E uses the second γ once e/E ≥ `first_switch`.
    """

    name = "focal_scheduled"
    stateful = True

    def __init__(
        self,
        variant: str = "flsc_532",
        first_switch: float = 100 / 350,
        second_switch: float = 250 / 350,
        smoothing: Number = 0.0,
        smoothing_form: str = "uniform",
    ) -> None:
        super().__init__(smoothing, smoothing_form)
        self.schedule = SCHEDULES[variant]
        self.switches = (first_switch, second_switch)
        self.gamma: Number = self.schedule[0]

    def gammas(self, true_log_p: Tensor) -> Number:
        """Return the γ of the present epoch."""
        return self.gamma

    def begin_epoch(self, epoch: int, max_epochs: int) -> None:
        """Set γ for epoch `epoch` (from 0) of `max_epochs`."""
        self.gamma = self.schedule[sum(epoch / max_epochs >= switch for switch in self.switches)]

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return focal loss at the present γ."""
        return Focal(self.gamma, self.smoothing, self.smoothing_form)

    def state_dict(self) -> State:
        """Return the present γ."""
        return {"gamma": self.gamma}

    def restore(self, state: Mapping[str, object]) -> None:
        """Take over γ: a number, or a tensor in a lane."""
        gamma = state["gamma"]
        assert isinstance(gamma, (int, float, Tensor))
        self.gamma = gamma


def check_switches(values: Mapping[str, object]) -> str | None:
    """Return why the two switches do not belong together, or `None`."""
    first, second = number_in(values, "first_switch", 100 / 350), number_in(values, "second_switch", 250 / 350)
    if first <= second:
        return None
    return f"first_switch = {first:g} must not come after second_switch = {second:g}"


LOSSES.register(
    Component(
        "focal_scheduled",
        FocalScheduled,
        hyperparameters=(
            Hyperparameter("variant", "text", default="flsc_532", choices=tuple(SCHEDULES), source="mukhoti App. E"),
            Hyperparameter(
                "first_switch",
                default=100 / 350,
                minimum=0.0,
                maximum=1.0,
                reason="it is a share of the run's epochs",
                source="mukhoti App. E: epoch 100 of 350; Tiny-ImageNet 30 of 100",
            ),
            Hyperparameter(
                "second_switch",
                default=250 / 350,
                minimum=0.0,
                maximum=1.0,
                reason="it is a share of the run's epochs",
                source="mukhoti App. E: epoch 250 of 350; Tiny-ImageNet 70 of 100",
            ),
            *SMOOTHING,
        ),
        summary="focal loss with γ 5, 3 and 2 (or 1) over the run",
        source="mukhoti App. E",
        check=check_switches,
        tags=frozenset({"stateful"}),
    )
)
