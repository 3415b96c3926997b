"""Independent packages that a test compares with, where they are installed and can be imported."""

from types import ModuleType

import pytest


def oracle(name: str) -> ModuleType:
    """Import a module that may want torchvision's operators; skip the test where it cannot be imported."""
    from trainables.extensions.libraries import register_missing_operators

    register_missing_operators()
    module: ModuleType = pytest.importorskip(name, exc_type=ImportError)
    return module
