"""The structure of a search space file: expansion of short forms, and pydantic's errors as faults of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.core.key_paths import join_path
from sweeper.core.plain import Plain
from sweeper.space import notify
from sweeper.space.spec import SweepSpec
from trainables.registry.names import did_you_mean

SHORT_FORMS = {
    "dataset": "name",
    "keep": "best",
    "scheduler": "name",
    "searcher": "name",
    "replicates": "count",
    "space.loss": "name",
    "space.architecture": "name",
    "space.optimizer": "name",
}
"""What a scalar at these paths is short for; below `space`, `sweeper.space.components` writes them out."""


def written_out(values: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return the file's values with the short forms outside the space written out."""
    written = dict(values)
    for key in ("header", "objective", "resources", "evaluation", "keep", "replicates", "searcher", "training"):
        if key in written and written[key] is None:  # a key with nothing below it
            del written[key]
    for key, inner in SHORT_FORMS.items():
        if key in written and not isinstance(written[key], (dict, list)):
            written[key] = {inner: written[key]}
    scheduler = written.get("scheduler")
    if isinstance(scheduler, dict) and "name" in scheduler and scheduler["name"] in (None, "fifo"):
        written["scheduler"] = {**scheduler, "name": "none"}
    kept = written.get("keep")
    if isinstance(kept, dict) and isinstance(kept.get("per"), str):
        written["keep"] = {**kept, "per": [kept["per"]]}
    if "notify" in written:
        written["notify"] = notify.written_out(written["notify"])
    return written


def spec_of(values: Mapping[str, Plain], source: str) -> SweepSpec:
    """Return the specification of a resolved search space, for those who only read it: names are not looked up.

    Raises InvalidSearchSpace for values that are not of a resolved search space.
    """
    try:
        spec = SweepSpec.model_validate(values)
    except ValidationError as error:
        raise InvalidSearchSpace(structural_faults(error), source) from error
    faults = [] if "loss" in spec.space.nodes else [Fault("space.loss", "missing")]
    if not isinstance(spec.dataset.get("name"), str):
        faults.append(Fault("dataset.name", "missing"))
    if faults:
        raise InvalidSearchSpace(faults, source)
    return spec


def structural_faults(error: ValidationError) -> list[Fault]:
    """Return the rules of `SweepSpec` that a file's values break."""
    return [_from_pydantic(detail) for detail in error.errors(include_url=False)]


def _from_pydantic(detail: ErrorDetails) -> Fault:
    keys = [key for key in detail["loc"] if not str(key).startswith(("function-", "dict[", "literal["))]
    path = ""
    for key in keys:
        path = join_path(path, key)
    if detail["type"] == "extra_forbidden":
        names = tuple(_model_at(keys[:-1]).model_fields)
        return Fault(path, f"unknown key {keys[-1]!r}", did_you_mean(str(keys[-1]), names).removeprefix("; "))
    if detail["type"] == "missing":
        return Fault(path, "missing")
    rule = detail["msg"].removeprefix("Value error, ")
    rule = rule.replace("Input should be a valid dictionary or instance of", "must be a mapping:")
    rule = rule.replace("Input should be", "must be")
    shown = repr(detail["input"]) if keys[:1] != ["notify"] else "its value"  # which may be a secret
    return Fault(path, rule if "=" in rule else f"{shown[:60]} {rule}")


def _model_at(keys: Sequence[str | int]) -> type[BaseModel]:
    """Return the model for the mapping at `keys`."""
    model: type[BaseModel] = SweepSpec
    for key in (key for key in keys if isinstance(key, str)):  # members of a list are all alike
        annotation = model.model_fields[key].annotation
        model = next(a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel))
    return model
