"""Choose each process's GPU share from measured memory; it is raised when memory runs out.

GPU shares isolate nothing by themselves. A process's allocator is capped at its share
(`trainables.worker.trial_settings`), so a trial that needs more memory fails alone and is retried on twice the share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from sweeper.core.ids import is_added, trial_name
from sweeper.space.configurations import examples
from sweeper.storage.sweeps import Sweep
from trainables.files.atomic import kept_choice
from trainables.registry import Configuration, Options
from trainables.training.lanes.packing import TRIALS
from trainables.worker.trial_reports import CardMemory
from trainables.worker.trial_settings import Assignment

#: GPU share if memory could not be measured. Our choice: small networks need far less, and a retry doubles the share.
DEFAULT_SHARE = 0.25

#: Factor on the measured peak, for fragmentation and batches that need more. Our choice.
MARGIN = 1.2

#: Most processes on one GPU: more would wait for each other's kernels, and each needs a core to feed it. Our choice.
MOST_PROCESSES = 16

#: Configurations examined for kinds to measure; later configurations of an unseen kind get the largest share.
LOOKED_AT = 2000


def share_for(memory: CardMemory) -> float:
    """Return the smallest share 1/n of a GPU that holds a process with a margin; 1 if half is too little.

    Shares are rounded down to Ray's resolution of 1/10,000, so that n of them always fit.

    Examples:
        >>> share_for(CardMemory(2 * 2**30, 80 * 2**30, "H100"))
        0.0625
        >>> share_for(CardMemory(30 * 2**30, 80 * 2**30, "H100"))
        0.5
    """
    needed = max(1.0, memory.used_bytes * MARGIN)
    processes = min(MOST_PROCESSES, max(1, math.floor(memory.total_bytes / needed)))
    return math.floor(10_000 / processes) / 10_000


def memory_key(configuration: Configuration, facts: Options) -> str:
    """Return all values that a configuration's GPU memory depends on, as JSON text.

    Args:
        configuration: Configuration; its architecture, loss, optimiser and batch size matter.
        facts: Facts of the sweep: data set, replicates, packing, precision, and the measurements of an evaluation.
    """
    parts = {
        "architecture": configuration["architecture"].plain(),
        "loss": configuration.name("loss"),
        "optimizer": configuration.name("optimizer"),
        "batch_size": configuration.at("optimizer.batch_size"),
        **facts,
    }
    return json.dumps(parts, sort_keys=True)


class NotMeasuredError(Exception):
    """No GPU was available for the measurement."""


class CardShares:
    """GPU share of each configuration of a sweep, measured once per kind and stored in the sweep's folder."""

    def __init__(
        self,
        configurations: Sequence[Configuration],
        facts: Mapping[str, object],
        folder: Path,
        probe: Callable[[int], CardMemory | None],
        examples: Sequence[Configuration] | None = None,
    ) -> None:
        """Measure the kinds among the first configurations, except those stored in the folder.

        Args:
            configurations: Configurations of the sweep.
            examples: Configurations to examine instead, if a searcher has not chosen any yet.
            facts: See `memory_key`.
            folder: Folder of the measurements, one file per kind.
            probe: Function that trains a configuration for a few steps on a GPU of its own, and returns `None` if that
                fails.
        """
        self._configurations, self._facts, self._folder = configurations, facts, folder
        self._shares: dict[str, float] = {}
        looked_at = configurations if examples is None else examples
        for index in range(min(len(looked_at), LOOKED_AT)):
            key = memory_key(looked_at[index], facts)
            if key not in self._shares:
                self._shares[key] = self._share(key, index, probe)

    def __call__(self, configuration: int) -> float:
        """Return a configuration's GPU share."""
        if is_added(configuration):
            return self.largest
        return self._shares.get(memory_key(self._configurations[configuration], self._facts), self.largest)

    @property
    def smallest(self) -> float:
        """Smallest share of any kind."""
        return min(self._shares.values(), default=DEFAULT_SHARE)

    @property
    def largest(self) -> float:
        """Largest share of any kind."""
        return max(self._shares.values(), default=DEFAULT_SHARE)

    def _share(self, key: str, index: int, probe: Callable[[int], CardMemory | None]) -> float:
        def measured() -> str:
            if (memory := probe(index)) is None:
                raise NotMeasuredError  # do not store a guess: the next driver measures
            return json.dumps(asdict(memory))

        try:
            return share_for(CardMemory(**json.loads(kept_choice(self._folder, key, measured))))
        except NotMeasuredError:
            return DEFAULT_SHARE


def shares_of(
    sweep: Sweep, gpu: float, probe: Callable[[Assignment], CardMemory | None]
) -> Callable[[int], float] | None:
    """Return a function from configuration to GPU share, or `None` if trials use whole GPUs or none.

    Args:
        sweep: The sweep.
        gpu: GPU share of a trial if it is not measured; 0 for none.
        probe: Function that measures an assignment on a GPU, see `sweeper.execution.ray.session`; called only for
            `gpu: auto`.
    """
    spec = sweep.spec
    fixed = spec.resources.gpu != "auto" or not gpu
    if fixed or spec.loop is not None:  # a custom loop trains whole epochs, which would take too long to measure
        return (lambda configuration: gpu) if 0 < gpu < 1 else None
    # A process's memory also depends on these settings of the sweep.
    facts = spec.model_dump(mode="json", include={"dataset", "replicates", "evaluation", "training"})
    replicates = 1 if spec.replicates.packing == TRIALS else spec.replicates.count

    looked_at = examples(spec)

    def measure(index: int) -> CardMemory | None:
        seeds = spec.replicate_seeds.of(index)[:replicates]
        return probe(Assignment(index, trial_name(index), looked_at[index], seeds))

    return CardShares(sweep.configurations, facts, sweep.paths.card_memory, measure, looked_at)
