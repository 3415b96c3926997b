"""Seeds that join a sweep once its trials have ended: those that its final stage chooses, and those asked for.

The trials that won were picked by their seeds, so these cannot say what they are worth. The final stage trains the best
configuration of each network and of each loss, the contenders, on fresh seeds, common to all, in rounds: each gets
`FIRST_SEEDS`; from then on one more goes to those between which a question is still open, as a judge says
(`sweeper.core.statistics`). Only fresh seeds are judged. After the first round a line of values of a loss's
hyperparameter may be trained through the winner's other hyperparameters.

From the literature: irace (López-Ibáñez et al. 2016, The irace package, section 2) races configurations over instances
with a few for all before the first test (`FIRST_SEEDS`), common to them (here seeds), and eliminates for good. SMAC3
(Lindauer et al. 2022; its intensifier) gives further seeds, one at a time, to the incumbents and what challenges them,
up to a most (`max_config_calls`, here `at_most`). Other than there, the best of each level stays in the race however
far it is behind at the beginning: the questions are about networks and losses, not about the one best configuration.

Everything follows from the journal: each round from the values before it, so a driver that takes over goes on as the
one before would have, and an audit makes each round again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sweeper.core.domains import Interval, Node, Uniforms, draw, extremes
from sweeper.core.errors import SweeperError
from sweeper.core.ids import FIRST_ADDED, ReplicateSeeds, config_hash, trial_name
from sweeper.journal.best import Judging, against_constraints, rank_of
from sweeper.journal.records import Added, AddedSeed, Attempt, Record
from sweeper.journal.state import COMPLETED, SweepState, TrialState
from trainables.registry.names import nearest

#: So many seeds share a record.
TOGETHER = 500

#: The question of seeds that a user asked for.
REQUEST = "request"

#: Fresh seeds that each contender gets before any is judged: a spread is known from two, and three show one that fails.
FIRST_SEEDS = 3

#: Values of a line, and seeds that each gets. On simulated surfaces 3 values × 4 seeds keep the best in 99 % and
#: exclude 89 % of the worse ones where the effect is strong; 6 × 2, as many trainings, exclude 52 %.
LINE_VALUES, LINE_SEEDS = 3, 4

#: Parts of a space that questions are about, and what they are called.
PARTS = {"architecture": "network", "loss": "loss"}

#: The question of the best configuration's value, where a space leaves no other open.
BEST = "best"

#: Trial → number of the fresh seed, counted from 0 → value.
Values: TypeAlias = Mapping[str, Mapping[int, float]]

#: Question → level → its trials.
Groups: TypeAlias = Mapping[str, Mapping[str, Sequence[str]]]

#: Values, groups, seeds before the first look → the trials that get another seed.
Judge: TypeAlias = Callable[[Values, Groups, int], Collection[str]]


@dataclass(frozen=True)
class FinalStage:
    """Chooses the seeds of a sweep's final stage.

    Attributes:
        judging: says which trial is better.
        seeds: of the replicates that each configuration has of its own.
        at_most: seeds of one configuration in all, its own included.
        judge: says between which trials a question is open.
        parts: of the space that vary by name, keys of `PARTS`.
        lines: hyperparameter → loss → its domain.
    """

    judging: Judging
    seeds: ReplicateSeeds
    at_most: int
    judge: Judge
    parts: Sequence[str] = ()
    lines: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)

    @property
    def fresh(self) -> int:
        """The most fresh seeds of one configuration."""
        return self.at_most - self.seeds.count

    def next(self, state: SweepState) -> list[Added]:
        """Return the next round of seeds, now that all trials have ended; none where every question is settled."""
        contenders = self.contenders(state) if self.fresh > 0 else {}
        known = replicates_of(state)
        round_of = _Round(state, self.seeds, known)
        for question, levels in contenders.items():
            for index in levels.values():
                round_of.fill(index, question, min(FIRST_SEEDS, self.fresh))
        if round_of.seeds or not contenders:
            return round_of.bodies()
        values = _values(known, self.seeds.count)
        groups = {question: dict(levels) for question, levels in contenders.items()}
        for name in self.lines:
            line = self._line(name, state, groups, values)
            if line:
                groups[name] = line
            else:
                self._begin_line(name, state, groups, values, round_of)
        for index in self._in_play(groups, values):
            question = next(q for q, levels in groups.items() if index in levels.values())
            round_of.add_one(index, question, self.at_most)
        return round_of.bodies()

    def contenders(self, state: SweepState) -> dict[str, dict[str, int]]:
        """Return question → level → the best configuration of that level, by the sweep's own seeds.

        A level whose trials were all stopped is represented by the best of them.
        """
        against = against_constraints(state, self.judging)
        ranked = [(rank, index) for index, trial in state.trials.items()
                  if (rank := rank_of(trial, self.judging.mode, against)) is not None]  # fmt: skip
        best = [index for _, index in sorted(ranked, reverse=True)]
        found: dict[str, dict[str, int]] = {}
        for part in self.parts:
            levels = found.setdefault(PARTS[part], {})
            for index in best:
                levels.setdefault(str(_part(state, index, part).get("name")), index)
        found = {question: levels for question, levels in found.items() if len(levels) > 1}
        return found or ({BEST: {BEST: best[0]}} if best else {})

    def _in_play(self, groups: Mapping[str, Mapping[str, int]], values: Values) -> list[int]:
        """Return the configurations that get another seed, in order."""
        judged = {
            question: {level: [trial_name(i)] for level, i in levels.items() if values.get(trial_name(i))}
            for question, levels in groups.items()
        }
        judged = {question: levels for question, levels in judged.items() if len(levels) > 1}
        in_play = self.judge(values, judged, min(FIRST_SEEDS, self.fresh)) if judged else ()
        indices = dict.fromkeys(index for levels in groups.values() for index in levels.values())
        return [index for index in indices if trial_name(index) in in_play]

    def _line(
        self, name: str, state: SweepState, groups: Mapping[str, Mapping[str, int]], values: Values
    ) -> dict[str, int]:
        """Return value → configuration of a line that has begun; empty before.

        Configurations of the line that are contenders, too, belong to it.
        """
        own = [trial.added for trial in state.added if trial.added is not None and trial.added.question == name]
        if not own:
            return {}
        line = dict.fromkeys(added.trial for added in own)
        line |= dict.fromkeys(i for i in _indices(groups) if any(_on_line(name, _of(state, i), a.values) for a in own))
        return {f"{float(_part(state, index, 'loss').get(name, 0.0)):.3g}": index for index in line}

    def _begin_line(
        self, name: str, state: SweepState, groups: Mapping[str, Mapping[str, int]], values: Values, round_of: _Round
    ) -> None:
        """Add a line's seeds: some of its configurations may be contenders, which lack fewer."""
        measured = {i: of for i in _indices(groups) if (of := values.get(trial_name(i)))}
        sign = 1 if self.judging.mode == "min" else -1
        order = sorted(measured, key=lambda i: (sign * sum(measured[i].values()) / len(measured[i]), i))
        with_it = [loss for i in order if (loss := _part(state, i, "loss")).get("name") in self.lines[name]]
        if not with_it:
            return
        winner, loss = _of(state, order[0]), with_it[0]
        losses: list[Mapping[str, Any]] = [loss]
        if name == "gamma":
            losses.append({"name": "cross_entropy"})
        taken = [float(loss[name])] + [0.0] * (name == "gamma")
        domain = self.lines[name][str(loss["name"])]
        losses += [{**loss, name: value} for value in spread(domain, taken, LINE_VALUES - len(losses))]
        same = {config_hash(_of(state, index)): index for index in measured}
        for each in losses:
            configuration = {**winner, "loss": each}
            round_of.fill(same.get(config_hash(configuration)), name, min(LINE_SEEDS, self.fresh), configuration)


