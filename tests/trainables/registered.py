"""A component that a registry knows for one test."""

from typing import Any

import pytest


def register(monkeypatch: pytest.MonkeyPatch, registry: Any, name: str, component: Any) -> None:
    """Put a component into a registry, in the place of one of its name, until the test ends."""
    monkeypatch.setitem(registry._components, name, component)
