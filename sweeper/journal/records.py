"""The journal's records: one dataclass per kind, whose fields are declared once, and its JSON form.

No other module needs to know how a record is written: `to_json` returns the plain values on disk, with their keys in a
fixed order, and `from_json` reads them back. Both follow the fields' annotations, which pydantic checks: a journal with
valid checksums can come from somebody else. An invalid value raises ValueError with one sentence that names the field.

Fields that many records share: `attempt` is the driver's number, from 1; `configuration` is an index; `replicate` is a
number; `config_hash` is the digest of a configuration, its `values`; `status` is the trial's status from then on.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    StrictInt,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import ErrorDetails, from_json

from sweeper.core.ids import trial_name
from trainables.registry import Configuration
from trainables.worker.trial_reports import Failure, Reason, TrialReport

#: A JSON object as it comes from a file.
Json: TypeAlias = Mapping[str, Any]

#: Largest number of configurations, attempts, epochs or replicates (`sweeper.space.spec.MAXIMUM_CONFIGURATIONS`).
MOST = 10**6

#: Largest value of an int64 column.
LARGEST_INTEGER = 2**63 - 1

#: Largest time in seconds: the year 5138. Python's `datetime` ends at 2.5e11.
LATEST = 10**11

#: Levels of nesting in a search space, as `sweeper.space.file` reads it.
DEEPEST = 40

#: Text columns of an evaluation, besides the reasons, which end in `_unavailable`.
TEXT_COLUMNS = ("split", "stage")

_NUMBERS = (int, float, type(None))


def _number(value: object) -> object:
    if not (type(value) is float or (type(value) is int and abs(value) <= LARGEST_INTEGER)):
        raise ValueError("it should be a number")
    return value  # an int stays one, so that a record is written back as it was read


def _require_plain(value: object, levels: int = DEEPEST) -> Any:
    if levels == 0:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    if type(value) is int and abs(value) > LARGEST_INTEGER:
        raise ValueError("it holds a number of more than 64 bits")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_plain(inner, levels - 1)
    return value


Whole: TypeAlias = Annotated[StrictInt, Field(ge=0, le=MOST)]
#: Index of a drawn configuration or of an added seed (`sweeper.core.ids.FIRST_ADDED`).
Index: TypeAlias = Annotated[StrictInt, Field(ge=0, lt=2 * MOST)]
#: A number, which may be infinite or NaN.
Number: TypeAlias = Annotated[float, PlainValidator(_number)]
Seconds: TypeAlias = Annotated[Number, Field(ge=0, le=LATEST)]
Flag: TypeAlias = StrictBool
#: An object of plain values, nested no deeper than a search space can be.
Values: TypeAlias = Annotated[Mapping[str, Any], AfterValidator(_require_plain)]

#: A configuration, written as its plain values.
Drawable: TypeAlias = Annotated[
    Configuration,
    PlainValidator(lambda values: Configuration(checked(Values, values))),
    PlainSerializer(Configuration.plain),
]

#: A field that is not written if it is `None`.
LEFT_OUT = Field(exclude_if=lambda value: value is None)


class Written:
    """A dataclass that is written field by field, by the annotated types; the keys of `ORDER` come first."""

    ORDER: ClassVar[Collection[str]] = ()

    def to_json(self) -> dict[str, object]:
        """Return the values that are written to disk."""
        values = _adapter(type(self)).dump_python(self, by_alias=True, warnings=False)
        return {key: values[key] for key in dict.fromkeys((*self.ORDER, *values)) if key in values}

    @classmethod
    def from_json(cls, fields: Json) -> Self:
        """Build a record from written values. Raises ValueError for a missing or invalid field."""
        read: Self = checked(cls, fields)
        return read


def checked(kind: object, values: object) -> Any:
    """Validate values against the type `kind`. Raises ValueError, which names the first invalid field."""
    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        raise ValueError(_sentence(error.errors(include_url=False)[0])) from error


#: Building an adapter takes milliseconds, and a journal has many thousand records of the same few types.
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter[Any])


def _sentence(detail: ErrorDetails) -> str:
    name = next((key for key in reversed(detail["loc"]) if isinstance(key, str) and key != "[key]"), "")
    if detail["type"] == "missing":
        return f"its field {name!r} is missing"
    rule = detail["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    return rule if rule.startswith("its ") else f"its field {name!r} is {_shown(detail['input'])}: {rule}"


def _shown(value: object) -> str:
    # Python refuses to convert integers of more than 4,300 digits to text.
    shown = repr(value) if not isinstance(value, int) or abs(value) <= LARGEST_INTEGER else "a huge number"
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


def _check_row(table: str, row: object) -> Json:
    """Require numbers in a row's columns; evaluations can also have texts, and epochs flags and lists."""
    if not isinstance(row, dict):
        raise ValueError("it should be an object")
    for key in ("replicate", "epoch"):
        if type(row.get(key)) is not int or not 0 <= row[key] <= MOST:
            raise ValueError(f"its field {key!r} is {_shown(row.get(key))}: it should be between 0 and {MOST}")
    # Nearly all cells are floats. Excluding them first reduces the cost to a tenth of parsing a record.
    others = [(column, cell) for column, cell in row.items() if type(cell) is not float and cell is not None]
    for column, cell in others:
        kind = type(cell)
        if kind is int and -LARGEST_INTEGER <= cell <= LARGEST_INTEGER:
            continue
        if table == "evaluations" and kind is str and (column in TEXT_COLUMNS or column.endswith("_unavailable")):
            continue
        if table == "epochs" and (kind is bool or (kind is list and all(type(count) in _NUMBERS for count in cell))):
            continue  # measurements of a trajectory: flags, counts of a histogram
        raise ValueError(f"its {table}.{column} is {_shown(cell)}, which that column cannot hold")
    return row


