"""The questions of a first screen and their answers, derived from the verdicts on the finalists."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.core.cells import Row, grouped, text_of
from sweeper.core.labels import short
from sweeper.judging import question as codes
from sweeper.judging.levels import Levels, levels, suiting, weakest
from sweeper.reporting.answering.answers import (
    ALONE,
    DECIDED,
    EQUAL,
    EQUIVALENT,
    LARGEST,
    NEARLY_DECIDED,
    NOT_DECIDED,
    NOT_JUDGED,
    SMALLEST,
    STOPPED,
    UNFINISHED,
    UNKNOWN,
    WORSE,
    Finalist,
    Question,
)  # fmt: skip
from sweeper.reporting.answering.finalists import Series, in_words
from sweeper.reporting.answering.matrix import Matrix
from sweeper.results.leaderboard import FINISHED

#: Largest cost of using the leader that still counts as "nearly decided", as a share of the best finalist's value.
NEARLY = 0.5


#: Smallest number of values of a line whose ends say something: each of two values is an end.
FEWEST_VALUES = 3


def loss_and_network(grid: Matrix, place: str) -> list[Question]:
    """Return two questions: which loss, and which network may be the best.

    Their verdicts are derived from those of the configurations, so they cannot contradict the rows' marks.
    """
    best, asked = grid.best(place), list[Question]()
    for name, axis in (("loss", 1), ("network", 2)):
        groups: dict[str, list[str]] = {}
        for key, rows in grid.cells.items():
            if key[0] == place:
                groups.setdefault(key[axis], []).extend(text_of(row, "trial") for row in rows)
        if len(groups) > 1 and best is not None:
            first = next(level for level, trials in groups.items() if best["trial"] in trials)
            asked.append(question_of(name, first, groups, levels(grid.verdicts(place), groups)))
    return asked


def question_of(name: str, first: str, candidates: Collection[str], known: Levels) -> Question:
    """Return a question with the candidates by their codes; without a leader, nothing but `first` is known."""
    if known.leader is None:
        return Question(name, (first,), (), tuple(level for level in candidates if level != first))
    best = (known.leader, *(level for level in known.named(codes.OPEN, codes.SAME) if level != known.leader))
    worse = tuple(known.named(codes.WORSE))
    return Question(name, best, worse, tuple(level for level in candidates if level not in (*best, *worse)))


def line_questions(grid: Matrix, lines: Sequence[Series], told: Mapping[str, Sequence[str]]) -> list[Question]:
    """Return one question per line of finalists: which value of its hyperparameter may be the best.

    Args:
        grid: the configurations.
        lines: lines of one setting of the data set.
        told: trial → columns that its label has.
    """
    asked = []
    for line in lines:
        groups = {value: [trial] for value, trial in zip(line.rows, line.trials, strict=True)}
        known = line_levels(grid, line.key[0], groups)
        question = question_of(short(line.column, grid.symbols), next(iter(groups)), groups, known)
        at, edge = _told_apart(grid, line, told), _edge(line, question)
        suits = _suits(grid, line, question, lines)
        asked.append(replace(question, cell=line.key[1:], at=at, edge=edge, suits=suits))
    return asked


def _suits(grid: Matrix, line: Series, known: Question, lines: Sequence[Series]) -> frozenset[str]:
    """Return the values that may suit a line's network, of those that were tried on every network with such a line.

    All networks' lines are judged together. A value that the row's mark leaves open stays.
    """
    alike = [other for other in lines if (other.column, other.key[:2]) == (line.column, line.key[:2])]
    tried = frozenset.intersection(*(frozenset(other.rows) for other in alike))
    if len({other.key[2] for other in alike}) < 2 or not tried:
        return frozenset()
    trials = {value: text_of(row, "trial") for value, row in line.rows.items() if value in tried}
    epoch = min(max(grid.decides.values[trial]) for trial in trials.values())
    verdicts = grid.decides.among([*trials.values()], epoch, questions=len(alike))
    left = {value for value, trial in trials.items() if trial not in verdicts.named(codes.WORSE)}
    return frozenset(left | (tried & {*known.best, *known.unknown}))


@dataclass(frozen=True)
class Shared:
    """Whether one value of a hyperparameter suits all networks, derived from the verdicts on a line on each of them.

    Attributes:
        name: the hyperparameter.
        loss: the loss that has it; empty for a line of losses.
        code: SAME if one value is the best on each network, WORSE if no value can be the best on all, else OPEN.
        best: network → values, of those tried on all networks, that may be the best on it.
    """

    name: str
    loss: str
    code: str
    best: Mapping[str, frozenset[str]]

    @property
    def common(self) -> list[str]:
        """Values that may be the best on every network."""
        return sorted(frozenset.intersection(*self.best.values()))


def shared_values(questions: Sequence[Question]) -> list[Shared]:
    """Return for each hyperparameter with a line on several networks whether one value suits them all.

    Example:
        >>> best = {"mlp": "0", "resnet8": "5"}
        >>> lines = [Question("γ", (of,), (), (), ("focal", net), suits=frozenset(of)) for net, of in best.items()]
        >>> shared_values(lines)[0].code
        'worse'
    """
    lines = [question for question in questions if question.cell is not None and question.suits]
    found = []
    for (name, loss), same in grouped(lines, lambda line: (line.name, line.cell[0])).items():  # type: ignore[index]
        best = {line.cell[1]: line.suits for line in same if line.cell is not None}
        found.append(Shared(name, loss, suiting(best, tried=frozenset.intersection(*(q.values for q in same))), best))
    return found


def _told_apart(grid: Matrix, line: Series, told: Mapping[str, Sequence[str]]) -> str:
    """Return the settings, equal on the whole line, by which labels tell its rows from other finalists."""
    rows = [*line.rows.values()]
    columns = dict.fromkeys(column for trial in line.trials for column in told.get(trial, ()))
    equal = [name for name in columns if name != line.column and len({row.get(name) for row in rows}) == 1]
    return in_words(rows[0], equal, grid.symbols)


def _edge(line: Series, question: Question) -> str:
    """Return the end of the values tried at which the leader is, if others are worse. Nothing lies beyond 0."""
    leader, numbers = question.best[0], line.numbers
    if not question.worse or len(numbers) < FEWEST_VALUES or not numbers.get(leader):
        return ""
    ends = {max(numbers.values()): LARGEST, min(numbers.values()): SMALLEST}
    return ends.get(numbers[leader], "")


def line_levels(grid: Matrix, place: str, groups: Mapping[str, Sequence[str]]) -> Levels:
    """Return the verdicts on a line's values: those of the rows if the leader is on it, else its own comparison.

    A value is only called worse if its row is, so the sentence and the row's mark cannot disagree.
    """
    every, trials = grid.verdicts(place), [trial for of_one in groups.values() for trial in of_one]
    if every.leader in trials:
        return levels(every, groups)
    known = levels(grid.decides.among(trials, min(max(grid.decides.values[trial]) for trial in trials)), groups)
    if known.leader is None:
        return known
    marked = levels(every, groups).codes
    rest = {
        level: codes.OPEN if code == codes.WORSE and marked.get(level) != codes.WORSE else code
        for level, code in known.codes.items()
        if level != known.leader
    }
    together = weakest([*rest.values()])
    return Levels(known.leader, {known.leader: codes.BETTER if together == codes.WORSE else together, **rest})


def cost_of(grid: Matrix, best: Row) -> tuple[float | None, bool, int]:
    """Return the leader's largest possible cost, whether it is a share of the best value, and the fewest seeds."""
    known, last = grid.verdicts(place_of_trial(grid, best)), grid.decides.last(best)
    if known.code == codes.NOT_COMPARED or best["status"] != FINISHED:
        return None, True, 0 if last is None else last.n
    seeds = [len(verdict.seeds) for verdict in known.of.values() if verdict.paired]
    share = known.most_lost_ratio
    return known.most_lost if share is None else share, share is not None, min(seeds, default=last.n if last else 0)


def place_of_trial(grid: Matrix, row: Row) -> str:
    """Return a trial's setting of the data set."""
    return grid.decides.places[text_of(row, "trial")]


def state_of(grid: Matrix, lines: Sequence[Finalist], best: Row, lost: float | None, *, relative: bool) -> str:
    """Return the state of an answer, which follows from the verdicts on its finalists."""
    if best["status"] != FINISHED:
        return UNFINISHED
    finalists = [line.standing for line in lines if line.trial != best["trial"] and line.standing != STOPPED]
    if not finalists:  # rivals that were stopped at a rung were never compared
        return ALONE
    if lost is None or {*finalists} == {UNKNOWN}:
        return NOT_JUDGED
    if {*finalists} <= {WORSE, EQUAL}:
        return EQUIVALENT if EQUAL in finalists else DECIDED
    return NEARLY_DECIDED if WORSE in finalists and (lost <= NEARLY or not relative) else NOT_DECIDED