def trainings(levels: Sequence[int], lines: int, fresh: int) -> tuple[int, int]:
    """Return how many fresh seeds a final stage trains at first, and at most.

    Args:
        levels: how many names each part of the space varies over that does vary.
        lines: hyperparameters of which a line is trained.
        fresh: seeds that a configuration gets at most.
    """
    # The best one is the best of its network and of its loss; others may be, too. So a line has one of its values.
    contenders, new = max(1, sum(levels) - max(0, len(levels) - 1)), lines * (LINE_VALUES - 1)
    first, line = min(FIRST_SEEDS, fresh), min(LINE_SEEDS, fresh)
    return contenders * first + new * line + lines * (line - first), (contenders + new) * fresh


class _Round:
    """A round of seeds in the making: each gets the next index, and the lowest number that its trial lacks."""

    def __init__(self, state: SweepState, seeds: ReplicateSeeds, known: Mapping[int, Mapping[int, object]]) -> None:
        self._state, self._count, self._fresh = state, seeds.count, seeds.fresh
        self._known = {index: {*replicates} for index, replicates in known.items()}
        self._first = FIRST_ADDED + len(state.added)
        self.seeds: list[AddedSeed] = []

    def fill(self, index: int | None, question: str, fresh: int, values: Mapping[str, Any] | None = None) -> None:
        """Add what a configuration lacks of its first `fresh` seeds; one without an index is new, with `values`."""
        for replicate in range(self._count, self._count + fresh):
            index = self._first + len(self.seeds) if index is None else index
            if replicate not in self._known.get(index, ()):
                self.add(index, replicate, question, values)

    def add_one(self, index: int, question: str, at_most: int) -> None:
        """Add the next seed of a configuration, unless it has as many as it may have."""
        lacking = [r for r in range(self._count, at_most) if r not in self._known.get(index, ())]
        if lacking:
            self.add(index, lacking[0], question)

    def add(self, index: int, replicate: int, question: str, values: Mapping[str, Any] | None = None) -> None:
        """Add one seed of a configuration; `values` where it is new."""
        own, given = self._first + len(self.seeds), _of(self._state, index) if values is None else values
        self.seeds.append(AddedSeed(own, index, replicate, self._fresh(replicate), given, question))
        self._known.setdefault(index, set()).add(replicate)

    def bodies(self) -> list[Added]:
        """Return the round's record; none for a round without seeds."""
        return [Added(self._state.round + 1, self.seeds)] if self.seeds else []


