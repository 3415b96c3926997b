"""Seeds that are added after a sweep's trials have ended, for its final stage or at a user's request.

The winning trials were selected on their seeds, so their results on these seeds are too optimistic. The final stage
trains the contenders on fresh seeds common to all. The contenders are the best configuration of each network and of
each loss. The stage works in rounds. First, each contender gets `FIRST_SEEDS` seeds. Then each round adds one seed to
the contenders that `sweeper.judging` cannot yet distinguish. Only fresh seeds are judged. After the
first round, the stage can train lines: several values of one hyperparameter, with the winner's other settings
(`sweeper.scheduling.lines`).

Related work: irace (López-Ibáñez et al. 2016, The irace package, section 2) races configurations over common instances
(here seeds). All configurations see a few instances before the first test (`FIRST_SEEDS`), and eliminations are
permanent. SMAC3 (Lindauer et al. 2022; its intensifier) gives further seeds, one at a time, to the incumbents and their
challengers, up to a maximum (`max_config_calls`, here `at_most`). Unlike there, the best configuration of each network
and loss enters the race even if it is far behind: the questions are about networks and losses, not about the single
best configuration.

Each round depends only on the journal before it. So a driver that takes over continues as its predecessor would have,
and an audit can recompute each round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sweeper.core.cells import grouped
from sweeper.core.errors import SweeperError
from sweeper.core.ids import FIRST_ADDED, ReplicateSeeds, trial_name
from sweeper.journal.best import Mode, rank_of
from sweeper.journal.records import Added, AddedSeed, Attempt, Record
from sweeper.journal.state import COMPLETED, SweepState, TrialState
from sweeper.scheduling.lines import LINE_SEEDS, Line
from trainables.registry import Configuration
from trainables.registry.names import nearest

#: Largest number of seeds per journal record. Each seed contains its configuration, so one record for a large request
#: would have megabytes.
SEEDS_PER_RECORD = 500

#: The value of `question` for seeds that a user requested.
REQUEST = "request"

#: Number of fresh seeds per contender before the first judgement. Two give a spread; a third shows whether one
#: diverged.
FIRST_SEEDS = 3

#: Part of a space that a question can be about → its name in the question.
PARTS = {"architecture": "network", "loss": "loss"}

#: The part of a configuration that is its data set, if that varies.
DATA = "dataset"

#: The question if neither network nor loss varies. It is about the value of the best configuration.
BEST = "best"

#: Trial → index of the fresh seed (from 0) → objective.
TrialValues: TypeAlias = Mapping[str, Mapping[int, float]]

#: Question → level (name of a network or loss, or value of a hyperparameter) → its trials.
Questions: TypeAlias = Mapping[str, Mapping[str, Sequence[str]]]

#: (values, questions) → trials whose further seeds could decide a question.
Racing: TypeAlias = Callable[[TrialValues, Questions], Collection[str]]


@dataclass(frozen=True)
class FinalStage:
    """Chooses the seeds of a sweep's final stage.

    Attributes:
        mode: whether the objective should be small, `min`, or large, `max`.
        seeds: the configurations' own replicate seeds, and the fresh seeds.
        at_most: largest number of seeds per configuration, including its own.
        racing: returns the trials whose further seeds could decide a question.
        parts: parts of the space with several components; keys of `PARTS`.
        lines: hyperparameters for which a line of values is trained.
    """

    mode: Mode
    seeds: ReplicateSeeds
    at_most: int
    racing: Racing
    parts: Sequence[str] = ()
    lines: Sequence[Line] = ()

    @property
    def fresh(self) -> int:
        """Largest number of fresh seeds per configuration."""
        return self.at_most - self.seeds.count

    def next(self, state: SweepState) -> list[Added]:
        """Return the next round of seeds after all trials have ended; empty if every question is settled."""
        settings = self.contenders(state) if self.fresh > 0 else []
        known = replicates_of(state)
        round_of = _Round(state, self.seeds, known)
        for contenders in settings:
            for question, levels in contenders.items():
                for index in levels.values():
                    round_of.fill(index, question, min(FIRST_SEEDS, self.fresh))
        # The first round must be complete before the first judgement: a contender without fresh seeds has no value yet.
        if not round_of.seeds:
            values = _values(known, self.seeds.count)
            for contenders in settings:
                self._race(contenders, state, values, round_of)
        return round_of.bodies()

    def contenders(self, state: SweepState) -> list[dict[str, dict[str, int]]]:
        """Return question → level → the level's best configuration by the sweep's own seeds, for each data set setting.

        If all trials of a level were stopped early, the best of them represents it. Settings of the data set, such as a
        share of wrong labels, are not compared: the best of each level is sought in each of them. A setting that has a
        line is compared.
        """
        ranked = [(rank, index) for index, trial in state.trials.items()
                  if (rank := rank_of(trial, self.mode)) is not None]  # fmt: skip
        best = [index for _, index in sorted(ranked, reverse=True)]
        by_setting = grouped(best, lambda index: self._setting(state, index)).values()
        settings = [self._questions(state, of_one) for of_one in by_setting]
        if self.lines:  # each setting has lines of its own
            return [asked or {BEST: {BEST: of_one[0]}} for asked, of_one in zip(settings, by_setting, strict=True)]
        # Without a question in any setting, for example because all other losses failed, the best one is measured.
        return [asked for asked in settings if asked] or ([{BEST: {BEST: best[0]}}] if best else [])

    def _questions(self, state: SweepState, best: Sequence[int]) -> dict[str, dict[str, int]]:
        """Return question → level → its best of these configurations; a question has at least two levels."""
        questions: dict[str, dict[str, int]] = {}
        for part in self.parts:
            levels = questions.setdefault(PARTS[part], {})
            for index in best:
                levels.setdefault(_of(state, index).name(part), index)
        return {question: levels for question, levels in questions.items() if len(levels) > 1}

    def _race(
        self, contenders: Mapping[str, Mapping[str, int]], state: SweepState, values: TrialValues, round_of: _Round
    ) -> None:
        """Add a round of seeds for one setting of the data set: of lines that begin, and of open questions."""
        groups = {question: dict(levels) for question, levels in contenders.items()}
        for line in self.lines:
            if members := self._members(line, state, groups):
                groups[line.question] = members
            else:
                self._begin(line, state, contenders, values, round_of)
        for index in self._in_play(groups, state, values):
            # A configuration that belongs to several questions gets one seed, which is journaled under the first
            # question.
            question = next(q for q, levels in groups.items() if index in levels.values())
            round_of.add_one(index, question, self.at_most)

    def _in_play(self, groups: Mapping[str, Mapping[str, int]], state: SweepState, values: TrialValues) -> list[int]:
        """Return the configurations that get another seed, in order of the questions."""
        # A configuration leaves the questions if all of its fresh seeds failed, because it has no value.
        members = {trial_name(index): index for index in _indices(groups) if values.get(trial_name(index))}
        lines = {line.question: groups[line.question] for line in self.lines if line.question in groups}
        questions = {path: {level: [trial_name(i)] for level, i in line.items()} for path, line in lines.items()}
        # A line's values belong to their loss and network, too: the best configuration may be one of them.
        for part in self.parts:
            names = {trial: _of(state, index).name(part) for trial, index in members.items()}
            questions[PARTS[part]] = grouped(members, names.__getitem__)
        in_play = self.racing({trial: values[trial] for trial in members}, questions)
        return [index for trial, index in members.items() if trial in in_play]

    def _members(self, line: Line, state: SweepState, groups: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        """Return value → configuration of a line, including contenders on it; empty before the line begins."""
        here = {self._setting(state, index) for index in _indices(groups)}
        added = [trial.added for trial in state.added if trial.added is not None]
        # `resume --set` can ask for a line on each network after the line on the winner's was trained.
        asked = [one for one in added if one.question in (line.path, line.question) and line.is_on_network(one.values)]
        own = [one for one in asked if self._setting(state, one.trial) in here]
        members = dict.fromkeys(one.trial for one in own)
        # The winner, and other contenders that differ from it only in this value, were not added for the line.
        members |= dict.fromkeys(i for i in _indices(groups) if any(line.holds(a.values, _of(state, i)) for a in own))
        # A level without the hyperparameter is the component that 0 makes of the others.
        return {str(line.value(_of(state, index)) or 0): index for index in members}

    def _begin(
        self,
        line: Line,
        state: SweepState,
        contenders: Mapping[str, Mapping[str, int]],
        values: TrialValues,
        round_of: _Round,
    ) -> None:
        """Add the first seeds of a line. Configurations that other questions train have some of them already."""
        measured = {i: of for i in _indices(contenders) if (of := values.get(trial_name(i)))}
        sign = 1 if self.mode == "min" else -1
        # Of equal configurations the first is taken, so that a driver that takes over picks the same winner.
        order = sorted(measured, key=lambda i: (sign * sum(measured[i].values()) / len(measured[i]), i))
        for configuration in line.members([_of(state, i) for i in order]) if order else ():
            round_of.fill(round_of.trial_of(configuration), line.question, min(LINE_SEEDS, self.fresh), configuration)

    def _setting(self, state: SweepState, index: int) -> Configuration:
        """Return the options of a configuration's data set that have no line."""
        asked = {line.key for line in self.lines if line.part == DATA}
        data = _of(state, index).at(DATA) or {}
        return Configuration({key: value for key, value in data.items() if key not in asked})


