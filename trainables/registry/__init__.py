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

__all__ = ["Component", "ExtensionError", "Hyperparameter", "Kind", "Registry", "column_label", "is_import_path"]
