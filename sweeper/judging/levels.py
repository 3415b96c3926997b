"""Verdicts on levels: which loss, which network, which value of γ. No I/O.

A level holds the candidates with one possible answer, e.g. all configurations of a loss. Its verdict is derived from
those of its candidates, so that a sentence on losses cannot contradict the marks of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sweeper.judging.question import BETTER, NOT_COMPARED, OPEN, SAME, WORSE, Verdicts

#: Level (a possible answer, e.g. `mlp`) → its candidates.
Groups = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Levels:
    """The verdicts on the levels of one question.

    Attributes:
        leader: level of the leading candidate; None if no candidate has a value, or the leader is in no level.
        codes: level → BETTER or WORSE than all others, SAME as the leading level, OPEN or NOT_COMPARED.
    """

    leader: str | None
    codes: Mapping[str, str]

    @property
    def code(self) -> str:
        """Code of the leading level: BETTER if all other levels are worse."""
        return NOT_COMPARED if self.leader is None else self.codes[self.leader]

    def named(self, *codes: str) -> list[str]:
        """Return the levels with one of these codes."""
        return [level for level, code in self.codes.items() if code in codes]


def weakest(codes: Collection[str]) -> str:
    """Return what several verdicts say together: OPEN if one is open, SAME if one is the same, else their code.

    Example:
        >>> weakest(["worse", "same"]), weakest(["worse", "not_compared"]), weakest([])
        ('same', 'open', 'not_compared')
    """
    distinct = {*codes}
    if len(distinct) == 1:
        return distinct.pop()
    return NOT_COMPARED if not distinct else OPEN if distinct & {OPEN, NOT_COMPARED} else SAME


def levels(verdicts: Verdicts, groups: Groups) -> Levels:
    """Return the verdicts on levels, derived from those of their candidates.

    Args:
        verdicts: verdicts on all candidates of the levels.
        groups: level → candidates; candidates that were not asked about are ignored.

    Example:
        >>> from sweeper.judging.judge import judge
        >>> from sweeper.judging.question import Data, Question
        >>> values = {"a": {0: 0.10, 1: 0.11, 2: 0.10}, "b": {0: 0.30, 1: 0.31, 2: 0.32}}
        >>> known = judge(Question(["a", "b"], "nll", relative=True), Data(values))
        >>> dict(levels(known, {"focal": ["a"], "brier": ["b"]}).codes)
        {'focal': 'better', 'brier': 'worse'}
    """
    asked = {level: [name for name in names if name in verdicts.of] for level, names in groups.items()}
    leader = next((level for level, names in asked.items() if verdicts.leader in names), None)
    codes = {
        level: weakest([verdicts.of[name].code for name in names])
        for level, names in asked.items()
        if names and level != leader
    }
    if leader is None:
        return Levels(None, codes)
    together = weakest([*codes.values()])
    return Levels(leader, {leader: BETTER if together == WORSE else together, **codes})


def suiting(best: Mapping[str, Collection[str]], tried: Collection[str]) -> str:
    """Return whether one answer suits all of several places, e.g. one γ all networks.

    Args:
        best: place → answers that may be the best there, none of them empty. The places' questions share the level.
        tried: the answers that were compared at all places.

    Returns:
        SAME if one answer is the best everywhere, WORSE if none can be the best at two of the places, else OPEN.

    Example:
        >>> suiting({"mlp": {"0"}, "resnet8": {"0"}}, "05"), suiting({"mlp": {"0"}, "resnet8": {"5"}}, "05")
        ('same', 'worse')
    """
    sets = [frozenset(of_one) for of_one in best.values()]
    if any(one.isdisjoint(other) for one in sets for other in sets):
        return WORSE
    return SAME if len(tried) > 1 and len({*sets}) == 1 == len(sets[0]) else OPEN


def in_play(verdicts: Verdicts, questions: Mapping[str, Groups]) -> list[str]:
    """Return the candidates whose further seeds could decide a question that is open.

    Args:
        verdicts: verdicts on all candidates of all questions.
        questions: name → level → candidates.
    """
    racing = dict.fromkeys(verdicts.in_play)
    wanted = set[str]()
    for groups in questions.values():
        known = levels(verdicts, groups)
        if known.code == OPEN:
            left = [known.leader, *known.named(OPEN)]
            wanted |= {name for level in left if level is not None for name in groups[level]}
    return [name for name in racing if name in wanted]
