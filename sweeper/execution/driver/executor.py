"""What an executor is: it finds out what there is for trials, and runs a driver's assignments on it.

The driver decides; an executor asks it for assignments (`next_assignment`), starts each in a process (`on_started`),
passes its reports and its death on (`on_reports`, `on_failure`), and ends when nothing is left or a stop is asked for.
What such a process does is the same everywhere: it is a `trainables.worker.worker.Worker`, told of its assignments and
asked for reports, by the messages of `trainables.worker.messages` or by Ray Tune's calls.

Adding one: a folder of its own below `sweeper.execution`, its name in `sweeper.core.processes`, and where it is chosen
(`sweeper.execution.attempt.executor_for`).

    class Slurm(Executor):
        @contextmanager
        def session(self, job: Job) -> Iterator[Session]:
            resources, slots = fit_resources(job.sweep.spec.resources, nodes_of_this_allocation())
            yield Session(resources, slots, partial(run_by_srun, settings=job.settings(resources)))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sweeper.execution.controllers.base import Controller, Interrupts
from sweeper.execution.driver.context import NO_SHARES, Shares, Sink
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.failures import OtherNodes
from sweeper.monitoring.live import Progress
from sweeper.monitoring.prometheus import MetricsSink, Publish
from sweeper.storage.sweeps import Sweep


@dataclass(frozen=True)
class Job:
    """What an executor is told of a sweep.

    Attributes:
        sweep: whose trials are to run.
        progress: takes sentences for the user.
        interrupts: what is told of Ctrl-C.
        settings: returns `trainables.worker.trial_settings.TrialSettings` as plain values, from a worker's resources.
        metrics: returns a sink of the sweep's metrics, from what publishes them and a trial's resources.
        prepare_end: imports what the sweep's end needs; to be called while trials train and a core is free.
    """

    sweep: Sweep
    progress: Progress
    interrupts: Interrupts
    settings: Callable[[dict[str, float]], dict[str, Any]]
    metrics: Callable[[Publish, Mapping[str, float]], MetricsSink]
    prepare_end: Callable[[], object]

    def most_lanes(self, slots: int) -> int:
        """Return how many lanes the sweep could fill in each of so many processes, of which there is one at least."""
        return -(-len(self.sweep.configurations) * self.sweep.spec.replicates.count // max(1, slots))


@dataclass(frozen=True)
class Session:
    """What an executor offers once it is known how much fits.

    Attributes:
        resources: of one worker of a trial.
        slots: trials that run at once.
        execute: runs a driver's assignments to the end.
        controllers: that the driver asks on every turn.
        sinks: that take every record.
        shares: of a GPU.
        other_nodes: whether there are nodes for trials besides those whose disks are full.
    """

    resources: Mapping[str, float]
    slots: int
    execute: Callable[[Driver], object]
    controllers: Sequence[Controller] = ()
    sinks: Sequence[Sink] = ()
    shares: Shares = NO_SHARES
    other_nodes: OtherNodes = lambda nodes: False


class Executor(ABC):
    """Where trials run."""

    @abstractmethod
    def session(self, job: Job) -> AbstractContextManager[Session]:
        """Give what there is for a sweep's trials; what was started for them ends with this.

        Raises SweeperError where no trial could ever start.
        """
