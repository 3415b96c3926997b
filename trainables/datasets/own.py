"""Data sets of a user's own: functions that return a `DataSet`."""

from __future__ import annotations

from typing import Any

from trainables.datasets.base import DataSet
from trainables.extensions.own import OwnFamily, described
from trainables.extensions.signature import hyperparameters_of
from trainables.registry import Component, ExtensionError


def _dataset(target: Any, path: str, name: str) -> Component:
    if not callable(target) or target is DataSet:
        raise ExtensionError(f"{path} is {described(target)}; a data set is a function that returns a DataSet")
    return Component(name, target, hyperparameters_of(target, path, []))


OWN_DATASETS = OwnFamily("datasets", _dataset)
