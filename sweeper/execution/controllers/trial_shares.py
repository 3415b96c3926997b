"""What share of a GPU the trials of a sweep take: as its space says, or measured on a GPU before they start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sweeper.core.ids import trial_name
from sweeper.execution.controllers.gpu_shares import CardMemory, CardShares
from sweeper.space.configurations import examples
from sweeper.storage.sweeps import Sweep
from trainables.training.lanes.packing import TRIALS

Probe = Callable[[Sequence[Any]], dict[str, Any] | None]


def shares_of(sweep: Sweep, gpu: float, probe: Probe) -> Callable[[int], float] | None:
    """Return configuration → share of a GPU, or `None` where trials take whole cards or none.

    Args:
        sweep: that runs.
        gpu: what a trial takes unless it is measured; 0 for none.
        probe: measures an assignment on a GPU, see `sweeper.execution.ray.card_probe`; asked only for `gpu: auto`.
    """
    spec = sweep.spec
    if spec.resources.gpu != "auto" or spec.resources.workers > 1 or not gpu:
        return (lambda configuration: gpu) if 0 < gpu < 1 else None
    # What a process's memory depends on beside its configuration.
    facts = spec.model_dump(mode="json", include={"dataset", "replicates", "evaluation", "training"})
    replicates = 1 if spec.replicates.packing == TRIALS else spec.replicates.count

    looked_at = examples(spec)

    def measure(index: int) -> CardMemory | None:
        seeds = spec.replicate_seeds.of(index)[:replicates]
        found = probe([index, trial_name(index), looked_at[index], seeds])
        return CardMemory(**found) if found is not None else None

    return CardShares(sweep.configurations, facts, sweep.paths.card_memory, measure, looked_at)
