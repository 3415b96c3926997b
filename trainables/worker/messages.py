"""What a driver and the process that trains its trials tell each other; assignments and settings are plain values.

First comes `WorkerInit`; then each `WorkerCommand` is answered by a `WorkerReport`, but for one that leaves nothing to
train, until there is `None` in the place of a command. `WorkerFailed` is the last that a process says where it raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainables.worker.trial_reports import TrialReport


@dataclass(frozen=True)
class WorkerInit:
    """The first message to a process.

    Attributes:
        settings: `trainables.worker.trial_settings.TrialSettings` of all trials.
        log: the file that takes what libraries print.
        together: trials train as a cohort.
    """

    settings: Mapping[str, object]
    log: str
    together: bool = False


@dataclass(frozen=True)
class WorkerCommand:
    """What the driver wants of a process.

    Attributes:
        over: configurations that have ended or pause.
        new: assignments to take up, each a list of `trainables.worker.trial_settings.Assignment` as values.
        most_lanes: of any cohort from now on; 0 for no limit.
        report_all: every trial reports after the next epoch.
    """

    over: tuple[int, ...] = ()
    new: tuple[Sequence[Sequence[object]], ...] = ()
    most_lanes: int = 0
    report_all: bool = False


@dataclass(frozen=True)
class WorkerReport:
    """What a process reports before it continues.

    Attributes:
        reports: of each assignment that has any, with whether these are its last; in the order of configurations.
        room: how many more trials like these it could take.
        lost: configurations whose trial raised, with the exception's type and text.
        gave_up: the process has let go of all its trials but those, also of such as it had not taken up yet, for want
            of memory.
        most_lanes: the width that memory allows; 0 where it is not known to be short.
        trained: trials that train together were trained since the last command, these reports are not repeated ones.
    """

    reports: tuple[tuple[Sequence[TrialReport], bool], ...] = ()
    room: int = 0
    lost: tuple[tuple[int, str, str], ...] = ()
    gave_up: bool = False
    most_lanes: int = 0
    trained: bool = False


@dataclass(frozen=True)
class WorkerFailed:
    """The exception that ended the process: its class and its text, the last line naming the cause."""

    type_name: str
    text: str


@dataclass(frozen=True)
class CardMemory:
    """What a configuration's process took of a GPU that it had to itself.

    Attributes:
        used_bytes: at its peak, CUDA's own context and libraries included.
        total_bytes: of the GPU.
        card: its name.
    """

    used_bytes: int
    total_bytes: int
    card: str
