"""How large a share of a GPU each configuration's process gets: decided from measured memory, raised when it runs out.

Shares of a GPU isolate nothing by themselves. A process's allocator is capped at its share
(`trainables.worker.trial_settings`), so a trial that needs more runs out alone, and is tried again on twice as much.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.core.ids import is_added, trial_name
from sweeper.space.configurations import examples
from sweeper.storage.sweeps import Sweep
from trainables.files.atomic import kept_choice
from trainables.training.lanes.packing import TRIALS
from trainables.worker.trial_reports import CardMemory
from trainables.worker.trial_settings import Assignment

#: Where memory could not be measured. Our choice: small networks use far less, and what needs more gets more.
DEFAULT_SHARE = 0.25

#: What a process gets beyond its measured peak, for fragments and batches that need more. Our choice.
MARGIN = 1.2

#: On one GPU at most: beyond that their kernels wait for each other, and each needs a core to feed it. Our choice.
MOST_PROCESSES = 16

#: Configurations that are examined for what to measure; later ones of a kind unseen get the largest share.
LOOKED_AT = 2000


def share_for(memory: CardMemory) -> float:
    """Return the smallest 1/n of a GPU that holds a process with some margin; the whole GPU where half is too little.

    Shares are rounded down to Ray's resolution of 1/10,000, so that n of them always fit.
    """
    needed = max(1.0, memory.used_bytes * MARGIN)
    processes = min(MOST_PROCESSES, max(1, math.floor(memory.total_bytes / needed)))
    return math.floor(10_000 / processes) / 10_000


def memory_key(configuration: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return what a configuration's memory depends on, as JSON text.

    Args:
        configuration: of it the architecture, the kind of loss and optimiser, and the batch size.
        facts: of the sweep: data set, replicates, packing, precision, what an evaluation measures.
    """
    parts = {
        "architecture": configuration["architecture"],
        "loss": configuration["loss"]["name"],
        "optimizer": configuration["optimizer"]["name"],
        "batch_size": configuration["optimizer"]["batch_size"],
        **facts,
    }
    return json.dumps(parts, sort_keys=True, default=list)


class NotMeasuredError(Exception):
    """A card could not be had to measure on."""


class CardShares:
    """The share of each configuration of a sweep, measured once for each kind and kept in the sweep's folder."""

    def __init__(
        self,
        configurations: Sequence[Mapping[str, object]],
        facts: Mapping[str, object],
        folder: Path,
        probe: Callable[[int], CardMemory | None],
        examples: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        """Measure the kinds among the first configurations that the folder does not know yet.

        Args:
            configurations: of the sweep.
            examples: looked at instead of them, where a searcher has not chosen them yet.
            facts: see `memory_key`.
            folder: keeps what was measured, one file per kind.
            probe: trains one of those that are looked at for a few steps on its own GPU; `None` where that could
                not be done.
        """
        self._configurations, self._facts, self._folder = configurations, facts, folder
        self._shares: dict[str, float] = {}
        looked_at = configurations if examples is None else examples
        for index in range(min(len(looked_at), LOOKED_AT)):
            key = memory_key(looked_at[index], facts)
            if key not in self._shares:
                self._shares[key] = self._share(key, index, probe)

    def __call__(self, configuration: int) -> float:
        """Return a configuration's share of a GPU."""
        if is_added(configuration):
            return self.largest
        return self._shares.get(memory_key(self._configurations[configuration], self._facts), self.largest)

    @property
    def smallest(self) -> float:
        """The share of the configurations that need least."""
        return min(self._shares.values(), default=DEFAULT_SHARE)

    @property
    def largest(self) -> float:
        """The share of the configurations that need most."""
        return max(self._shares.values(), default=DEFAULT_SHARE)

    def _share(self, key: str, index: int, probe: Callable[[int], CardMemory | None]) -> float:
        def measured() -> str:
            if (memory := probe(index)) is None:
                raise NotMeasuredError  # of which nothing is kept
            return json.dumps(asdict(memory))

        try:
            return share_for(CardMemory(**json.loads(kept_choice(self._folder, key, measured))))
        except NotMeasuredError:
            return DEFAULT_SHARE


def shares_of(
    sweep: Sweep, gpu: float, probe: Callable[[Assignment], CardMemory | None]
) -> Callable[[int], float] | None:
    """Return configuration → share of a GPU, or `None` where trials take whole cards or none.

    Args:
        sweep: that runs.
        gpu: what a trial takes unless it is measured; 0 for none.
        probe: measures an assignment on a GPU, see `sweeper.execution.ray.session`; asked only for `gpu: auto`.
    """
    spec = sweep.spec
    fixed = spec.resources.gpu != "auto" or not gpu
    if fixed or spec.loop is not None:  # a loop of the user's own trains whole epochs, which is no short measurement
        return (lambda configuration: gpu) if 0 < gpu < 1 else None
    # What a process's memory depends on beside its configuration.
    facts = spec.model_dump(mode="json", include={"dataset", "replicates", "evaluation", "training"})
    replicates = 1 if spec.replicates.packing == TRIALS else spec.replicates.count

    looked_at = examples(spec)

    def measure(index: int) -> CardMemory | None:
        seeds = spec.replicate_seeds.of(index)[:replicates]
        return probe(Assignment(index, trial_name(index), looked_at[index], seeds))

    return CardShares(sweep.configurations, facts, sweep.paths.card_memory, measure, looked_at)
