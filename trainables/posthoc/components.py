"""The registry of post-hoc methods: names, options with defaults and sources, and what each reports."""

from __future__ import annotations

from trainables.posthoc.focal_map import fit_focal_map
from trainables.posthoc.temperature import TEMPERATURE_GRIDS, fit_temperature
from trainables.registry import Component, Hyperparameter, Registry

POSTHOC = Registry("post-hoc method")
PARAMETER_NAMES: dict[str, tuple[str, ...]] = {}

_BINS = Hyperparameter("bins", "integer", 15, minimum=1, source="mukhoti §5; properness §5.1")


def _register(component: Component, *parameters: str) -> None:
    PARAMETER_NAMES[POSTHOC.register(component).name] = parameters


_register(
    Component(
        "temperature",
        fit_temperature,
        (
            Hyperparameter("objective", "text", "nll", choices=("nll", "ece", "focal"), source="Guo et al. 2017"),
            Hyperparameter("gamma", default=3.0, minimum=0.0, source="focal loss default; posterior §6.1"),
            Hyperparameter("grid", "text", "mukhoti", choices=tuple(TEMPERATURE_GRIDS), source="mukhoti released code"),
            _BINS,
            Hyperparameter("scheme", "text", "equal_width", choices=("equal_width", "equal_mass"), source="mukhoti §5"),
            Hyperparameter("apply_focal_map", "boolean", False, source="posterior §6.1"),
        ),
        "softmax(z/T), one T chosen by NLL, by ECE on a grid or by the focal loss",
        "Guo et al. 2017; mukhoti §5; posterior §6.1",
    ),
    "temperature",
    "converged",
    "at_bound",
)
_register(
    Component(
        "focal_map",
        fit_focal_map,
        (
            Hyperparameter(
                "gamma",
                minimum=-1.0,
                reason="below -1 the map is undefined",
                source="posterior Thm. 11: the training loss's own gamma",
            ),
        ),
        "the focal calibration map, which undoes the focal loss's bias; nothing is fitted",
        "posterior Eqs. 11-13; properness Eq. 1",
    ),
    "gamma",
)