def requested(state: SweepState, seeds: ReplicateSeeds, wanted: int, trials: Collection[int] = ()) -> list[Added]:
    """Return the seeds that configurations lack of `wanted` each.

    Args:
        state: of the sweep.
        seeds: of its replicates.
        wanted: seeds of each configuration in all.
        trials: whose; by default those that have reached the last epoch.

    Raises:
        SweeperError: there is no such trial.
    """
    known = replicates_of(state)
    unknown = [index for index in trials if index not in known]
    if unknown:
        name = trial_name(unknown[0])
        near = nearest(name, [trial_name(index) for index in known])
        raise SweeperError(f"the sweep has no trial {name}{near}", "see `sweeper results NAME --all`")
    chosen = trials or [
        index
        for index, added in known.items()
        if state.trials[index].status == COMPLETED or any(each.status == COMPLETED for each in added.values())
    ]
    made = _Round(state, seeds, known)
    for replicate in range(seeds.count, wanted):
        for index in sorted(chosen):
            if replicate not in known[index]:
                made.add(index, replicate, REQUEST)
    return [Added(0, made.seeds[at : at + TOGETHER]) for at in range(0, len(made.seeds), TOGETHER)]


def replicates_of(state: SweepState) -> dict[int, dict[int, TrialState]]:
    """Return the added seeds by trial and replicate, also of trials without any."""
    found: dict[int, dict[int, TrialState]] = {i: {} for i, trial in state.trials.items() if trial.added is None}
    for trial in state.added:
        assert trial.added is not None
        found.setdefault(trial.added.trial, {})[trial.added.replicate] = trial
    return found


def spread(domain: Node, taken: Sequence[float], count: int) -> list[float]:
    """Return up to `count` values of a domain, each as far as can be from those `taken` and from one another.

    Of an interval its sextiles are looked at, distances on its own scale; of a list all its numbers.
    """
    logarithmic = isinstance(domain, Interval) and domain.kind == "loguniform"
    if isinstance(domain, Interval):
        known = [_sextile(domain, place) for place in (1, 3, 5)]
    else:
        known = [float(value) for _, value in extremes(domain) if isinstance(value, int | float)]

    def place(value: float) -> float:
        return math.log(value) if logarithmic else value

    chosen, near = list[float](), [place(value) for value in taken if value > 0 or not logarithmic]
    for _ in range(count):
        left = [value for value in known if value not in (*taken, *chosen)]
        if left:
            chosen.append(max(left, key=lambda value: min(abs(place(value) - other) for other in near)))
            near.append(place(chosen[-1]))
    return chosen


def _sextile(domain: Interval, place: int) -> float:
    value = draw(domain, "", 0, Uniforms(lambda path: place / 6))
    assert isinstance(value, int | float)
    return float(f"{value:.3g}")


def audit_rounds(
    stage_of: Callable[[Mapping[str, Any]], FinalStage | None], records: Iterable[Record], configurations: int
) -> tuple[int, list[str]]:
    """Make every round of seeds again from the records before it; return how many, and a sentence on each difference.

    Args:
        stage_of: makes the final stage of a journaled search space; `None` where it has none.
        records: of the journal, in order.
        configurations: that the sweep draws.
    """
    stage: FinalStage | None = None
    state, checked, differences = SweepState(configurations), 0, list[str]()
    for record in records:
        body = record.body
        if isinstance(body, Attempt) and body.space is not None:
            stage = stage_of(body.space)
        if isinstance(body, Added) and body.round and stage is not None:
            again, checked = [each.to_json() for each in stage.next(state)], checked + 1
            if again != [body.to_json()]:
                differences.append(
                    f"record {record.sequence}: round {body.round} of fresh seeds, made again, is another"
                )
        state.apply(record)
    return checked, differences


def _values(known: Mapping[int, Mapping[int, TrialState]], count: int) -> dict[str, dict[int, float]]:
    """Return the objective of each fresh seed that reached the end."""
    return {
        trial_name(index): {
            replicate - count: trial.objective
            for replicate, trial in sorted(replicates.items())
            if trial.status == COMPLETED and trial.objective is not None
        }
        for index, replicates in known.items()
    }


def _of(state: SweepState, index: int) -> Mapping[str, Any]:
    values = state.values_of(index)
    assert values is not None, "whatever began was journaled before"
    return values


def _part(state: SweepState, index: int, part: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _of(state, index)[part]
    return found


def _indices(groups: Mapping[str, Mapping[str, int]]) -> list[int]:
    return [*dict.fromkeys(index for levels in groups.values() for index in levels.values())]


def _on_line(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two configurations differ in nothing but a hyperparameter of the loss."""

    def rest(values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**values, "loss": {key: value for key, value in values["loss"].items() if key != name}}

    def others(values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {key: value for key, value in values.items() if key != "loss"}

    plain = {one["loss"].get("name"), other["loss"].get("name")} & {"cross_entropy"} and name == "gamma"
    return others(one) == others(other) if plain else rest(one) == rest(other)
