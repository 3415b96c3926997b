"""The registry of post-hoc methods: names, options with defaults and sources, and what each reports."""

from __future__ import annotations

from dataclasses import replace

from trainables.posthoc.ensemble_temperature import PARAMETERS as ENSEMBLE_TEMPERATURE_PARAMETERS
from trainables.posthoc.ensemble_temperature import fit_ensemble_temperature
from trainables.posthoc.focal_map import fit_focal_map
from trainables.posthoc.focal_temperature import PARAMETERS as FOCAL_TEMPERATURE_PARAMETERS
from trainables.posthoc.focal_temperature import fit_focal_temperature
from trainables.posthoc.linear import (
    MATRIX_PARAMETERS,
    STRUCTURED_PARAMETERS,
    VECTOR_PARAMETERS,
    fit_dirichlet,
    fit_matrix,
    fit_structured_matrix,
    fit_vector,
)
from trainables.posthoc.metacal import PARAMETERS as METACAL_PARAMETERS
from trainables.posthoc.metacal import fit_metacal_acc, fit_metacal_mis
from trainables.posthoc.one_vs_rest import (
    HISTOGRAM_PARAMETERS,
    ISOTONIC_PARAMETERS,
    fit_histogram_binning,
    fit_isotonic,
)
from trainables.posthoc.own import OWN_METHODS
from trainables.posthoc.temperature import TEMPERATURE_GRIDS, fit_temperature, fit_temperatures
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
        build_many=fit_temperatures,
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

_ITERATIONS = Hyperparameter("max_iterations", "integer", 200, minimum=1, source="vector scaling takes 30 to 60")
_MATRIX_ITERATIONS = replace(_ITERATIONS, default=80, source="two seconds for 10,000 samples of 100 classes")
_OFF_DIAGONAL = Hyperparameter("off_diagonal", default=0.01, minimum=0.0, source="ODIR, Kull et al. 2019, section 4.2")
_INTERCEPT = replace(_OFF_DIAGONAL, name="intercept")
_MIX = Hyperparameter("mix", "boolean", True, source="keeps the NLL finite; the papers do without")
_register(
    Component(
        "vector",
        fit_vector,
        (_ITERATIONS,),
        "softmax(w∘z + b), a scale and a shift for each class, by NLL",
        "Guo et al. 2017, section 4.2",
    ),
    *VECTOR_PARAMETERS,
)
_register(
    Component(
        "matrix",
        fit_matrix,
        (replace(_OFF_DIAGONAL, default=0.0), replace(_INTERCEPT, default=0.0), _MATRIX_ITERATIONS),
        "softmax(Wz + b) by NLL; without penalties it overfits many classes",
        "Guo et al. 2017, section 4.2",
    ),
    *MATRIX_PARAMETERS,
)
_register(
    Component(
        "structured_matrix",
        fit_structured_matrix,
        (Hyperparameter("strength", default=1.0, minimum=0.0, source="Berta et al. 2026"), _ITERATIONS),
        "matrix scaling after temperature scaling, held to the identity by penalties that grow with the classes",
        "Berta, Holzmüller, Jordan & Bach 2026",
    ),
    *STRUCTURED_PARAMETERS,
)
_register(
    Component(
        "dirichlet",
        fit_dirichlet,
        (_OFF_DIAGONAL, _INTERCEPT, _MATRIX_ITERATIONS),
        "softmax(W log p + b) by NLL with penalties off the diagonal and on b",
        "Kull et al. 2019, arXiv:1910.12656",
    ),
    *MATRIX_PARAMETERS,
)
_register(
    Component(
        "isotonic",
        fit_isotonic,
        (_MIX,),
        "isotonic regression of each class against the rest, normalised",
        "Zadrozny & Elkan 2002",
    ),
    *ISOTONIC_PARAMETERS,
)
_register(
    Component(
        "histogram_binning",
        fit_histogram_binning,
        (
            _BINS,
            Hyperparameter("scheme", "text", "equal_width", choices=("equal_width", "equal_mass"), source="Guo et al."),
            _MIX,
        ),
        "frequencies in bins of each class against the rest, normalised",
        "Zadrozny & Elkan 2001; Guo et al. 2017, section 4.1",
    ),
    *HISTOGRAM_PARAMETERS,
)
_register(
    Component(
        "ensemble_temperature",
        fit_ensemble_temperature,
        (Hyperparameter("objective", "text", "nll", choices=("nll", "brier"), source="Zhang et al. 2020, 3.2"),),
        "a mixture of softmax(z/T), softmax(z) and the uniform distribution",
        "Zhang, Kailkhura & Han 2020, arXiv:2003.07329",
    ),
    *ENSEMBLE_TEMPERATURE_PARAMETERS,
)
