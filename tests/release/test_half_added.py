"""A member of a family that is half-added is refused where it is added or used; none fails in silence."""

import math
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest
import torch

from sweeper.core.domains.base import DOMAINS, Interval, domain
from sweeper.core.errors import SweeperError
from sweeper.tracking import base as trackers
from sweeper.tracking.base import Tracker, kind_of
from sweeper.tracking.choice import checked
from tests.trainables.registered import register
from trainables.curvature.statistics.base import CurvatureSettings
from trainables.losses import LOSSES, Loss
from trainables.metrics.base import METRICS
from trainables.posthoc.base import POSTHOC, Calibrator, PosthocMethod, fit
from trainables.registry import Hyperparameter


@pytest.mark.parametrize("left_out", ["choice", "suggested", "logarithmic"])
def test_a_domain_without_a_part(left_out: str) -> None:
    parts = {"choice": lambda self, u: u, "suggested": lambda self, trial, path: 0, "logarithmic": False}
    del parts[left_out]
    with pytest.raises(TypeError, match=left_out):
        domain("half")(type("Half", (Interval,), parts))
    with pytest.raises(TypeError, match="uniform"):
        domain("uniform")(DOMAINS["randint"])
    assert "half" not in DOMAINS and DOMAINS["uniform"].kind == "uniform"


def test_a_domain_that_draws_its_choices() -> None:
    @dataclass(frozen=True)
    class Steps(Interval):
        kind, logarithmic = "steps", False

        def choice(self, u: float) -> int:
            return int(u * 100)

        def suggested(self, trial: object, path: str) -> int:
            return 0

    with pytest.raises(TypeError, match="outside its ends"):
        Steps.parsed([1.0, 2.0])


def test_a_loss_without_values_or_with_an_unknown_way_to_lanes() -> None:
    class Bare(Loss):
        name = "bare"

    with pytest.raises(TypeError, match="bare"):
        Bare()(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(TypeError, match="stackd"):
        type("Typo", (Loss,), {"lanes": "stackd"})
    with pytest.raises(ValueError, match="gama"):
        Hyperparameter("focus", quantity="gama")
    assert LOSSES.fault("bare") is not None


def test_a_metric_without_a_direction() -> None:
    with pytest.raises(TypeError, match="mode"):
        METRICS.add("half", "half")(lambda probabilities, targets: 0.5)
    assert "half" not in METRICS


def test_a_method_whose_parameters_have_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(Calibrator):
        def _probabilities(self, logits: object) -> np.ndarray:
            return np.full((2, 2), 0.5)

    method = PosthocMethod("half", lambda logits, targets: Half("half", {"power": 2.0}, 2))
    register(monkeypatch, POSTHOC, "half", method)
    with pytest.raises(TypeError, match="power"):
        fit("half", [[1.0, 0.0], [0.0, 1.0]], [0, 1])


def test_a_statistic_that_nothing_registers() -> None:
    with pytest.raises(ValueError, match="half"):
        CurvatureSettings.from_mapping({"statistics": ["half"]})


@pytest.mark.parametrize("address", ["sync:", "half:", "wandbb:", "half_tracker:"])
def test_a_tracker_without_a_class_a_verb_or_a_name(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(Tracker):
        name: ClassVar[str] = "half"

    module = ModuleType(f"{trackers.__package__}.half_tracker")
    module.__spec__ = sys.modules[trackers.__name__].__spec__
    module.TRACKER = Half  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(SweeperError):
        checked(address)
    assert math.isfinite(len(kind_of("sqlite:///runs.db").name))
