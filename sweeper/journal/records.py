"""The journal's records: one dataclass per kind, whose fields are declared once, and its JSON form.

Outside of this file nobody needs to know how a record is written: `to_json` gives the plain values that lie on disk,
key by key in the order in which they always have, and `from_json` reads them back, whichever release wrote them; both
follow the fields' annotations (`sweeper.journal.fields`).

In all of them `attempt` is the driver's number, counted from 1, `configuration` an index, `replicate` a number,
`config_hash` that of a configuration's nested `values`, and `status` the trial's from then on.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import Field, StrictInt

from sweeper.core.ids import trial_name
from sweeper.journal.fields import (
    LARGEST_INTEGER,
    LATEST,
    LEFT_OUT,
    MOST,
    Flag,
    Index,
    Json,
    Number,
    ReportFields,
    Seconds,
    Values,
    Whole,
    Written,
    checked,
)
from trainables.worker.trial_reports import Failure, Reason, TrialReport

#: What a trial can be; `sweeper.journal.state` says when it is which.
STATUSES = ("waiting", "running", "completed", "early_stopped", "failed", "interrupted")


Status: TypeAlias = Annotated[str, Field(pattern=f"^({'|'.join(STATUSES)})$")]
Sequential: TypeAlias = Annotated[StrictInt, Field(ge=0, le=LATEST)]
DecisionKind = Literal["continue", "stop", "complete", "fail", "pause"]

#: The rule of decisions on trials that break a constraint.
BREAKS_CONSTRAINT = "constraint"


@dataclass(frozen=True)
class Decision(Written):
    """What the scheduler did with a trial at a rung, and why; `sweeper.journal.reasons` says it in words.

    Attributes:
        kind: `continue`, `stop` (early), `pause` (until it is promoted or stopped), `complete` (reached the last
            epoch) or `fail`.
        rule: what decided, in a word, e.g. `cutoff`; of a failure its kind.
        rung: the rung in epochs, or `None` when the decision was not made at a rung.
        metric: the trial's value of the objective; `None` where that is not a finite number, whatever was given.
        place: its place among those at the rung, from 1; `None` where the rule ranks none.
        count: trials that had reached the rung, itself included; `None` where nothing was counted.
        quota: how many of the first the rule promotes.
        cutoff: the value it was compared with.
        kept_by: the setting that let it continue although the rule would not have.
        left_out: replicates that failed, which the mean leaves out.
        stratum: the stratum within which it was compared; `None` where all trials compete in one pool.
        constrained: what a complete trial measured of the constraints' metrics, means over replicates; `None` where
            there are no constraints.
    """

    kind: DecisionKind
    rule: Annotated[str, Field(pattern="^[a-z_]{1,40}$")]
    rung: Whole | None
    metric: Number | None = None
    _: KW_ONLY
    place: Annotated[Whole | None, LEFT_OUT] = None
    count: Annotated[Whole | None, LEFT_OUT] = None
    quota: Annotated[Whole | None, LEFT_OUT] = None
    cutoff: Annotated[Number | None, LEFT_OUT] = None
    kept_by: Annotated[str | None, LEFT_OUT] = None
    left_out: Annotated[Whole | None, LEFT_OUT] = None
    stratum: Annotated[str | None, LEFT_OUT] = None
    constrained: Annotated[Mapping[str, Number] | None, LEFT_OUT] = None

    def __post_init__(self) -> None:
        if self.metric is not None and not math.isfinite(self.metric):
            # A decision equals the one that is read back, and NaN equals nothing.
            object.__setattr__(self, "metric", None)


@dataclass(frozen=True)
class Attempt(Written):
    """A driver starts or resumes the sweep.

    Attributes:
        attempt: its number, counted from 1.
        host, pid: its process.
        code: identifies the version of the program that it runs, as `sweeper.core.ids` does; `None` where it
            did not say.
        space: the resolved search space that it drives.
    """

    kind: ClassVar[str] = "attempt"
    attempt: Whole
    host: str
    pid: Annotated[StrictInt, Field(ge=0, le=2**32)]  # no process has a larger number (Linux's limit is 2²²)
    code: str | None = None
    space: Annotated[Values | None, LEFT_OUT] = None


@dataclass(frozen=True)
class Suggested(Written):
    """A searcher chose a configuration.

    Attributes:
        configuration: its index from now on.
        choices: those that lead to it, see `sweeper.core.domains`.
        searcher: what chose it, with its version.
    """

    kind: ClassVar[str] = "suggested"
    configuration: Index
    values: Values
    choices: Mapping[str, Number]
    config_hash: str
    searcher: str


@dataclass(frozen=True)
class Drawn(Written):
    """Configurations of the space, drawn before the first of them begins: from now on they are these.

    They follow from space and seed, but a later release may draw others from the same space; so every reader takes them
    from here.

    Attributes:
        first: the index of the first.
        values: the nested values of the first and of those that follow it.
    """

    kind: ClassVar[str] = "drawn"
    first: Index
    values: Sequence[Values]


@dataclass(frozen=True)
class AddedSeed(Written):
    """One training from scratch to the last epoch, on a seed that its configuration has not had.

    Attributes:
        configuration: its own index, under which it is assigned, reported and retried like a trial.
        trial: the index under whose name tables show it: its configuration's, or, for a configuration that no draw
            gave, that of the first seed added to it.
        replicate: its number among that trial's replicates.
        values: the configuration's nested values.
        question: what it helps to answer: `network`, `loss`, a hyperparameter, or `request` where a user asked for it.
    """

    configuration: Index
    trial: Index
    replicate: Whole
    seed: Annotated[StrictInt, Field(ge=0, le=LARGEST_INTEGER)]
    values: Values
    question: str


@dataclass(frozen=True)
class Added(Written):
    """A round of seeds joins the sweep: all of them at once, for each round follows from the values before it.

    Attributes:
        round: its number, counted from 1; 0 for seeds that a user asked for.
        seeds: what is trained.
    """

    kind: ClassVar[str] = "added"
    round: Whole
    seeds: Sequence[AddedSeed]


@dataclass(frozen=True)
class Started(Written):
    """A process has begun with a configuration, or with one replicate of it where these have separate processes."""

    kind: ClassVar[str] = "started"
    ORDER: ClassVar[Sequence[str]] = ("configuration", "replicate")

    configuration: Index
    attempt: Whole
    replicate: Annotated[Whole | None, LEFT_OUT] = None


@dataclass(frozen=True)
class _ReportBody(Written):
    """A body with a trial's report."""

    report: Annotated[TrialReport, Field(exclude=True)]

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk: the report's among the others."""
        values = self.report.to_dict() | super().to_json()
        return {key: values[key] for key in self.ORDER if key in values}

    @classmethod
    def from_json(cls, fields: Json) -> Self:
        """Read what any release wrote."""
        checked(ReportFields, fields)
        return super().from_json({**fields, "report": TrialReport.from_dict(fields)})

    @property
    def configuration(self) -> int:
        """The index of its configuration."""
        return self.report.configuration

    @property
    def epoch(self) -> int:
        """Completed epochs."""
        return self.report.epoch


