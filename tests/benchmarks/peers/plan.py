"""What every contender is given: the same configurations and seeds, as plain values in a file; and its command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WORKERS = 2
METRIC = "val_nll"

Kept = set[tuple[int, int]]
"""Epochs with a value on disk, as (configuration, epoch)."""


@dataclass(frozen=True)
class Plan:
    """What is trained.

    Attributes:
        space: name of the search space file.
        settings: its overrides, as `sweeper run --set` takes them.
        dataset: the data set's name and options.
        rungs: the epochs at which configurations are compared; the last is the last epoch.
        reduction_factor: one configuration in so many goes on.
        configurations: drawn from the space, each with its `values` and `seed`.
        checkpoints: whether a contender saves checkpoints at rungs, for resuming as its documentation says. This tool
            always does.
    """

    space: str
    settings: Sequence[str]
    dataset: Mapping[str, object]
    rungs: Sequence[int]
    reduction_factor: int
    configurations: Sequence[Mapping[str, object]]
    checkpoints: bool

    @property
    def max_epochs(self) -> int:
        """The last epoch."""
        return self.rungs[-1]

    def write(self, folder: Path) -> None:
        """Write the plan into a contender's folder."""
        (folder / "plan.json").write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(folder: Path) -> Plan:
        """Read the plan of a contender's folder."""
        return Plan(**json.loads((folder / "plan.json").read_text()))


def contender(run: Callable[[Path, bool], None], kept: Callable[[Path], Kept]) -> None:
    """Be a contender's command line: `run FOLDER`, `resume FOLDER`, or `kept FOLDER`, which prints JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("run", "resume", "kept"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "kept":
        print("\n" + json.dumps(sorted(kept(options.folder))))
        return
    run(options.folder, options.command == "resume")


def json_lines(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; what a SIGKILL cut off is left out."""
    for line in lines:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue
