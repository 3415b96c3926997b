"""The keys and names that a search space file may hold, for completion in the shell."""

from __future__ import annotations

from contextlib import suppress
from typing import get_args

from pydantic import BaseModel

from search_spaces import locate
from sweeper.core.errors import SweeperError
from sweeper.core.plain import Plain
from sweeper.space.domains.domains import DOMAINS
from sweeper.space.file import read_document
from sweeper.space.spec import SweepSpec

NAMED = {
    "dataset": "datasets", "space.loss": "losses", "space.architecture": "architectures",
    "space.optimizer": "optimizers", "scheduler": "schedulers", "searcher": "searchers",
}  # fmt: skip
"""Keys whose value names a component, and its registry."""


def keys_of(space: str | None) -> list[str]:
    """Return the keys that `--set` takes: those of the model, and those of a search space file where one is named."""
    found = set(_of_model(SweepSpec, ""))
    if space is not None:
        with suppress(SweeperError, OSError):
            found |= set(_of_values(read_document(locate(space)).values, ""))
    return sorted(found)


def values_of(key: str) -> list[str]:
    """Return the names that a key's value may have: those of components, or true and false."""
    from sweeper.space.registries import installed_registries

    if key in NAMED or key.removesuffix(".name") in NAMED:
        return sorted(getattr(installed_registries(), NAMED[key.removesuffix(".name")]))
    if key == "objective.metric":
        return sorted(installed_registries().objectives)
    return []


def _of_model(model: type[BaseModel], path: str) -> list[str]:
    found = []
    for name, field in model.model_fields.items():
        if name in ("header", "rehearsal", "rehearsed"):
            continue
        place = f"{path}{name}"
        inner = [t for t in (field.annotation, *get_args(field.annotation)) if isinstance(t, type)]
        nested = next((t for t in inner if issubclass(t, BaseModel)), None)
        found += _of_model(nested, f"{place}.") if nested is not None else [place]
    return found


def _of_values(values: Plain, path: str) -> list[str]:
    """Return the paths of a file's values; a domain is one value."""
    if not isinstance(values, dict) or (len(values) == 1 and next(iter(values)) in DOMAINS):
        return [path] if path else []
    found = [path] if "name" in values and path else []
    for key, value in values.items():
        if path or key not in ("header", "rehearsal", "rehearsed"):
            found += _of_values(value, f"{path}.{key}" if path else str(key))
    return found
