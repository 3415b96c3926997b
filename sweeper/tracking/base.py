"""The protocol of a tracker, which shows a sweep's runs; a separate process fills it from the journal.

To add one, write `sweeper/tracking/<name>.py`, or a folder of that name; a sweep selects it by an address that begins
with the name, `--tracking-uri lines:`. Addresses such as `sqlite:///…` and `https://…` belong to MLflow::

    class Lines(Tracker):
        name = "lines"

        def __init__(self, address: str, sweep: TrackedSweep) -> None: ...

        def connect(self, sweep_id: str, generation: str) -> Known:
            return Known()  # it stores nothing, so everything is written

        def write(self, updates: Iterable[RunUpdate]) -> None:
            for update in updates:
                print(update.name, update.status, update.points)

        def attach(self, answer: str, files: Iterable[tuple[Path, str | None]]) -> None:
            print(answer)

    TRACKER = Lines

`sweeper.tracking.runs` decides what runs contain; `sync` and `follower` decide when data is written.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.space.spec import SweepSpec
from trainables.registry import Configuration

#: The key of the sweep's own run (its `place`); a trial's `place` is its configuration's index.
SWEEP_RUN = -1

#: The tag with the epoch of the evaluation that a run's diagram shows.
DIAGRAM_TAG = "reliability_epoch"

#: File name of a diagram.
DIAGRAM = "reliability_diagram.svg"


class Point(NamedTuple):
    """One value of one metric: `timestamp` in milliseconds, `step` in epochs."""

    key: str
    value: float
    timestamp: int
    step: int


@dataclass
class RunUpdate:
    """The data that one run still lacks.

    Attributes:
        place: the configuration's index, or `SWEEP_RUN`.
        name: the run's name.
        identity: constant tags that identify the run.
        start_time, end_time: Unix times in milliseconds; `end_time` is `None` while it runs.
        status: the trial's status, or the sweep's outcome.
        params: the varying hyperparameters.
        tags: all other facts, as text.
        points: metric values to add.
        sequence: number of the newest journal record included; stored with the run.
        dataset: name and options of the trial's data set; `None` for the sweep's run.
        diagram: reliability diagram as SVG, if it is new; the tag `DIAGRAM_TAG` has its epoch.
    """

    place: int
    name: str
    identity: dict[str, str]
    start_time: int
    status: str = "running"
    end_time: int | None = None
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    sequence: int = -1
    dataset: Mapping[str, Any] | None = None
    diagram: str | None = None


@dataclass(frozen=True)
class TrackedSweep:
    """The facts about a sweep that are known before its first record.

    Attributes:
        paths: name and results folder of the sweep.
        spec: search space of the sweep.
        manifest: versions, hardware and command; empty if the file cannot be read.
        configurations: drawn configurations by index; configurations that a searcher chooses are in the journal.
        varying: columns of varying hyperparameters, the most important ones first.
    """

    paths: SweepPaths
    spec: SweepSpec
    manifest: Mapping[str, Any]
    configurations: Sequence[Configuration]
    varying: Sequence[str]


@dataclass(frozen=True)
class Known:
    """The data that a sweep's runs already have in a tracker.

    Attributes:
        records: place → newest journal record in its run.
        diagrams: place → epoch of its run's diagram, from `DIAGRAM_TAG`.
        tags: tags of the sweep's own run.
    """

    records: dict[int, int] = field(default_factory=dict)
    diagrams: dict[int, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


class Tracker(ABC):
    """The runs of one sweep in one tracker. Any call can raise one of `errors()`.

    Attributes:
        name: name for users.
        takes_files: whether `attach` gets files, and updates have diagrams.
    """

    name: ClassVar[str]
    takes_files: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, address: str, sweep: TrackedSweep) -> None:
        """Prepare; nothing is sent yet."""

    def prepare(self) -> None:  # noqa: B027  (optional)
        """Open the tracker; called before the journal has its first record."""

    @abstractmethod
    def connect(self, sweep_id: str, generation: str) -> Known:
        """Find the runs of a sweep; return the data that they have.

        Runs of another generation of the journal contain quarantined records, so they are removed.
        """

    @abstractmethod
    def write(self, updates: Iterable[RunUpdate]) -> None:
        """Write updates; the sweep's own update comes first, if any. Writing an update twice changes nothing."""

    @abstractmethod
    def attach(self, answer: str, files: Iterable[tuple[Path, str | None]]) -> None:
        """Show the sweep's answer above its runs, and attach files, each with its folder, to the sweep's run."""

    def watch_machine(self) -> None:  # noqa: B027  (optional)
        """Log the use of this machine while this process lives; called once the sweep's run exists."""

    def close(self) -> None:  # noqa: B027  (optional)
        """Write what is held back; called before the tracker is said to be complete, and nothing follows."""

    @classmethod
    def errors(cls) -> tuple[type[Exception], ...]:
        """Return the exceptions that calls raise if the tracker is down, slow or broken."""
        return (OSError,)

    @classmethod
    def fault(cls, address: str) -> tuple[str, str] | None:
        """Return why an address is invalid, with the remedy; `None` if it is valid."""
        return None

    @classmethod
    def beside_sweep(cls, address: str) -> str | None:
        """Return the remedy if an address means the sweep's own folder, which a sweep in a store lacks."""
        return None


def number_of(text: str) -> float | None:
    """Return the finite number that a text means, if any."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def kind_of(address: str) -> type[Tracker]:
    """Return the kind of tracker of an address: the module whose name it begins with, else MLflow.

    Raises:
        SweeperError: the module has no tracker, or one that is not complete.
    """
    # `lines://` would be an MLflow store, because MLflow's plugins choose their own schemes.
    name, colon, rest = address.partition(":")
    if not colon or rest.startswith("//") or not name.isidentifier() or find_spec(f"{__package__}.{name}") is None:
        name = "mlflow"
    kind = getattr(importlib.import_module(f"{__package__}.{name}"), "TRACKER", None)
    if not (isinstance(kind, type) and issubclass(kind, Tracker)):
        raise SweeperError(f"{name} is not a tracker", "name one of mlflow, tensorboard and wandb")
    if lacking := [*kind.__abstractmethods__, *({"name"} - {*dir(kind)})]:
        raise SweeperError(f"the tracker {name} lacks {', '.join(sorted(lacking))}", f"see {__name__}")
    return kind