def trainings(levels: Sequence[int], lines: Sequence[int], fresh: int, settings: int = 1) -> tuple[int, int]:
    """Return the number of fresh seeds that a final stage trains at least, and at most.

    Args:
        levels: number of components of each part of the space that varies.
        lines: number of values of each line.
        fresh: largest number of fresh seeds per configuration.
        settings: number of settings of the data set, each with its own race.

    Example:
        >>> trainings([2, 3], lines=[], fresh=4)  # 2 networks, 3 losses: 4 contenders
        (12, 16)
    """
    # The overall winner is the best of its network and of its loss, so it must be counted once. It is also on every
    # line.
    contenders, new = max(1, sum(levels) - max(0, len(levels) - 1)), sum(values - 1 for values in lines)
    first, line = min(FIRST_SEEDS, fresh), min(LINE_SEEDS, fresh)
    least = contenders * first + new * line + bool(lines) * (line - first)
    return settings * least, settings * (contenders + new) * fresh


class _Round:
    """Collects a round of seeds. Each seed gets the next free index, and the lowest replicate that its trial lacks."""

    def __init__(self, state: SweepState, seeds: ReplicateSeeds, known: Mapping[int, Mapping[int, object]]) -> None:
        self._state, self._count, self._fresh = state, seeds.count, seeds.fresh
        self._known = {index: {*replicates} for index, replicates in known.items()}
        # Seeds are trained once for all questions, so equal configurations are one trial.
        trained = [index for index, replicates in known.items() if replicates]
        self._trials = {_of(state, index): index for index in reversed(trained)}
        self._first = FIRST_ADDED + len(state.added)
        self.seeds: list[AddedSeed] = []

    def trial_of(self, values: Configuration) -> int | None:
        """Return the trial that already has added seeds of this configuration; None if there is none."""
        return self._trials.get(values)

    def fill(self, index: int | None, question: str, fresh: int, values: Configuration | None = None) -> None:
        """Add seeds until a configuration has `fresh` of them; a new configuration has `values` and no index."""
        for replicate in range(self._count, self._count + fresh):
            # The index of a new configuration is that of its first added seed.
            index = self._first + len(self.seeds) if index is None else index
            if replicate not in self._known.get(index, ()):
                self.add(index, replicate, question, values)

    def add_one(self, index: int, question: str, at_most: int) -> None:
        """Add the next seed of a configuration, unless it already has `at_most`."""
        lacking = [r for r in range(self._count, at_most) if r not in self._known.get(index, ())]
        if lacking:
            self.add(index, lacking[0], question)

    def add(self, index: int, replicate: int, question: str, values: Configuration | None = None) -> None:
        """Add one seed of a configuration; a new configuration needs `values`."""
        own, given = self._first + len(self.seeds), _of(self._state, index) if values is None else values
        self.seeds.append(AddedSeed(own, index, replicate, self._fresh(replicate), given, question))
        self._known.setdefault(index, set()).add(replicate)
        self._trials.setdefault(given, index)

    def bodies(self) -> list[Added]:
        """Return the round's record; empty for a round without seeds."""
        return [Added(self._state.round + 1, self.seeds)] if self.seeds else []