_ByReplicate: TypeAlias = dict[Annotated[str, Field(pattern=r"^\d{1,6}$")], Failure]


@dataclass(frozen=True, kw_only=True)
class ReportFields:
    """The fields of `trainables.worker.trial_reports.TrialReport`, with ranges."""

    configuration: Index
    epoch: Whole
    objective: Number | None = None
    failure: Failure | None = None
    device: str
    packing: str | None = None
    wall_seconds: Seconds
    epochs: list[Annotated[Json, PlainValidator(functools.partial(_check_row, "epochs"))]]
    evaluations: list[Annotated[Json, PlainValidator(functools.partial(_check_row, "evaluations"))]]
    replicate_errors: _ByReplicate = field(default_factory=dict)
    gpu: Number | None = None


#: The statuses of a trial, in the order in which tables of counts show them.
STATUSES = ("waiting", "running", "completed", "early_stopped", "failed", "interrupted")


Status: TypeAlias = Annotated[str, Field(pattern=f"^({'|'.join(STATUSES)})$")]
Sequential: TypeAlias = Annotated[StrictInt, Field(ge=0, le=LATEST)]
DecisionKind = Literal["continue", "stop", "complete", "fail", "pause"]


@dataclass(frozen=True)
class Decision(Written):
    """A scheduler's decision on a trial at a rung, with its reason; `sweeper.journal.reasons` renders it.

    Attributes:
        kind: `continue`, `stop` (early), `pause` (until it is promoted or stopped), `complete` (reached the last
            epoch) or `fail`.
        rule: name of the deciding rule, e.g. `cutoff`; for a failure its kind.
        rung: the rung in epochs; `None` if the decision was not made at a rung.
        metric: the trial's objective; `None` if it is not finite.
        place: the trial's rank among the trials at the rung, from 1; `None` if the rule does not rank.
        count: number of trials that had reached the rung, including this one; `None` if they were not counted.
        quota: number of trials that the rule promotes.
        cutoff: value that the objective was compared with.
        kept_by: setting that let the trial continue against the rule.
        left_out: number of failed replicates, which the mean leaves out.
        stratum: stratum within which it was compared; `None` if all trials compete in one pool.
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

    def __post_init__(self) -> None:
        if self.metric is not None and not math.isfinite(self.metric):
            # NaN differs from itself, and a decision must equal the one that is read back.
            object.__setattr__(self, "metric", None)


@dataclass(frozen=True)
class Attempt(Written):
    """A driver starts or resumes the sweep.

    Attributes:
        attempt: number of the driver, from 1.
        host, pid: process of the driver.
        code: version of the program, see `sweeper.core.ids.code_version`; `None` if unknown.
        space: the resolved search space.
        configurations: number of configurations of the sweep, which `resume --set samples=…` raises.
    """

    kind: ClassVar[str] = "attempt"
    attempt: Whole
    host: str
    pid: Annotated[StrictInt, Field(ge=0, le=2**32)]  # no process has a larger number (Linux's limit is 2²²)
    code: str | None = None
    space: Annotated[Values | None, LEFT_OUT] = None
    configurations: Annotated[Whole | None, LEFT_OUT] = None


@dataclass(frozen=True)
class Suggested(Written):
    """A searcher chose a configuration.

    Attributes:
        configuration: index that the configuration has from now on.
        choices: the choices that lead to it, see `sweeper.core.domains`.
        searcher: name and version of the searcher.
    """

    kind: ClassVar[str] = "suggested"
    configuration: Index
    values: Drawable
    choices: Mapping[str, Number]
    config_hash: str
    searcher: str


@dataclass(frozen=True)
class Drawn(Written):
    """Configurations of the space, drawn before the first of them starts.

    They follow from space and seed, but a later release may draw other configurations from the same space. So every
    reader takes them from this record.

    Attributes:
        first: index of the first one.
        values: the first and the following configurations.
    """

    kind: ClassVar[str] = "drawn"
    first: Index
    values: Sequence[Drawable]


@dataclass(frozen=True)
class AddedSeed(Written):
    """One training from scratch to the last epoch, on a new seed of a configuration.

    Attributes:
        configuration: index of the added seed, under which it is assigned, reported and retried like a trial.
        trial: index of the trial under which tables show it: the configuration's trial or, if the configuration was not
            drawn, the first seed added to it.
        replicate: number of the added seed among that trial's replicates.
        values: the configuration.
        question: question that the seed helps to answer: `network`, `loss`, the path of a line's hyperparameter (with
            the network if each has a line, `loss.gamma on mlp`), or `request` for a user's request.
    """

    configuration: Index
    trial: Index
    replicate: Whole
    seed: Annotated[StrictInt, Field(ge=0, le=LARGEST_INTEGER)]
    values: Drawable
    question: str


@dataclass(frozen=True)
class Added(Written):
    """A round of seeds is added to the sweep, all at once, because each round depends on the values before it.

    Attributes:
        round: number of the round, from 1; 0 for seeds that a user requested.
        seeds: the trainings.
    """

    kind: ClassVar[str] = "added"
    round: Whole
    seeds: Sequence[AddedSeed]


@dataclass(frozen=True)
class Started(Written):
    """A process has started a configuration, or one of its replicates if these have separate processes."""

    kind: ClassVar[str] = "started"
    ORDER: ClassVar[Sequence[str]] = ("configuration", "replicate")

    configuration: Index
    attempt: Whole
    replicate: Annotated[Whole | None, LEFT_OUT] = None


@dataclass(frozen=True)
class _ReportBody(Written):
    """A body that contains a trial's report."""

    report: Annotated[TrialReport, Field(exclude=True)]

    def to_json(self) -> dict[str, object]:
        """Return the values that are written to disk; the report's fields are on the same level as the others."""
        # Flat, not nested: SQL and people look for `epoch` and `objective` at the top level of a record.
        values = self.report.to_dict() | super().to_json()
        return {key: values[key] for key in self.ORDER if key in values}

    @classmethod
    def from_json(cls, fields: Json) -> Self:
        """Build a body from written values."""
        checked(ReportFields, fields)
        return super().from_json({**fields, "report": TrialReport.from_dict(fields)})

    @property
    def configuration(self) -> int:
        """Index of the configuration."""
        return self.report.configuration

    @property
    def epoch(self) -> int:
        """Number of completed epochs."""
        return self.report.epoch


