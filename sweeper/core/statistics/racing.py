"""Racing: rounds of common fresh seeds until each question is decided, equivalent or given up. No I/O.

The last stage of a sweep trains contenders (the best configuration of each network, of each loss, of each γ) on common
fresh seeds, one more in each round. A configuration that is worse than another after a round gets no further seeds.
This is racing (Maron & Moore 1994; irace: López-Ibáñez et al. 2016, The irace package, §3, which also compares on
common instances and drops by a test) with the comparisons of `best_set` as the test. As in SMAC's intensification
(Hutter, Hoos & Leyton-Brown 2011, Sequential model-based optimization for general algorithm configuration, §4) a
challenger is compared on the seeds that the leader has. Two things differ from these sources. Several questions share
one race. All tests together spend one error of 5 % (`level_of`), whereas irace spends 5 % on every test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sweeper.core.statistics.best_set import Comparisons, Lost, level_of, most_lost
from sweeper.core.statistics.spreads import Floats, Spreads, spreads

DECIDED, EQUIVALENT, OPEN = "decided", "equivalent", "open"

#: Unit (a configuration's trial) → round (number of the common fresh seed, ascending) → value.
Values = Mapping[str, Mapping[int, float]]

#: Question ("network") → level (a possible answer, "mlp") → units (the trials with that answer).
Groups = Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True)
class Question:
    """The state of one question, e.g. which network is the best.

    Attributes:
        state: DECIDED, EQUIVALENT (the leading level is at most the margin worse than every other level) or OPEN.
        leader: the level that contains the best trial, e.g. the network `mlp`.
        leaders: level → its best trial.
        left: levels that may contain the best trial; the leading level comes first.
    """

    state: str
    leader: str
    leaders: Mapping[str, str]
    left: tuple[str, ...]


@dataclass(frozen=True)
class Race:
    """The state of a race after its rounds.

    Attributes:
        questions: name → its state.
        units: trials that get another fresh seed now; none if no question is open.
        round: number of rounds examined.
        lost: bound on how much worse the leading trial is than the truly best one; None without a spread.
    """

    questions: Mapping[str, Question]
    units: tuple[str, ...]
    round: int
    lost: Lost | None


def open_questions(values: Values, groups: Groups, mode: str, margin: float | None = None, *, first: int = 2) -> Race:
    """Return the state of a race: which questions are open, and which trials get another seed.

    All tests are repeated from the values, so the result depends on the values alone. Test k follows round `first` + k
    − 1 and has the level `level_of(k)`. A trial that is worse in one test is eliminated from its question. A trial
    without a value in a round (its training failed) is left out of that round's test.

    Args:
        values: trial → round → finite value; trials without any are ignored.
        groups: question → level → trials. A trial can belong to several questions.
        mode: `min` or `max`: which is better.
        margin: difference that does not matter, on the objective's scale; None if every difference matters.
        first: number of rounds before the first test.

    Example:
        >>> values = {"a": {0: 0.10, 1: 0.11, 2: 0.10}, "b": {0: 0.30, 1: 0.31, 2: 0.32}}
        >>> open_questions(values, {"network": {"resnet8": ["a"], "mlp": ["b"]}}, "min").questions["network"].state
        'decided'
    """
    return _Looks.at(values, groups, mode, margin, first).answer()


@dataclass
class _Looks:
    """A race under way.

    Attributes:
        known: trial → round → value.
        out: question → eliminated trials.
        closed: question → its final state.
        look: number of tests so far.
    """

    known: dict[str, dict[int, float]]
    groups: Groups
    mode: str
    margin: float | None
    out: dict[str, frozenset[str]]
    closed: dict[str, str]
    look: int = 0
    lost: Lost | None = None

    @classmethod
    def at(cls, values: Values, groups: Groups, mode: str, margin: float | None, first: int) -> _Looks:
        """Run all tests on these values."""
        known = {unit: dict(by_round) for unit, by_round in values.items() if by_round}
        groups = {
            name: levels for name, levels in groups.items() if any(u in known for us in levels.values() for u in us)
        }
        race = cls(known, groups, mode, margin, dict.fromkeys(groups, frozenset()), {})
        for name, levels in groups.items():
            if sum(any(unit in known for unit in units) for units in levels.values()) == 1:
                race.closed[name] = DECIDED
        for count in range(first, len(race.rounds) + 1):
            race.take(count)
        return race

    @property
    def rounds(self) -> list[int]:
        return sorted({number for by_round in self.known.values() for number in by_round})

    def take(self, count: int) -> None:
        """Run the test after `count` rounds, on the trials that have a value in the last round."""
        self.look += 1
        rounds = self.rounds[:count]
        present = [unit for unit, by_round in self.known.items() if rounds[-1] in by_round]
        seen = [{n: self.known[unit][n] for n in rounds if n in self.known[unit]} for unit in present]
        spread = spreads(seen, self.mode)
        if spread is None:
            return
        self.lost = most_lost(spread)
        for name in self.groups:
            if name not in self.closed:
                self._judge(name, present, spread)

    def _judge(self, name: str, present: Sequence[str], spread: Spreads) -> None:
        level = {unit: level for level, units in self.groups[name].items() for unit in units if unit in self.known}
        at = [place for place, unit in enumerate(present) if unit in level and unit not in self.out[name]]
        if len(at) < 2:
            return
        compared = Comparisons(spread.part(at), level_of(self.look))
        self.out[name] |= {present[place] for place, may in zip(at, compared.may_be_best, strict=True) if not may}
        left = {level[unit] for unit in level.keys() - self.out[name]}
        if len(left) == 1:
            self.closed[name] = DECIDED
        elif (
            self.margin is not None
            and _loss(compared, [level[present[place]] for place in at], self.look) <= self.margin
        ):
            self.closed[name] = EQUIVALENT

    def answer(self) -> Race:
        """Return the state of all questions, and the trials that stay in the race."""
        questions = {
            name: _question(self.known, levels, self.out[name], self.closed.get(name, OPEN), self.mode)
            for name, levels in self.groups.items()
        }
        racing = set[str]()
        for name, question in questions.items():
            if question.state == OPEN:
                racing |= {unit for level in question.left for unit in self.groups[name][level]} - self.out[name]
        return Race(questions, tuple(unit for unit in self.known if unit in racing), len(self.rounds), self.lost)


def _loss(compared: Comparisons, levels: Sequence[str], look: int) -> float:
    """Bound how much worse the leading trial can be than those of other levels, at twice the test's error."""
    # A one-sided bound: equivalence tests at level α read a two-sided interval at 1 − 2α (Schuirmann 1987).
    leader = int(compared.spreads.scores.argmax())
    rivals = [at for at, level in enumerate(levels) if level != levels[leader]]
    return most_lost(compared.spreads, 1 - 2 * (1 - level_of(look)), rivals).value