def requested(state: SweepState, seeds: ReplicateSeeds, wanted: int, trials: Collection[int] = ()) -> list[Added]:
    """Return the seeds that must be added so that each configuration has `wanted` seeds.

    Args:
        state: state of the sweep.
        seeds: the sweep's replicate seeds.
        wanted: total number of seeds per configuration.
        trials: configurations that get seeds; by default those that have reached the last epoch.

    Raises:
        SweeperError: the sweep has no such trial.
    """
    known = replicates_of(state)
    unknown = [index for index in trials if index not in known]
    if unknown:
        name = trial_name(unknown[0])
        near = nearest(name, [trial_name(index) for index in known])
        raise SweeperError(f"the sweep has no trial {name}{near}", "list its trials with `sweeper results NAME --all`")
    chosen = trials or [
        index
        for index, added in known.items()
        if state.trials[index].status == COMPLETED or any(seed.status == COMPLETED for seed in added.values())
    ]
    made = _Round(state, seeds, known)
    # Seeds are ordered by replicate, so that an interrupted request leaves configurations with equal numbers of seeds.
    for replicate in range(seeds.count, wanted):
        for index in sorted(chosen):
            if replicate not in known[index]:
                made.add(index, replicate, REQUEST)
    # A request has round 0, because it depends on the user and an audit recomputes only rounds from 1.
    starts = range(0, len(made.seeds), SEEDS_PER_RECORD)
    return [Added(0, made.seeds[start : start + SEEDS_PER_RECORD]) for start in starts]


