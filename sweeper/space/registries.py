"""The names and values that a search space file is checked against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sweeper.scheduling import SCHEDULERS
from sweeper.search import SEARCHERS
from trainables.registry import Registry

EPOCH_METRICS = ("train_loss", "val_nll", "val_accuracy", "val_ece")
"""What is measured after every epoch; an objective may be one of these or `val_<metric of an evaluation>`."""


@dataclass(frozen=True)
class Registries:
    """Everything that can be named in a search space file.

    Attributes:
        losses, architectures, optimizers, datasets, posthoc: the registries of components.
        metrics: the names of an evaluation's metrics, without the prefix `val_`.
        further_metrics: the registry of metrics that are measured besides, where a file asks for them.
        curvature_defaults: every setting of the curvature measurement with its default.
        curvature_faults: the rules that a mapping of such settings breaks, each a sentence beginning with the setting.
        claims: the names of the claims that a sweep's tables can be judged by.
        shifts: the registry of evaluation splits that are not the data set's own.
        schedulers, searchers: the registries of what decides on trials and chooses configurations.
    """

    losses: Registry
    architectures: Registry
    optimizers: Registry
    datasets: Registry
    posthoc: Registry
    metrics: tuple[str, ...]
    curvature_defaults: Mapping[str, Any]
    curvature_faults: Callable[[Mapping[str, Any]], list[str]]
    claims: tuple[str, ...] = ()
    further_metrics: Registry = field(default_factory=lambda: Registry("metric"))
    shifts: Registry = field(default_factory=lambda: Registry("evaluation split"))
    schedulers: Registry = field(default_factory=lambda: SCHEDULERS)
    searchers: Registry = field(default_factory=lambda: SEARCHERS)

    @property
    def space(self) -> dict[str, Registry]:
        """The parts of a space and their registries, in the order of the resolved file."""
        return {"loss": self.losses, "architecture": self.architectures, "optimizer": self.optimizers}

    @property
    def components(self) -> dict[str, Registry]:
        """The keys of a search space below which components are named, and the registry of each."""
        return {
            **self.space,
            "dataset": self.datasets,
            "posthoc": self.posthoc,
            "metrics": self.further_metrics,
            "splits": self.shifts,
        }

    @property
    def objectives(self) -> tuple[str, ...]:
        """Every valid `objective.metric`."""
        return (*EPOCH_METRICS, *(n for n in (f"val_{m}" for m in self.metrics) if n not in EPOCH_METRICS))


def installed_registries() -> Registries:
    """Return what is built into the project. Imports torch, so only commands that need it call it."""
    from sweeper.analysis.claims import CLAIMS
    from trainables.curvature import CurvatureSettings, settings_faults
    from trainables.datasets import DATASETS
    from trainables.datasets.splits import EVALUATION_SPLITS
    from trainables.losses import LOSSES
    from trainables.metrics import METRIC_NAMES
    from trainables.metrics.base import further_metrics
    from trainables.metrics.refinement import REFINEMENT_COLUMNS
    from trainables.models import ARCHITECTURES
    from trainables.posthoc import POSTHOC
    from trainables.training.recipe import OPTIMIZERS

    defaults = asdict(CurvatureSettings())
    components = (LOSSES, ARCHITECTURES, OPTIMIZERS, DATASETS, POSTHOC)
    metrics = (*METRIC_NAMES, *REFINEMENT_COLUMNS)
    return Registries(
        *components, metrics, defaults, settings_faults, tuple(CLAIMS), further_metrics(), EVALUATION_SPLITS
    )
