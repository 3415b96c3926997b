"""What can be chosen by name: components, their hyperparameters, and the registries that hold them."""

from trainables.registry.component import (
    SPLITS,
    Component,
    DataSetSize,
    Hyperparameter,
    HyperparameterValue,
    Kind,
    Options,
    hyperparameter_values,
    number_in,
)
from trainables.registry.registry import (
    FITTED_ON,
    LABEL,
    OWN,
    Registry,
    column_label,
    entry_label,
    importing_nothing,
    is_import_path,
    permit_only,
)
from trainables.registry.signatures import ExtensionError, hyperparameters_of

__all__ = [
    "FITTED_ON", "LABEL", "OWN", "SPLITS", "Component", "DataSetSize", "ExtensionError", "Hyperparameter",
    "HyperparameterValue", "Kind", "Options", "Registry", "column_label", "entry_label", "hyperparameter_values",
    "hyperparameters_of", "importing_nothing", "is_import_path", "number_in", "permit_only",
]  # fmt: skip
