"""Warm start of a searcher from earlier sweeps: find their trials, compare, and journal them.

What is taken is choices and final objectives, not trials: nothing is trained less, but the searcher begins where the
earlier sweeps ended. Only trials that ran to the end count: the value of one that was stopped early is that of its last
rung, which other competitors decided. Once the journal has them, the earlier sweeps are needed no more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.domains import choices_of
from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from sweeper.core.ids import trial_name
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Learned, Observation
from sweeper.journal.state import COMPLETED, fold
from sweeper.space.spec import SweepSpec
from sweeper.storage.metadata import read_manifest
from sweeper.storage.places import local_copy
from sweeper.storage.sweeps import Sweep, open_sweep

MANIFEST_KEY = "warm_start"
"""The manifest's list of what was learned from which sweep."""


@dataclass(frozen=True)
class Lesson:
    """What one earlier sweep teaches.

    Attributes:
        sweep: its name, as the search space gives it.
        observations: of every finished trial in the space; its value is the objective at the end.
        outside: how many finished trials lie outside of the space.
    """

    sweep: str
    observations: list[Observation]
    outside: int

    def record(self) -> Learned:
        """Return the body of the journal record that makes it known; its attempt is that of who journals it."""
        return Learned(0, self.sweep, self.observations, self.outside)

    def summary(self) -> dict[str, object]:
        """Return what the manifest says of it."""
        return {"sweep": self.sweep, "observations": len(self.observations), "outside": self.outside}


def lessons(
    spec: SweepSpec, facts: Mapping[str, object], output: str | Path, known: Mapping[str, object] | None = None
) -> list[Lesson]:
    """Return what the sweeps of `searcher.warm_start` teach, in that order.

    Args:
        spec: of the sweep that begins.
        facts: of its data set, as its manifest records them (`sweeper.planning.preparation.dataset_facts`).
        output: where sweeps are; a name may also be a path, or an address in a store.
        known: sweeps whose lessons the journal has already; they are not opened.

    Raises:
        InvalidSearchSpace: with every sweep that does not exist, cannot be read, or measured something else.
    """
    found, faults = list[Lesson](), list[Fault]()
    for index, name in enumerate(dict.fromkeys(spec.searcher.warm_start)):
        if known and name in known:
            continue
        place = f"searcher.warm_start[{index}]"
        try:
            source = open_sweep(*local_copy(name, output, tables=False))
            reasons = _differences(spec, facts, source)
            if reasons:
                rule = f"cannot warm-start from {name!r}: {'; '.join(reasons)}"
                faults.append(Fault(place, rule, "make the two sweeps agree on that, or remove it from warm_start"))
            else:
                found.append(_lesson(spec, source, name))
        except SweeperError as error:
            faults.append(Fault(place, error.message, error.remedy))
    if faults:
        raise InvalidSearchSpace(faults)
    return found


def _lesson(spec: SweepSpec, source: Sweep, name: str) -> Lesson:
    state = fold(read_journal(source.paths.journal), len(source.configurations))
    observations, outside = list[Observation](), 0
    for index, trial in state.trials.items():
        value = trial.objective
        if trial.status != COMPLETED or value is None or not math.isfinite(value):
            continue
        choices = choices_of(spec.space, source.configurations[index])
        if choices is None:
            outside += 1
        else:
            observations.append(Observation(trial_name(index), choices, value))
    return Lesson(name, observations, outside)


def _differences(spec: SweepSpec, facts: Mapping[str, object], source: Sweep) -> list[str]:
    """Return why a source's objectives are not those of `spec`, a few words each."""
    here, there = spec.objective, source.spec.objective
    reasons = []
    if here != there:
        reasons.append(f"its objective is {there.mode} {there.metric}, not {here.mode} {here.metric}")
    if source.spec.scheduler.max_epochs != spec.scheduler.max_epochs:
        reasons.append(f"its max_epochs is {source.spec.scheduler.max_epochs}, not {spec.scheduler.max_epochs}")
    if _plain({**spec.dataset, **facts}) != _dataset(source):
        reasons.append("its data set or split differs")
    bins = source.spec.evaluation.bins
    if here.metric.endswith(("ece", "mce")) and bins != spec.evaluation.bins:
        reasons.append(f"its calibration errors have {bins} bins, not {spec.evaluation.bins}")
    if spec.is_rehearsal != source.spec.is_rehearsal:
        reasons.append("only one of the two is a rehearsal")
    return reasons


def _dataset(source: Sweep) -> object:
    # Where nothing is known of what it ran on, it cannot be said to be the same.
    return read_manifest(source.paths.manifest, unknown_if_damaged=True).get("dataset")


def _plain(values: Mapping[str, object]) -> object:
    return json.loads(json.dumps(values))