@dataclass(frozen=True)
class ReplicateReported(_ReportBody):
    """One replicate's process reports; its configuration is judged when all its replicates have come as far.

    Attributes:
        report: what it measured; it has no objective, and its errors are the failure.
        pauses: whether it waits for the scheduler now.
    """

    kind: ClassVar[str] = "replicate"
    ORDER: ClassVar[Sequence[str]] = (
        *("configuration", "replicate", "attempt", "epoch", "pauses", "failure", "device", "packing"),
        *("wall_seconds", "gpu", "epochs", "evaluations"),
    )
    replicate: Whole
    attempt: Whole
    pauses: Flag


@dataclass(frozen=True)
class Reported(_ReportBody):
    """A configuration reports, and the scheduler has decided on it.

    Attributes:
        report: what was measured, and the failure that ended it.
        decision: the scheduler's; `None` between rungs.
        config_hash: of the configuration's values, in its first report; `None` in later ones.
    """

    kind: ClassVar[str] = "report"
    ORDER: ClassVar[Sequence[str]] = (
        *("configuration", "epoch", "objective", "device", "packing", "wall_seconds", "gpu", "epochs", "evaluations"),
        *("replicate_errors", "failure", "config_hash"),
        *("attempt", "status", "decision"),
    )
    attempt: Whole
    status: Status
    decision: Decision | None
    config_hash: Annotated[str | None, LEFT_OUT] = None


