"""The protocol of a tracker, which shows a sweep's runs; a separate process fills it from the journal.

To add one, write `sweeper/tracking/<name>.py`, or a folder of that name; a sweep selects it by an address that begins
with the name, `--tracking-uri lines:`. Addresses such as `sqlite:///…` and `https://…` belong to MLflow::

    class Lines(Tracker):
        def connect(self, sweep_id: str, generation: str) -> dict[int, int]:
            return {}  # it stores nothing, so everything is written

        def write(self, updates: Iterable[RunUpdate]) -> None:
            for update in updates:
                print(update.name, update.status, update.points)

    TRACKER = TrackerKind("lines", lambda address, sweep: Lines())

`sweeper.tracking.runs` decides what runs contain; `sync` and `follower` decide when data is written.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sweeper.core.ids import SweepPaths
from sweeper.space.spec import SweepSpec

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
        configurations: nested values by index; configurations that a searcher chooses are in the journal.
        varying: columns of varying hyperparameters, the most important ones first.
    """

    paths: SweepPaths
    spec: SweepSpec
    manifest: Mapping[str, Any]
    configurations: Sequence[Mapping[str, object]]
    varying: Sequence[str]


class Tracker(ABC):
    """The runs of one sweep in one tracker, by `RunUpdate.place`. Any call can raise `TrackerKind.errors`."""

    #: Whether it stores tables, report and diagrams.
    takes_files = False

    def __init__(self) -> None:
        #: Place → epoch of the diagram that its run has, from `DIAGRAM_TAG`.
        self.drawn: dict[int, str] = {}
        self._tags: dict[str, str] = {}

    def prepare(self) -> None:  # noqa: B027  (optional)
        """Open the tracker; called before the journal has its first record."""

    @abstractmethod
    def connect(self, sweep_id: str, generation: str) -> dict[int, int]:
        """Find the runs of a sweep; return the newest journal record of each, by place.

        Runs of another generation of the journal contain quarantined records, so they are removed.
        """

    @abstractmethod
    def write(self, updates: Iterable[RunUpdate]) -> None:
        """Write updates; the sweep's own update comes first, if any. Writing an update twice changes nothing."""

    def parent_tag(self, key: str) -> str | None:
        """Return a tag of the sweep's run."""
        return self._tags.get(key)

    def set_parent_tag(self, key: str, value: str) -> None:
        """Set a tag of the sweep's run."""
        self._tags[key] = value

    def watch_machine(self) -> None:  # noqa: B027  (optional)
        """Log the use of this machine while this process lives; called once the sweep's run exists."""

    def describe(self, answer: str) -> None:
        """Show the sweep's answer above its runs; called only if `takes_files`."""
        raise NotImplementedError

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Attach a file to the sweep's run, in `folder`; called only if `takes_files`."""
        raise NotImplementedError


@dataclass(frozen=True)
class TrackerKind:
    """A kind of tracker; its module assigns it to `TRACKER`.

    Attributes:
        name: name for users.
        open: function that makes the tracker of a sweep for an address, without sending anything.
        errors: function that returns the exceptions that the tracker raises if it is down, slow or broken.
        fault: function that returns why an address is invalid, with the remedy; `None` if it is valid.
        beside_sweep: function that returns the remedy if an address means the sweep's own folder, which a store lacks.
    """

    name: str
    open: Callable[[str, TrackedSweep], Tracker]
    errors: Callable[[], tuple[type[Exception], ...]] = lambda: (OSError,)
    fault: Callable[[str], tuple[str, str] | None] = lambda address: None
    beside_sweep: Callable[[str], str | None] = lambda address: None


def number_of(text: str) -> float | None:
    """Return the finite number that a text means, if any."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def kind_of(address: str) -> TrackerKind:
    """Return the kind of tracker of an address: the module whose name it begins with, else MLflow."""
    # `lines://` would be an MLflow store, because MLflow's plugins choose their own schemes.
    name, colon, rest = address.partition(":")
    known = bool(colon) and not rest.startswith("//") and name.isidentifier()
    if known and importlib.util.find_spec(f"{__package__}.{name}") is not None:
        kind = getattr(importlib.import_module(f"{__package__}.{name}"), "TRACKER", None)
        if isinstance(kind, TrackerKind):  # this package also has modules that are not trackers, such as `sync`
            return kind
    mlflow: TrackerKind = importlib.import_module(f"{__package__}.mlflow").TRACKER
    return mlflow
