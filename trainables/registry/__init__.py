"""What can be chosen by name: components, their hyperparameters, and the registries that hold them."""

from trainables.registry.component import SPLITS, Component, DataSetSize, Hyperparameter, Kind, Options
from trainables.registry.registry import ExtensionError, Registry, column_label, is_import_path

__all__ = [
    "SPLITS",
    "Component",
    "DataSetSize",
    "ExtensionError",
    "Hyperparameter",
    "Kind",
    "Options",
    "Registry",
    "column_label",
    "is_import_path",
]