def _question(
    known: Values, levels: Mapping[str, Sequence[str]], out: frozenset[str], state: str, mode: str
) -> Question:
    sign = 1 if mode == "min" else -1
    means = {unit: sign * float(np.mean([*by_round.values()])) for unit, by_round in known.items()}

    def rank(unit: str) -> tuple[bool, float]:
        return unit in out, means[unit]

    present = {level: [unit for unit in units if unit in known] for level, units in levels.items()}
    leaders = {level: min(units, key=rank) for level, units in present.items() if units}
    order = sorted(leaders, key=lambda level: rank(leaders[level]))
    left = tuple(level for level in order if leaders[level] not in out)
    return Question(state, order[0], leaders, left)


#: A number of further seeds is proposed if it decides with this predicted probability.
CHANCE = 0.9

_DRAWS = 40


@dataclass(frozen=True)
class Needed:
    """Further trainings that are predicted to decide every open question.

    Attributes:
        trainings: number of trainings, at most.
        seeds: trial → number of further seeds.
    """

    trainings: int
    seeds: Mapping[str, int]


def needed_seeds(
    values: Values, groups: Groups, mode: str, margin: float | None = None, *, first: int = 2, at_most: int = 16
) -> Needed | None:
    """Return the smallest number of further seeds that decides all open questions with probability `CHANCE`.

    Draws true means given the values (shrunk to the overall mean: Efron & Morris 1975, Data analysis using Stein's
    estimator), then further seeds, and continues the race with these (predictive power: Spiegelhalter, Freedman &
    Parmar 1994). Returns None if nothing is open, no spread is known, or `at_most` further seeds do not suffice.
    """
    race = _Looks.at(values, groups, mode, margin, first)
    racing, units = race.answer().units, [*race.known]
    spread = spreads([*race.known.values()], mode)
    if not racing or spread is None:
        return None
    done = len(race.rounds)
    taken: list[int] = []
    for seed in range(_DRAWS):
        table = _drawn(spread, np.random.default_rng(seed), at_most)
        later = replace(race, known=_with(race, racing, units, table), out=dict(race.out), closed=dict(race.closed))
        more = 0
        while more < at_most and len(later.closed) < len(later.groups):
            more += 1
            if done + more >= first:
                later.take(done + more)
        taken.append(more if len(later.closed) == len(later.groups) else at_most + 1)
        if sum(count > at_most for count in taken) > (1 - CHANCE) * _DRAWS:
            return None  # too many draws have failed for the rest to change the answer
    needed = sorted(taken)[math.ceil(CHANCE * _DRAWS) - 1]
    return Needed(needed * len(racing), dict.fromkeys(racing, needed))


def _with(race: _Looks, racing: Sequence[str], units: Sequence[str], table: Floats) -> dict[str, dict[int, float]]:
    """Return the values, extended by those of further rounds [k, rounds] for the trials in the race."""
    last = race.rounds[-1] + 1
    return {
        unit: {**race.known[unit], **({last + r: float(v) for r, v in enumerate(row)} if unit in racing else {})}
        for unit, row in zip(units, table, strict=True)
    }


def _drawn(spread: Spreads, rng: np.random.Generator, seeds: int) -> Floats:
    """Draw values of further seeds [k, seeds], with true means and spreads drawn given the observed values."""
    cumulative = spread.weights.cumsum(axis=1)
    sigma = np.array([spread.deviations[np.searchsorted(row / row[-1], rng.random())] for row in cumulative])
    error = sigma**2 / spread.sizes
    middle = float(np.average(spread.scores, weights=1 / error))
    between = max(float(np.var(spread.scores, ddof=1) - np.median(error)), 1e-12) if len(error) > 1 else 1.0
    weight = between / (between + error)
    truth = middle + weight * (spread.scores - middle) + np.sqrt(weight * error) * rng.standard_normal(len(sigma))
    scores = truth[:, None] + sigma[:, None] * rng.standard_normal((len(sigma), seeds))
    return np.asarray(np.exp(spread.sign * scores) if spread.relative else spread.sign * scores)