@dataclass(frozen=True)
class ReplicateReported(_ReportBody):
    """A replicate's process reports; its configuration is judged once all replicates have reached the same epoch.

    Attributes:
        report: measurements of the replicate, without an objective; the field `failure` is the replicate's error.
        pauses: whether the replicate now waits for the scheduler.
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
class Arrived(_ReportBody):
    """A configuration reports before its turn in the sweep's order; `Reported` follows when it is judged."""

    kind: ClassVar[str] = "arrived"
    ORDER: ClassVar[Sequence[str]] = (
        *("configuration", "attempt", "epoch", "objective", "device", "packing", "wall_seconds", "gpu"),
        *("epochs", "evaluations", "replicate_errors", "failure"),
    )
    attempt: Whole


@dataclass(frozen=True)
class Reported(_ReportBody):
    """A configuration reports, and the scheduler has decided on it.

    Attributes:
        report: measurements of the configuration, and the failure if one ended it.
        decision: the scheduler's decision; `None` between rungs.
        config_hash: hash of the configuration's values in its first report; `None` in later ones.
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
    """The scheduler promotes or stops a configuration that pauses at a rung.

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
    """A process has died, or a configuration is given up.

    Attributes:
        epoch: number of epochs reported before.
        failure: why the process died.
        final: whether the configuration has failed permanently.
        replicate: number of a replicate with separate processes.
        given_up: whether that replicate is left out from now on.
        share: GPU fraction for the next try.
        waits: whether the configuration has no try left, and fails permanently when its turn comes.
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
    waits: Annotated[Flag, Field(exclude_if=lambda value: not value)] = False

    def to_json(self) -> dict[str, object]:
        """Return the values that are written to disk; `given_up` is written for replicates only."""
        values = super().to_json()
        return values if self.replicate is not None else {k: v for k, v in values.items() if k != "given_up"}


@dataclass(frozen=True)
class Ended(Written):
    """A driver ends cleanly: `finished`, `stopped` or `interrupted`, with the reason of a stop."""

    kind: ClassVar[str] = "ended"
    attempt: Whole
    outcome: str
    reason: Annotated[Reason | None, LEFT_OUT] = None


#: The content of a record, by kind.
Body = Attempt | Suggested | Drawn | Added | Started | ReplicateReported | Arrived | Reported | Judged | Failed | Ended

_KINDS: dict[str, type[Body]] = {body.kind: body for body in get_args(Body)}


def body_from_json(kind: str, fields: Json) -> Body:
    """Build the body of a record. Raises ValueError for an unknown kind, or a missing or invalid field."""
    if kind not in _KINDS:
        raise ValueError(f"this release does not know the record kind {kind!r}")
    return _KINDS[kind].from_json(fields)


def configuration_of(body: Body) -> int | None:
    """Return the configuration of a record; `None` if it concerns the whole sweep."""
    return None if isinstance(body, Attempt | Drawn | Added | Ended) else body.configuration


def _parsed(content: bytes) -> Any:
    """Parse JSON. Raises ValueError, or RecursionError if it is nested too deeply."""
    try:
        return from_json(content)  # takes a third of the time of `json`, which is half of reading a journal
    except ValueError:
        return json.loads(content)  # an error's message can have half of a surrogate pair, which `from_json` refuses


@dataclass(frozen=True)
class _Head:
    """The fields before a record's body."""

    sequence: Sequential
    kind: str
    time: Seconds


