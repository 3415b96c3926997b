"""Small registries, so that the reader of search space files is tested apart from the components that exist."""

from collections.abc import Mapping
from typing import Any

from sweeper.space.catalogue import Registries
from trainables.datasets.base import DataSetComponent
from trainables.registry import Component, Hyperparameter, Registry


def _registry(kind: str, *components: Component) -> Registry[Any]:
    registry: Registry[Any] = Registry(kind)
    for component in components:
        registry.register(component)
    return registry


def _component(name: str, *hyperparameters: Hyperparameter, check: Any = None) -> Component:
    return Component(name, build=dict, hyperparameters=hyperparameters, check=check)


def _step_needs_milestones(values: Mapping[str, Any]) -> tuple[str, str] | None:
    if values.get("schedule") == "step" and not values.get("milestones"):
        return "schedule", "schedule = step needs milestones"
    return None


REGISTRIES = Registries(
    losses=_registry(
        "loss",
        _component("cross_entropy"),
        _component("focal", Hyperparameter("gamma", default=3.0, minimum=0)),
        _component(
            "inverse_focal",
            Hyperparameter(
                "gamma", default=1.5, minimum=0, maximum=3.5911, reason="beyond it the gradient changes sign"
            ),
        ),
        _component(
            "selective_risk",
            Hyperparameter("coverage", default=0.8, minimum=0, maximum=1, open_minimum=True, reason="a share"),
            Hyperparameter("nu", default=0.1, minimum=0, open_minimum=True),
            Hyperparameter("score", "text", "msp", choices=("msp", "margin", "negative_entropy")),
            Hyperparameter("normalise", "boolean", False),
        ),
    ),
    architectures=_registry(
        "architecture", _component("mlp", Hyperparameter("width", "integer", 64, minimum=1)), _component("resnet8")
    ),
    optimizers=_registry(
        "optimizer",
        _component(
            "sgd",
            Hyperparameter("lr", minimum=0, open_minimum=True, required=True),
            Hyperparameter("momentum", default=0.9, minimum=0, maximum=1),
            Hyperparameter("schedule", "text", "constant", choices=("constant", "cosine", "step")),
            Hyperparameter("milestones", "numbers", None, minimum=0),
            check=_step_needs_milestones,
        ),
    ),
    datasets=_registry(
        "data set", DataSetComponent("digits", dict, (Hyperparameter("image_size", "integer", 8, minimum=8),))
    ),
    posthoc=_registry(
        "post-hoc method",
        _component("temperature", Hyperparameter("objective", "text", "nll", choices=("nll", "ece"))),
        _component("focal_temperature"),
    ),
    metrics=("accuracy", "nll", "ece", "aurc"),
    curvature=_registry(
        "curvature measurement",
        _component(
            "curvature",
            Hyperparameter("samples", "integer", minimum=1),
            Hyperparameter("lanczos_steps", "integer", 32, minimum=1, reason="each step is one product"),
            Hyperparameter("losses", "texts", ("cross_entropy", "training")),
        ),
    ),
)

MINIMAL: dict[str, Any] = {
    "dataset": "digits",
    "scheduler": {"max_epochs": 9},
    "space": {"loss": "focal", "architecture": "mlp", "optimizer": {"name": "sgd", "lr": 0.1}},
}
