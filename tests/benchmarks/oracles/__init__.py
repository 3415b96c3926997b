"""Comparisons with independent packages, one generator for each: (measure, difference) of one seeded case."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

from trainables.extensions.libraries import register_missing_operators

Rows = Iterator[tuple[str, float]]
"""(measure, difference) of one case."""

Comparison = Callable[[int], Rows]
"""What compares with one package, given a seed. ImportError where it is not installed."""


def package(name: str) -> Any:
    """Import an oracle; some of them want torchvision's operators."""
    register_missing_operators()
    return importlib.import_module(name)


def part_of(name: str, *unread: str) -> Any:
    """Import the module `name` without running the `__init__` of the packages `unread` above it.

    torchcp's imports torchsort, which needs a compiler, and torch_geometric: for other parts than those compared here.
    """
    for above in unread:
        if above not in sys.modules:
            found = importlib.util.find_spec(above)
            if found is None:
                raise ImportError(f"No module named {above!r}")
            sys.modules[above] = importlib.util.module_from_spec(found)
    return package(name)
