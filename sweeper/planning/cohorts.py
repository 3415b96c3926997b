"""How the trials of a sweep fall into cohorts, in words."""

from __future__ import annotations

from collections import Counter

from sweeper.space.configurations import configurations
from sweeper.space.domains.choices import Configuration
from sweeper.space.models import SweepSpec
from sweeper.text.labels import plural
from trainables.training.acceleration import TrainingSettings
from trainables.training.cohorts import COHORT, cohort_key

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
    training = TrainingSettings(**spec.training.model_dump())
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


def _name(values: Configuration) -> str:
    network, recipe = values["architecture"], values["optimizer"]
    options = ", ".join(f"{key} {value}" for key, value in network.items() if key != "name")
    shape = f"{network['name']} ({options})" if options else str(network["name"])
    return f"{shape}, {recipe['name']}, batch size {recipe.get('batch_size', 128)}"
