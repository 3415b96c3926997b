"""Evaluation splits beyond a data set's own, by name. A new one is one file here and one line below.

A search space asks for them in `evaluation.splits`, each a mapping of one of these names to its options. Networks are
measured on them once, when they have finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainables.datasets.shifts import corrupted, other
from trainables.datasets.shifts.base import Shift
from trainables.registry import Registry

__all__ = ["SHIFTS", "Shift", "build_shift"]

SHIFTS = Registry("evaluation split")

for _source in (corrupted, other):
    for _component in _source.COMPONENTS:
        SHIFTS.register(_component)


def build_shift(entry: Mapping[str, Any]) -> Shift:
    """Return the shift that a resolved entry of `evaluation.splits` names, without loading anything.

    Raises:
        ValueError: unknown name or invalid options.
    """
    # Built without `Registry.build`, which knows no option that names another component.
    component = SHIFTS[entry["name"]]
    shift: Shift = component.build(**{key: value for key, value in entry.items() if key != "name"})
    return shift
