"""What can be chosen by name: components, their hyperparameters, and the registries that hold them."""

from trainables.registry.registry import (
    Component,
    ExtensionError,
    Hyperparameter,
    Kind,
    Registry,
    column_label,
    is_import_path,
)
from trainables.registry.values import HyperparameterValue, number_in

__all__ = [
    "Component",
    "ExtensionError",
    "Hyperparameter",
    "HyperparameterValue",
    "Kind",
    "Registry",
    "column_label",
    "is_import_path",
    "number_in",
]
