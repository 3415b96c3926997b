"""Users' own networks: functions or classes of (input_shape, classes)."""

from __future__ import annotations

from torch import nn

from trainables.extensions.own import OwnFamily, described
from trainables.extensions.signature import hyperparameters_of
from trainables.registry import Component, ExtensionError


def _architecture(target: object, path: str, name: str) -> Component:
    if not callable(target) or isinstance(target, nn.Module):
        raise ExtensionError(
            f"{path} is {described(target)}; an architecture is a class or function of (input_shape, classes)"
        )
    tags = frozenset(getattr(target, "TAGS", ()))
    return Component(name, target, hyperparameters_of(target, path, ["input_shape", "classes"]), tags=tags)


OWN_NETWORKS = OwnFamily("architectures", _architecture)
