"""Components that a search space names, their hyperparameters, and the registries that hold them."""

from trainables.registry.configuration import Configuration
from trainables.registry.hyperparameters import (
    ExtensionError,
    Hyperparameter,
    HyperparameterValue,
    Kind,
    hyperparameter_values,
    hyperparameters_of,
    number_in,
)
from trainables.registry.registry import (
    FITTED_ON,
    IMPORTED,
    LABEL,
    OWN,
    SPLITS,
    BrokenRule,
    Component,
    DataSetSize,
    Options,
    Registry,
    column_label,
    entry_label,
    importing_nothing,
    is_import_path,
    permit_only,
    set_within,
)

__all__ = [
    "FITTED_ON", "IMPORTED", "LABEL", "OWN", "SPLITS", "BrokenRule", "Component", "Configuration", "DataSetSize",
    "ExtensionError", "Hyperparameter", "HyperparameterValue", "Kind", "Options", "Registry", "column_label",
    "entry_label", "hyperparameter_values", "hyperparameters_of", "importing_nothing", "is_import_path", "number_in",
    "permit_only", "set_within",
]  # fmt: skip