def replicates_of(state: SweepState) -> dict[int, dict[int, TrialState]]:
    """Return trial → replicate → added seed; trials without added seeds have an empty entry."""
    replicates: dict[int, dict[int, TrialState]] = {i: {} for i, trial in state.trials.items() if trial.added is None}
    for trial in state.added:
        assert trial.added is not None
        replicates.setdefault(trial.added.trial, {})[trial.added.replicate] = trial
    return replicates


def unit_of(state: SweepState, trial: int, replicate: int) -> TrialState:
    """Return the state of the training of a replicate: of its trial, or of an added seed."""
    added = replicates_of(state).get(trial, {}).get(replicate)
    return state.trials[trial] if added is None else added


def audit_rounds(
    stage_of: Callable[[Mapping[str, Any]], FinalStage | None], records: Iterable[Record], configurations: int
) -> tuple[int, list[str]]:
    """Recompute every round of seeds from the records before it.

    Args:
        stage_of: builds the final stage of a journaled search space, `None` if it has none.
        records: records of the journal, in order.
        configurations: number of configurations that the sweep draws.

    Returns:
        The number of rounds checked, and one sentence for each that differs.
    """
    stage: FinalStage | None = None
    state, checked, differences = SweepState(configurations), 0, list[str]()
    for record in records:
        body = record.body
        # `resume --set` can change the stage between attempts, so each attempt journals its space.
        if isinstance(body, Attempt) and body.space is not None:
            stage = stage_of(body.space)
        if isinstance(body, Added) and body.round and stage is not None:
            again, checked = [round_body.to_json() for round_body in stage.next(state)], checked + 1
            if again != [body.to_json()]:
                said = f"round {body.round} of fresh seeds differs when it is recomputed"
                differences.append(f"record {record.sequence}: {said}")
        state.apply(record)
    return checked, differences


def _values(known: Mapping[int, Mapping[int, TrialState]], count: int) -> dict[str, dict[int, float]]:
    """Return the objective of each fresh seed that reached the last epoch."""
    return {
        trial_name(index): {
            replicate - count: trial.objective
            for replicate, trial in sorted(replicates.items())
            if trial.status == COMPLETED and trial.objective is not None
        }
        for index, replicates in known.items()
    }


def _of(state: SweepState, index: int) -> Configuration:
    values = state.values_of(index)
    assert values is not None, "a trial that began has been journaled with its configuration"
    return values


def _indices(groups: Mapping[str, Mapping[str, int]]) -> list[int]:
    return [*dict.fromkeys(index for levels in groups.values() for index in levels.values())]
