"""Write down each epoch that is trained in this process, whichever tool asked for it.

Every contender's environment imports this when Python starts (a `.pth` file), and so in every process that the tool
starts with that Python. What it writes is the benchmark's count of epochs and its clock, the same for all.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

FILE = "PEERS_PROBE"
"""The environment variable that names the file; without it nothing is written."""

OBSERVED = "trainables.training.loop"


class _Finder(MetaPathFinder):
    """Finds the training loop as others do, and has its loader observe it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != OBSERVED:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        assert found is not None and found.loader is not None
        found.loader = _Observing(found.loader)
        return found


class _Observing(Loader):
    """Loads a module as its own loader does, and wraps `Replicate.train_epoch`."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        observe(module.Replicate, os.environ[FILE])


def observe(replicate: Any, path: str) -> None:
    """Have a class, `Replicate`, append time, seed, epoch and val_nll to a file after each epoch.

    A line is one write, so that processes may share the file.
    """
    train_epoch = replicate.train_epoch

    def observed(self: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
        row: dict[str, Any] = train_epoch(self, *arguments, **named)
        line = {"time": time.time(), "seed": self.seed, "epoch": row["epoch"], "val_nll": row["val_nll"]}
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, json.dumps(line).encode() + b"\n")
        os.close(file)
        return row

    replicate.train_epoch = observed


if FILE in os.environ:
    sys.meta_path.insert(0, _Finder())
