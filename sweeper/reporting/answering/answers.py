"""The first screen of a sweep as data: finalists, questions, and the answer for each setting of the data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sweeper.core.statistics.basics import Correlation, Spread
from sweeper.judging import question as codes
from sweeper.judging.means import Mean
from sweeper.judging.question import Verdict
from sweeper.judging.trends import Trend
from sweeper.results.deployed import Deployed
from sweeper.results.estimators import Judgement
from sweeper.results.leaderboard import Goal
from sweeper.results.selection import Selection

#: Largest cost of using the leader that is stated, as a share of the best finalist's value. A larger one only says that
#: nothing is known.
LARGEST_STATED = 1.0


#: Standings: the leader, possibly as good, equal within the margin, worse, not trained to the end, not compared.
BEST, ALIKE, EQUAL, WORSE, STOPPED, UNKNOWN = "best", "alike", codes.SAME, codes.WORSE, "stopped", "unknown"

#: States of an answer: all other finalists are worse; none is better by more than the margin; some are worse; none is
#: worse; no difference can be judged (one seed each, or equal values); there is one finalist only; none has finished.
DECIDED, EQUIVALENT, NEARLY_DECIDED, NOT_DECIDED, NOT_JUDGED, ALONE, UNFINISHED = (
    "decided", "equivalent", "nearly", "open", "not judged", "alone", "unfinished"
)  # fmt: skip


#: Ends of a line of values.
LARGEST, SMALLEST = "largest", "smallest"


@dataclass(frozen=True)
class Use:
    """A finalist without and with temperature scaling.

    Attributes:
        nll: mean test NLL before and after.
        accuracy: mean test accuracy, which temperature scaling does not change.
        standing: BEST, ALIKE, EQUAL, WORSE or UNKNOWN by the test NLL that `Deployed` judges.
    """

    nll: tuple[float, float]
    accuracy: Mean
    standing: str


@dataclass(frozen=True)
class Finalist:
    """A finalist. If no configuration of a loss on a network was trained to the end, the best of them.

    Attributes:
        place, loss, network: the cell in which it is the best. `place` is the data set's setting.
        setting: the settings that distinguish its loss from cross-entropy, and it from the other finalists of its loss
            on its network, `γ 3 lr 0.1`; may be empty.
        trial: name of the trial.
        configuration: hyperparameters in words.
        epoch: last epoch trained.
        standing: BEST, ALIKE, EQUAL, WORSE, STOPPED or UNKNOWN.
        value: mean and spread of the objective over seeds.
        change: test ECE after minus before temperature scaling; None if it was not measured.
        used: how the finalist does without and with temperature scaling; None without stored predictions.
    """

    place: str
    loss: str
    network: str
    setting: str
    trial: str
    configuration: str
    epoch: int
    standing: str
    value: Spread
    change: Judgement | None
    used: Use | None = None

    @property
    def words(self) -> str:
        """Loss and setting, e.g. `focal γ 3`."""
        return " ".join(filter(None, [self.loss, self.setting]))


@dataclass(frozen=True)
class Along:
    """What a line of values changes besides the objective.

    Attributes:
        values: the values in words, the smallest first; without an order, the best first.
        reference: the value that accuracies are compared with: 0 if it is on the line, else the first one.
        accuracy: value → verdict on its test accuracy against the reference's, in shares.
        curvature: column of a curvature statistic → its trend from the smallest value to the largest.
    """

    values: tuple[str, ...]
    reference: str
    accuracy: Mapping[str, Verdict]
    curvature: Mapping[str, Trend]


@dataclass(frozen=True)
class Question:
    """A question that a sweep answers: which loss, which network, or which value of a hyperparameter.

    Attributes:
        name: `loss`, `network`, or the hyperparameter's name, `γ`.
        best: candidates that may be the best, the leader first.
        worse: candidates that are worse.
        unknown: candidates that are not compared. If seeds cannot decide, these are all but the leader.
        cell: loss and network of a line of values, on which all else is equal; None for the questions `loss` and
            `network`, whose candidates are compared as tuned. A line of losses has no loss, one of networks no network.
        at: settings that tell the line from other finalists of its loss on its network, in words.
        edge: LARGEST or SMALLEST if the leader is at that end of the values tried, and others are worse; else empty.
        along: what else changes with the value; None for the questions `loss` and `network`.
        suits: of the values tried on all networks with a line, those that may be the best of them on this one. The
            networks share the level. Empty without a line of the same hyperparameter and loss on another network.
    """

    name: str
    best: tuple[str, ...]
    worse: tuple[str, ...]
    unknown: tuple[str, ...]
    cell: tuple[str, str] | None = None
    at: str = ""
    edge: str = ""
    along: Along | None = None
    suits: frozenset[str] = frozenset()

    @property
    def values(self) -> frozenset[str]:
        """All candidates."""
        return frozenset((*self.best, *self.worse, *self.unknown))

    @property
    def decided(self) -> bool:
        """Whether exactly one candidate can be the best."""
        return len(self.best) == 1 and not self.unknown


@dataclass(frozen=True)
class Answer:
    """The answer of a sweep for one setting of its data set.

    Attributes:
        place: the setting of the data set; empty if it does not vary.
        state: DECIDED, EQUIVALENT, NEARLY_DECIDED, NOT_DECIDED, NOT_JUDGED, ALONE or UNFINISHED.
        running: whether trials are still to be trained.
        objective: the metric that decides, and whether small or large values are better.
        leader: the best finalist so far.
        most_lost: upper limit of the leader's distance from the best finalist. If `relative`, it is a share of the best
            finalist's value, else it is in the objective's unit. None if seeds cannot decide.
        relative: whether `most_lost` is a share.
        questions: loss and network, then hyperparameters.
        finalists: the best configurations of each loss on each network, best network and best loss first.
        between: exactly two finalists, and the first's test ECE minus the second's, before and after temperature
            scaling; None for another number of finalists, or without predictions.
        seeds: smallest number of seeds of a finalist.
        fresh: whether these seeds are fresh, so that they selected nothing.
        trainings: number of further trainings that would probably decide the open questions; 0 if unknown.
        command: command that would decide the open questions; empty if there are none, or if trials are still to be
            trained.
        seconds: mean duration of a training; None if unknown.
        deployed: verdicts on the finalists' test NLL; None without stored predictions.
        draws: loss → number of configurations drawn.
        tuned: names of the settings, besides the loss's own, in which the best finalists of the losses differ.
        ece_by_trace: Spearman's correlation of validation ECE with the trace of cross-entropy's Hessian over finished
            configurations, within networks, and their number. None if curvature was not measured; the correlation is
            None for too few configurations.
        selective: AURC, and accuracy at a coverage, of the finalists with a selective loss.
    """

    place: str
    state: str
    running: bool
    objective: Goal
    leader: Finalist
    most_lost: float | None
    relative: bool
    questions: tuple[Question, ...]
    finalists: tuple[Finalist, ...]
    between: tuple[Finalist, Finalist, Judgement, Judgement] | None
    seeds: int
    fresh: bool
    trainings: int
    command: str
    seconds: float | None
    deployed: Deployed | None = None
    draws: Mapping[str, int] = field(default_factory=dict)
    tuned: tuple[str, ...] = ()
    ece_by_trace: tuple[Correlation | None, int] | None = None
    selective: Sequence[Selection] = ()

    @property
    def is_bounded(self) -> bool:
        """Whether the leader's largest possible cost is small enough to recommend the leader by it."""
        return self.most_lost is not None and (not self.relative or self.most_lost <= LARGEST_STATED)


@dataclass(frozen=True)
class FirstScreen:
    """The first screen.

    Attributes:
        answers: one per setting of the data set; empty if nothing was evaluated.
        missing: sentence on why there is no answer.
        warnings: sentences on results that are not reliable.
        class_one: the leader's ECE of class 1 in words, if the sweep measured it; else empty.
        compare: command that compares the leader with the next best loss by every estimator; empty without another
            loss.
    """

    answers: tuple[Answer, ...]
    missing: str
    warnings: tuple[str, ...]
    compare: str = ""
    class_one: str = ""

    @property
    def finalists(self) -> list[Finalist]:
        """Finalists of all settings of the data set."""
        return [one for answer in self.answers for one in answer.finalists]
