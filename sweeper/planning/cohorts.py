"""How the trials of a sweep fall into cohorts, and what an epoch takes in one."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from sweeper.space.configurations import configurations
from sweeper.space.domains.choices import Configuration
from sweeper.space.spec import SweepSpec
from sweeper.text.labels import plural
from trainables.training.cohorts import COHORT, cohort_key

if TYPE_CHECKING:
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
    from trainables.training.cohorts.width import measured_width

    processes = max(1, int(len(os.sched_getaffinity(0)) / max(1.0, spec.resources.cpu)))
    most = -(-len(configurations(spec)) * spec.replicates.count // processes)
    return measured_width(build, device, most, processes)


def lane_seconds(build: Callable[[int], Replicate], lanes: int) -> float:
    """Return a lane's share of the seconds that an epoch of a full cohort takes, the first epoch left out."""
    from trainables.training.cohorts import Cohort

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