@dataclass(frozen=True)
class Judged(Written):
    """The scheduler decides on a configuration that pauses at a rung: it is promoted, or stopped.

    Attributes:
        epoch: the rung.
    """

    kind: ClassVar[str] = "judged"
    configuration: Index
    attempt: Whole
    epoch: Whole
    status: Status
    decision: Decision


@dataclass(frozen=True)
class Failed(Written):
    """A process died, or a configuration is given up.

    Attributes:
        epoch: epochs that were reported before.
        failure: what it died of.
        final: whether the configuration has failed permanently.
        replicate: of one replicate with processes of its own.
        given_up: whether that replicate is left out from now on.
        share: the share of a GPU for the next try.
    """

    kind: ClassVar[str] = "failed"
    ORDER: ClassVar[Sequence[str]] = (*("configuration", "replicate", "attempt", "epoch", "failure", "given_up"),)

    configuration: Index
    attempt: Whole
    epoch: Whole
    failure: Failure
    final: Flag = True
    replicate: Annotated[Whole | None, LEFT_OUT] = None
    given_up: Flag = False
    share: Annotated[Annotated[Number, Field(ge=0, le=MOST)] | None, LEFT_OUT] = None

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk; `given_up` says nothing of a whole configuration."""
        values = super().to_json()
        return values if self.replicate is not None else {k: v for k, v in values.items() if k != "given_up"}


@dataclass(frozen=True)
class Ended(Written):
    """A driver ends cleanly: `finished`, `stopped` or `interrupted`, and why it was stopped."""

    kind: ClassVar[str] = "ended"
    attempt: Whole
    outcome: str
    reason: Annotated[Reason | None, LEFT_OUT] = None


#: What a record says happened.
Body = Attempt | Suggested | Drawn | Added | Started | ReplicateReported | Reported | Judged | Failed | Ended

_KINDS: dict[str, type[Body]] = {each.kind: each for each in get_args(Body)}


def body_from_json(kind: str, fields: Json) -> Body:
    """Read the body of a record of any release. Raises ValueError for a kind, or a field that is missing or odd."""
    if kind not in _KINDS:
        raise ValueError(f"{kind!r} is no kind of record that this release knows")
    return _KINDS[kind].from_json(fields)


def configuration_of(body: Body) -> int | None:
    """Return the configuration that a record is about; `None` where it is about the whole sweep."""
    return None if isinstance(body, Attempt | Drawn | Added | Ended) else body.configuration


@dataclass(frozen=True)
class _Head:
    """What stands before a record's body."""

    sequence: Sequential
    kind: str
    time: Seconds


@dataclass(frozen=True)
class Record:
    """One thing that happened.

    Attributes:
        sequence: its place in the journal, counted from 0 without gaps.
        time: Unix time in seconds at which it was written.
        body: what happened.
    """

    sequence: int
    time: float
    body: Body

    @property
    def kind(self) -> str:
        """The kind of its body, as files name it: `attempt`, `report` …"""
        return self.body.kind

    @property
    def file_name(self) -> str:
        """The record's file name: sequence, kind and, where it has them, trial and epoch."""
        name = f"{self.sequence:010d}-{self.kind}"
        configuration = configuration_of(self.body)
        if configuration is not None:
            name += f"-{trial_name(configuration)}"
        if isinstance(self.body, ReplicateReported | Reported | Judged | Failed):
            name += f"-e{self.body.epoch:05d}"
        return name + ".json"

    def to_bytes(self) -> bytes:
        """Return the file's content: a line with the SHA-256 of the rest, and the rest, one JSON object."""
        fields = {"sequence": self.sequence, "kind": self.kind, "time": self.time, "body": self.body.to_json()}
        content = json.dumps(fields, separators=(",", ":")).encode()
        return hashlib.sha256(content).hexdigest().encode() + b"\n" + content

    @staticmethod
    def from_bytes(data: bytes) -> Record:
        """Read a record back.

        Raises:
            ValueError: the checksum does not fit the content, the kind is unknown, or a field is missing or odd.
            RecursionError: it is nested too deep to be read.
        """
        checksum, _, content = data.partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != checksum:
            raise ValueError("its checksum does not match its content")
        fields = json.loads(content)
        if not (isinstance(fields, dict) and isinstance(fields.get("body"), dict)):
            raise ValueError("it is not an object with a body")
        head = checked(_Head, fields)
        return Record(head.sequence, head.time, body_from_json(head.kind, fields["body"]))
