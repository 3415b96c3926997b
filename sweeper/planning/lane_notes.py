"""Report which configurations cannot be trained as lanes, though that was asked for, and why."""

from __future__ import annotations

from sweeper.space.configurations import configurations
from sweeper.space.domains.choices import Configuration
from sweeper.space.spec import SweepSpec
from trainables.datasets.base import DataSet
from trainables.training.cohorts import COHORT, cohort_fault
from trainables.training.lanes.check import lane_fault
from trainables.training.lanes.packing import AUTO, FUSED, is_own
from trainables.training.loop import Replicate

ON_RAY = (
    "packing: cohort trains several configurations together with the local executor alone; on Ray each trial's "
    "replicates are a cohort of their own"
)

LOOKED_AT = 2000
"""Configurations among which pairs of network and loss are looked for, as in `sweeper.planning.preparation`."""


def lane_notes(spec: SweepSpec, dataset: DataSet, *, here: bool = True) -> list[str]:
    """Return a sentence for each pair of network and loss that trains one replicate after the other, though lanes were
    asked for. The process that trains it finds the same.

    Args:
        spec: the search space.
        dataset: its data.
        here: whether trials run in forked processes of this machine, not on Ray.
    """
    if spec.replicates.packing == COHORT:
        return _alone(spec) if here else [*_alone(spec), ON_RAY]
    if spec.replicates.packing not in (FUSED, AUTO) or spec.replicates.count < 2:
        return []
    pairs: dict[tuple[object, object], Configuration] = {}
    for configuration in configurations(spec)[:LOOKED_AT]:
        if is_own(configuration):
            pairs.setdefault((configuration["architecture"]["name"], configuration["loss"]["name"]), configuration)
    training = spec.training.settings
    notes = []
    for (network, loss), configuration in pairs.items():

        def build(seed: int, data: DataSet, values: Configuration = configuration) -> Replicate:
            return Replicate(values, seed=seed, dataset=data, max_epochs=spec.scheduler.max_epochs, training=training)

        size = configuration["optimizer"]["batch_size"]
        assert isinstance(size, int)
        fault = lane_fault(build, (0, 1), dataset, size)
        if fault is not None:
            notes.append(f"{loss} on {network} trains replicates one after another, not as lanes: {fault}")
    return notes


def _alone(spec: SweepSpec) -> list[str]:
    """Return a sentence for each pair of network and loss that cannot be a lane of a cohort."""
    training = spec.training.settings
    notes = dict[str, None]()
    for configuration in configurations(spec)[:LOOKED_AT]:
        fault = cohort_fault(configuration, training)
        if fault is not None:
            loss, network = configuration["loss"]["name"], configuration["architecture"]["name"]
            notes[f"{network} with {loss} trains alone, not in a cohort: {fault}"] = None
    return [*notes]
