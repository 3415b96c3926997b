"""How the trials of a sweep fall into cohorts, what an epoch takes in one, and which cannot be lanes, and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from sweeper.core.domains import Configuration
from sweeper.space.configurations import configurations
from sweeper.space.spec import SweepSpec
from sweeper.text.labels import plural
from trainables.files.container import usable_cores
from trainables.training.lanes import COHORT, cohort_key

if TYPE_CHECKING:
    from trainables.training.loop import Replicate


from trainables.datasets.base import DataSet
from trainables.training.lanes import cohort_fault
from trainables.training.lanes.membership import is_own, lane_fault
from trainables.training.lanes.packing import AUTO, FUSED
from trainables.training.loop import Replicate

LOOKED_AT = 2000
"""Configurations that are sorted; of more, shares are those of the first."""

SHOWN = 8
"""Kinds of cohorts that a plan shows a line each of."""


def cohort_lines(spec: SweepSpec) -> tuple[str, ...]:
    """Return a line for each kind of cohort: which trials can train together, and in how many lanes.

    Empty where `packing` is not `cohort`. How many lanes pay, if any, is measured when the sweep begins.
    """
    if spec.replicates.packing != COHORT:
        return ()
    training = spec.training.settings
    examples = configurations(spec)[:LOOKED_AT]
    keys = [cohort_key(values, training) for values in examples]
    names = {key: _name(values) for key, values in zip(keys, examples, strict=True)}
    lanes = spec.replicates.lanes
    width = "as many lanes as are measured to be fastest" if lanes == "auto" else f"{lanes} lanes a process"
    counted = Counter(keys)
    alone = counted.pop(None, 0)
    lines = [f"{plural(count, 'trial')} of {names[key]}: {width}" for key, count in counted.most_common(SHOWN)]
    if len(counted) > SHOWN:
        lines.append(f"{len(counted) - SHOWN} more kinds, none of them larger")
    return (*lines, *([f"{plural(alone, 'trial')} cannot be lanes and train alone"] if alone else []))


def lanes_here(spec: SweepSpec, configuration: Configuration, build: Callable[[int], Replicate], device: str) -> int:
    """Return the lanes of a cohort of a configuration's kind in each process of this machine; 0 where it trains alone.

    As many as the space says; where it leaves that to a measurement, as many as are measured here.
    """
    training = spec.training.settings
    if spec.replicates.packing != COHORT or cohort_key(configuration, training) is None:
        return 0
    if spec.replicates.lanes != "auto":
        return spec.replicates.lanes
    from trainables.training.lanes.packing import measured_width

    processes = max(1, int(usable_cores() / max(1.0, spec.resources.cpu)))
    most = -(-len(configurations(spec)) * spec.replicates.count // processes)
    return measured_width(build, device, most, processes)


def lane_seconds(build: Callable[[int], Replicate], lanes: int) -> float:
    """Return a lane's share of the seconds that an epoch of a full cohort takes, the first epoch left out."""
    from trainables.training.lanes import Cohort

    cohort = Cohort(first := build(0), lanes)
    for seed in range(lanes):
        cohort.join(build(seed) if seed else first)
    cohort.train_epoch()
    started = time.perf_counter()
    cohort.train_epoch()
    return (time.perf_counter() - started) / lanes


def _name(values: Configuration) -> str:
    network, recipe = values["architecture"], values["optimizer"]
    options = ", ".join(f"{key} {value}" for key, value in network.items() if key != "name")
    shape = f"{network['name']} ({options})" if options else str(network["name"])
    return f"{shape}, {recipe['name']}, batch size {recipe.get('batch_size', 128)}"


ON_RAY = (
    "packing: cohort trains several configurations together with the local executor alone; on Ray each trial's "
    "replicates are a cohort of their own"
)


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
