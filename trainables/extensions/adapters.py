"""From what an import path stands for to a `Component` of its kind, as the project's own are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from trainables.extensions.installed import provenance
from trainables.extensions.losses import FunctionLoss, ModuleLoss
from trainables.extensions.signature import hyperparameters_of
from trainables.extensions.targets import import_target, told
from trainables.registry import Component, ExtensionError

Adapter = Callable[[Any, str, str], Component]


def adapted(kind: str, group: str, name: str, path: str) -> Component:
    """Return the component that `name` stands for.

    Args:
        kind: of its registry, e.g. `loss`.
        group: of its entry points, e.g. `losses`; empty where a kind takes no components of a user's own.
        name: as a search space writes it.
        path: its import path.

    Raises:
        ExtensionError: it cannot be imported, or is nothing that its kind can be made of.
    """
    if kind not in ADAPTERS:
        raise ExtensionError(f"{name}: this project takes no {kind} of your own; name one of its own")
    target = import_target(path)
    origin = ", ".join(part for part in (provenance(group, name), path if path != name else "") if part)
    if isinstance(target, Component):
        return replace(target, name=name, source=target.source or origin)
    component = ADAPTERS[kind](target, path, name)
    summary = (inspect.getdoc(target) or "").partition("\n")[0]
    return replace(component, summary=summary, source=origin or "import path")


def _loss(target: Any, path: str, name: str) -> Component:
    from trainables.losses.base import Loss

    build: Callable[..., Loss]
    leading: list[str] = []
    if isinstance(target, type) and issubclass(target, Loss):
        build = target
    elif isinstance(target, type) and issubclass(target, nn.Module):
        build = _module_loss(target, path)
    elif inspect.isfunction(target):
        build, leading = _function_loss(target, path), ["logits", "targets"]
    else:
        raise ExtensionError(
            f"{path} is {_what(target)}; a loss is a subclass of trainables.losses.Loss, a torch.nn.Module class, or a "
            "function of (logits, targets)"
        )

    def named(**hyperparameters: Any) -> Any:
        loss = build(**hyperparameters)
        loss.name = name  # type: ignore[misc]  # a subclass of one of ours is not that one
        return loss

    return Component(name, named, hyperparameters_of(target, path, leading))


def _function_loss(function: Callable[..., Tensor], path: str) -> Callable[..., FunctionLoss]:
    return lambda **hyperparameters: FunctionLoss(function, hyperparameters, path)


def _module_loss(module: type[nn.Module], path: str) -> Callable[..., ModuleLoss]:
    return lambda **hyperparameters: ModuleLoss(module(**hyperparameters), path)


def _architecture(target: Any, path: str, name: str) -> Component:
    if not callable(target) or isinstance(target, nn.Module):
        raise ExtensionError(
            f"{path} is {_what(target)}; an architecture is a class or function of (input_shape, classes)"
        )
    tags = frozenset(getattr(target, "TAGS", ()))
    return Component(name, target, hyperparameters_of(target, path, ["input_shape", "classes"]), tags=tags)


def _dataset(target: Any, path: str, name: str) -> Component:
    from trainables.datasets.base import DataSet

    if not callable(target) or target is DataSet:
        raise ExtensionError(f"{path} is {_what(target)}; a data set is a function that returns one")
    return Component(name, target, hyperparameters_of(target, path, []))


def _metric(target: Any, path: str, name: str) -> Component:
    if not callable(target) or isinstance(target, type):
        raise ExtensionError(f"{path} is {_what(target)}; a metric is a function of (probabilities, targets)")

    def measure(probabilities: Any, targets: Any, **options: Any) -> float:
        try:
            return float(target(probabilities, targets, **options))
        except Exception as error:
            raise ValueError(told(error, path)) from error

    return Component(name, measure, hyperparameters_of(target, path, ["probabilities", "targets"]))


def _posthoc(target: Any, path: str, name: str) -> Component:
    from trainables.extensions.calibrators import CheckedCalibrator
    from trainables.posthoc.base import PosthocUnavailable, validation_data

    if not callable(target):
        raise ExtensionError(f"{path} is {_what(target)}; a post-hoc method is called with (logits, targets)")
    columns = tuple(getattr(target, "PARAMETERS", ()))

    def fit(logits: Any, targets: Any, **options: Any) -> CheckedCalibrator:
        values, labels = validation_data(logits, targets)
        try:
            inner = target(values, labels, **options)
            return CheckedCalibrator(inner, name, path, columns, np.shape(values)[1])
        except PosthocUnavailable:
            raise
        except Exception as error:
            raise PosthocUnavailable(told(error, path)) from error

    return Component(name, fit, hyperparameters_of(target, path, ["logits", "targets"]), columns=columns)


def _what(target: Any) -> str:
    if isinstance(target, type):
        return f"the class {target.__name__}"
    return "a function" if inspect.isfunction(target) else f"a {type(target).__name__}"


ADAPTERS: dict[str, Adapter] = {
    "loss": _loss,
    "architecture": _architecture,
    "data set": _dataset,
    "metric": _metric,
    "post-hoc method": _posthoc,
}
"""How each kind's components are made; a kind that is missing takes none of a user's own."""
