"""Users' own metrics: functions of probabilities and targets."""

from __future__ import annotations

from trainables.extensions.own import OwnFamily, described
from trainables.extensions.signature import hyperparameters_of
from trainables.extensions.targets import describe_error
from trainables.metrics.probabilities import Floats, Integers
from trainables.registry import Component, ExtensionError, HyperparameterValue


def _metric(target: object, path: str, name: str) -> Component:
    if not callable(target) or isinstance(target, type):
        raise ExtensionError(f"{path} is {described(target)}; a metric is a function of (probabilities, targets)")

    def measure(probabilities: Floats, targets: Integers, **options: HyperparameterValue) -> float:
        try:
            return float(target(probabilities, targets, **options))
        except Exception as error:
            raise ValueError(describe_error(error, path)) from error

    return Component(name, measure, hyperparameters_of(target, path, ["probabilities", "targets"]))


OWN_METRICS = OwnFamily("metrics", _metric)
