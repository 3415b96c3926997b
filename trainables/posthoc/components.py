"""The registry of post-hoc methods: names, options with defaults and sources, and what each reports."""

from __future__ import annotations

from dataclasses import replace

from trainables.posthoc.focal_map import fit_focal_map
from trainables.posthoc.focal_temperature import PARAMETERS as FOCAL_TEMPERATURE_PARAMETERS
from trainables.posthoc.focal_temperature import fit_focal_temperature
from trainables.posthoc.metacal import PARAMETERS as METACAL_PARAMETERS
from trainables.posthoc.metacal import fit_metacal_acc, fit_metacal_mis
from trainables.posthoc.own import OWN_METHODS
from trainables.posthoc.temperature import TEMPERATURE_GRIDS, fit_temperature
from trainables.registry import Component, Hyperparameter, Registry

POSTHOC = Registry("post-hoc method", OWN_METHODS)

_BINS = Hyperparameter("bins", "integer", 15, minimum=1, source="mukhoti §5; properness §5.1")


def _register(component: Component, *parameters: str) -> None:
    POSTHOC.register(replace(component, columns=parameters))


_register(
    Component(
        "temperature",
        fit_temperature,
        (
            Hyperparameter("objective", "text", "nll", choices=("nll", "ece", "focal"), source="Guo et al. 2017"),
            Hyperparameter("gamma", minimum=0.0, source="posterior §6.1: the training loss's own gamma"),
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
_register(
    Component(
        "focal_temperature",
        fit_focal_temperature,
        (
            Hyperparameter("objective", "text", "ada_ece", choices=("ada_ece", "nll"), source="properness §5.1"),
            Hyperparameter("search", "text", "grid", choices=("grid", "line"), source="properness §5.1, §5.2"),
            _BINS,
            Hyperparameter("gamma_objective", "text", choices=("ada_ece", "nll"), source="properness Table 1"),
        ),
        "the focal map after a temperature, gamma and T chosen on a grid or a line; both results are reported",
        "properness §4.2, §5.1, §5.2",
    ),
    *FOCAL_TEMPERATURE_PARAMETERS,
)

_SEED = Hyperparameter("seed", "integer", 0, minimum=0, source="arbitrary: selects the samples that set the threshold")
_register(
    Component(
        "metacal_mis",
        fit_metacal_mis,
        (
            Hyperparameter(
                "alpha",
                default=0.05,
                minimum=0.0,
                maximum=1.0,
                open_minimum=True,
                open_maximum=True,
                reason="it is the share of correct predictions rejected",
                source="Ma & Blaschko 2021; selective §5",
            ),
            _SEED,
        ),
        "uniform above an entropy threshold that rejects a share alpha of correct predictions, else temperature",
        "Ma & Blaschko 2021",
    ),
    *METACAL_PARAMETERS,
)
_register(
    Component(
        "metacal_acc",
        fit_metacal_acc,
        (
            Hyperparameter(
                "accuracy",
                default=0.97,
                minimum=0.0,
                maximum=1.0,
                open_minimum=True,
                open_maximum=True,
                reason="it is the accuracy of accepted samples",
                source="selective §5: .97 CIFAR-10, .87 CIFAR-100, .85 Tiny-ImageNet",
            ),
            _SEED,
        ),
        "uniform above an entropy threshold that keeps a target accuracy, else temperature",
        "Ma & Blaschko 2021",
    ),
    *METACAL_PARAMETERS,
)