@dataclass(frozen=True)
class Record:
    """A record of the journal.

    Attributes:
        sequence: number of the record in the journal, from 0 without gaps.
        time: Unix time in seconds at which the record was written.
        body: content of the record.
    """

    sequence: int
    time: float
    body: Body

    @property
    def kind(self) -> str:
        """Kind of its body, as in file names: `attempt`, `report` …"""
        return self.body.kind

    @property
    def file_name(self) -> str:
        """Name of the record's file: sequence, kind and, if it has them, trial and epoch."""
        # Fixed widths, so that sorting by name is sorting by number.
        name = f"{self.sequence:010d}-{self.kind}"
        configuration = configuration_of(self.body)
        if configuration is not None:
            name += f"-{trial_name(configuration)}"
        if isinstance(self.body, ReplicateReported | Arrived | Reported | Judged | Failed):
            name += f"-e{self.body.epoch:05d}"
        return name + ".json"

    def to_bytes(self) -> bytes:
        """Return the file's content: a line with the SHA-256 of the rest, then one JSON object on one line."""
        fields = {"sequence": self.sequence, "kind": self.kind, "time": self.time, "body": self.body.to_json()}
        content = json.dumps(fields, separators=(",", ":")).encode()
        return hashlib.sha256(content).hexdigest().encode() + b"\n" + content

    @staticmethod
    def from_bytes(data: bytes) -> Record:
        """Parse a record.

        Raises:
            ValueError: the checksum does not match, the kind is unknown, or a field is missing or invalid.
            RecursionError: its JSON is nested too deeply.
        """
        # The checksum comes first: nothing of a damaged record is parsed.
        checksum, _, content = data.partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != checksum:
            raise ValueError("its checksum does not match its content")
        fields = _parsed(content)
        if not (isinstance(fields, dict) and isinstance(fields.get("body"), dict)):
            raise ValueError("it is not an object with a body")
        head = checked(_Head, fields)
        return Record(head.sequence, head.time, body_from_json(head.kind, fields["body"]))
