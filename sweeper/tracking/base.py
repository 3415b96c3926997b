"""What a tracker is: a place that shows a sweep's runs, filled from its journal by a process beside the driver.

To add one, write `sweeper/tracking/<name>.py`, or a folder of that name; a sweep uses it by an address that begins with
the name, `--tracking-uri lines:`. Addresses such as `sqlite:///…` and `https://…` are MLflow's::

    class Lines(Tracker):
        def connect(self, sweep_id: str, generation: str) -> dict[int, int]:
            return {}  # it remembers nothing, so everything is written

        def write(self, updates: Iterable[RunUpdate]) -> None:
            for update in updates:
                print(update.name, update.status, update.points)

    TRACKER = TrackerKind("lines", lambda address, sweep: Lines())

What runs contain is decided in `sweeper.tracking.runs`; when it is written, in `sync` and `follower`.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sweeper.core.ids import SweepPaths
from sweeper.space.spec import SweepSpec

#: The place of a sweep's own run, where a trial's has its configuration's index.
SWEEP_RUN = -1

#: A run's tag with the epoch of the evaluation that its diagram shows.
DIAGRAM_TAG = "reliability_epoch"

#: A diagram's file.
DIAGRAM = "reliability_diagram.svg"


class Point(NamedTuple):
    """One value of one metric: `timestamp` in milliseconds, `step` in epochs."""

    key: str
    value: float
    timestamp: int
    step: int


@dataclass
class RunUpdate:
    """What one run still lacks.

    Attributes:
        place: the configuration's index, or `SWEEP_RUN`.
        name: the run's name.
        identity: tags that the run is created with and found by; never changed.
        start_time, end_time: milliseconds; `end_time` is `None` while it runs.
        status: the trial's status, or the sweep's outcome.
        params: the varying hyperparameters.
        tags: everything else that is known, as text.
        points: metric values to add.
        sequence: the newest journal record that is in; stored with the run.
        dataset: name and options of what a trial trains on; `None` for the sweep's run.
        diagram: its reliability diagram as SVG, where that is new; `DIAGRAM_TAG` among the tags says of which epoch.
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
    """What is known of a sweep before its first record.

    Attributes:
        paths: its name and results folder.
        spec: its search space.
        manifest: with what it was run; empty where that cannot be read.
        configurations: nested values by index; those that a searcher chose are in the journal instead.
        varying: the hyperparameter columns that are the first params, the most important ones first.
    """

    paths: SweepPaths
    spec: SweepSpec
    manifest: Mapping[str, Any]
    configurations: Sequence[Mapping[str, object]]
    varying: Sequence[str]


class Tracker(ABC):
    """The runs of one sweep in one place, by `RunUpdate.place`. Any call may raise the errors of its kind."""

    #: Whether it keeps tables, report and diagrams.
    takes_files = False

    def __init__(self) -> None:
        #: Place → the epoch of the diagram that its run has, as `DIAGRAM_TAG` says.
        self.drawn: dict[int, str] = {}
        self._tags: dict[str, str] = {}

    def prepare(self) -> None:  # noqa: B027  (optional)
        """Open the place; called before the journal has begun."""

    @abstractmethod
    def connect(self, sweep_id: str, generation: str) -> dict[int, int]:
        """Find the runs of a sweep; return the newest journal record that each holds, by place.

        Runs of another generation of its journal are no longer true, and are taken away.
        """

    @abstractmethod
    def write(self, updates: Iterable[RunUpdate]) -> None:
        """Write updates, the sweep's first when there is one. Writing one twice changes nothing."""

    def parent_tag(self, key: str) -> str | None:
        """Return a tag of the sweep's run, as it was found or set."""
        return self._tags.get(key)

    def set_parent_tag(self, key: str, value: str) -> None:
        """Set a tag of the sweep's run."""
        self._tags[key] = value

    def watch_machine(self) -> None:  # noqa: B027  (optional)
        """Show how busy this machine is while this process lives; called once the sweep's run is there."""

    def describe(self, answer: str) -> None:
        """Show the sweep's answer where its runs are listed; called only where `takes_files`."""
        raise NotImplementedError

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Attach a file to the sweep's run, in `folder`; called only where `takes_files`."""
        raise NotImplementedError


@dataclass(frozen=True)
class TrackerKind:
    """A kind of tracker, which its module calls `TRACKER`.

    Attributes:
        name: as users know it.
        open: makes the tracker of a sweep, given the address; nothing is sent.
        errors: what it raises when it is down, slow or broken.
        fault: why an address cannot be one, and the remedy; `None` where it can.
        is_there: whether what was written to an address can still be there.
    """

    name: str
    open: Callable[[str, TrackedSweep], Tracker]
    errors: Callable[[], tuple[type[Exception], ...]] = lambda: (OSError,)
    fault: Callable[[str], tuple[str, str] | None] = lambda address: None
    is_there: Callable[[str], bool] = lambda address: True


def default_address(output: Path) -> str:
    """Return the tracker of the sweeps below `output` where none is named: MLflow, in a file beside them."""
    return str(importlib.import_module(f"{__package__}.mlflow").default_address(output))


def kind_of(address: str) -> TrackerKind:
    """Return the kind of tracker that an address means: of the module that it begins with, else MLflow."""
    name, colon, rest = address.partition(":")
    known = bool(colon) and not rest.startswith("//") and name.isidentifier()
    if known and importlib.util.find_spec(f"{__package__}.{name}") is not None:
        found = getattr(importlib.import_module(f"{__package__}.{name}"), "TRACKER", None)
        if isinstance(found, TrackerKind):
            return found
    mlflow: TrackerKind = importlib.import_module(f"{__package__}.mlflow").TRACKER
    return mlflow
