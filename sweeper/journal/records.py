"""The journal's records: one dataclass per kind, and its JSON form.

Outside of this file nobody needs to know how a record is written: `to_json` gives the plain values that lie on disk,
key by key in the order in which they always have, and `from_json` reads them back, whichever release wrote them. What
older journals lack gets its value there and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from sweeper.core.ids import trial_name
from sweeper.journal.decision import Decision
from trainables.worker.trial_reports import TrialReport, named_share, numbered_texts

Json: TypeAlias = Mapping[str, Any]
"""A JSON object as it comes from a file."""

_Body = TypeVar("_Body")


class _PlainBody:
    """A body that is written as its fields."""

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, fields: Json) -> Self:
        """Read what any release wrote: a field that older ones lack has its default."""
        return _read(cls, fields)


@dataclass(frozen=True)
class Attempt(_PlainBody):
    """A driver starts or resumes the sweep.

    Attributes:
        attempt: its number, counted from 1.
        host, pid: its process.
        code: identifies the version of the program that it runs, as `sweeper.core.code_version` does; `None` where it
            did not say.
        space: the resolved search space that it drives; `None` in journals of older releases.
    """

    kind: ClassVar[str] = "attempt"

    attempt: int
    host: str
    pid: int
    code: str | None = None
    space: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk."""
        return {key: value for key, value in vars(self).items() if key != "space" or value is not None}


@dataclass(frozen=True)
class Observation:
    """The outcome of an earlier sweep's trial: its name there, the choices that lead to it, its objective."""

    trial: str
    choices: Mapping[str, float]
    value: float


@dataclass(frozen=True)
class Learned:
    """The searcher has observed an earlier sweep's trials.

    Attributes:
        attempt: the driver's.
        sweep: the earlier one, as the search space names it.
        observations: its finished trials that lie in the space.
        outside: how many finished trials lie outside of it.
    """

    kind: ClassVar[str] = "learned"

    attempt: int
    sweep: str
    observations: Sequence[Observation]
    outside: int

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk."""
        return {**vars(self), "observations": [dict(vars(each)) for each in self.observations]}

    @staticmethod
    def from_json(fields: Json) -> Learned:
        """Read what any release wrote."""
        observations = [Observation(each["trial"], each["choices"], each["value"]) for each in fields["observations"]]
        return Learned(fields["attempt"], fields["sweep"], observations, fields["outside"])


@dataclass(frozen=True)
class Suggested(_PlainBody):
    """A searcher chose a configuration.

    Attributes:
        configuration: its index from now on.
        values: its nested values.
        choices: those that lead to it, see `sweeper.space.domains.choices`.
        config_hash: of the values.
        searcher: what chose it, with its version.
    """

    kind: ClassVar[str] = "suggested"

    configuration: int
    values: dict[str, Any]
    choices: Mapping[str, float]
    config_hash: str
    searcher: str


@dataclass(frozen=True)
class Started(_PlainBody):
    """A process has begun with a configuration, or with one replicate of it where these have separate processes."""

    kind: ClassVar[str] = "started"

    configuration: int
    attempt: int
    replicate: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk."""
        return {"configuration": self.configuration, **_replicate(self.replicate), "attempt": self.attempt}


class _ReportBody:
    """A body with a trial's report."""

    report: TrialReport

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
        replicate: its number.
        attempt: the driver's.
        pauses: whether it waits for the scheduler now.
    """

    kind: ClassVar[str] = "replicate"

    report: TrialReport
    replicate: int
    attempt: int
    pauses: bool

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk."""
        report = self.report
        return {
            "configuration": report.configuration,
            "replicate": self.replicate,
            "attempt": self.attempt,
            "epoch": report.epoch,
            "pauses": self.pauses,
            "failure": report.failure,
            "failure_kind": report.failure_kind,
            "device": report.device,
            "packing": report.packing,
            "wall_seconds": report.wall_seconds,
            **named_share(report.gpu),
            "epochs": list(report.epochs),
            "evaluations": list(report.evaluations),
        }

    @staticmethod
    def from_json(fields: Json) -> ReplicateReported:
        """Read what any release wrote."""
        return ReplicateReported(
            TrialReport.from_dict(fields), fields["replicate"], fields["attempt"], fields["pauses"]
        )


@dataclass(frozen=True)
class Reused:
    """Where a report was reused from: the sweep's name, and the sequence of its record there."""

    sweep: str
    record: int


@dataclass(frozen=True)
class Reported(_ReportBody):
    """A configuration reports, and the scheduler has decided on it.

    Attributes:
        report: what was measured. Of a failure it has the kind; the sentence is the decision's reason.
        attempt: the driver's.
        status: the trial's from now on.
        decision: the scheduler's; `None` between rungs.
        reused: where it was reused from; `None` where this sweep trained it.
        config_hash: of the configuration's values, in its first report; `None` in later ones and in older journals.
    """

    kind: ClassVar[str] = "report"

    report: TrialReport
    attempt: int
    status: str
    decision: Decision | None
    reused: Reused | None = None
    config_hash: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk."""
        report = self.report
        return {
            "configuration": report.configuration,
            "epoch": report.epoch,
            "objective": report.objective,
            "device": report.device,
            "packing": report.packing,
            "wall_seconds": report.wall_seconds,
            **named_share(report.gpu),
            "epochs": list(report.epochs),
            "evaluations": list(report.evaluations),
            **numbered_texts("replicate_errors", report.replicate_errors),
            **numbered_texts("replicate_kinds", report.replicate_kinds),
            **({"reused": dict(vars(self.reused))} if self.reused is not None else {}),
            **({"failure_kind": report.failure_kind} if report.failure_kind is not None else {}),
            **({"config_hash": self.config_hash} if self.config_hash is not None else {}),
            "attempt": self.attempt,
            "status": self.status,
            "decision": self.decision.to_dict() if self.decision is not None else None,
        }

    @staticmethod
    def from_json(fields: Json) -> Reported:
        """Read what any release wrote."""
        decision, reused = fields["decision"], fields.get("reused")
        return Reported(
            TrialReport.from_dict(fields),
            fields["attempt"],
            fields["status"],
            Decision.from_dict(decision) if decision is not None else None,
            Reused(reused["sweep"], reused["record"]) if reused is not None else None,
            fields.get("config_hash"),
        )


@dataclass(frozen=True)
class Judged:
    """The scheduler decides on a configuration that pauses at a rung: it is promoted, or stopped.

    Attributes:
        configuration: its index.
        attempt: the driver's.
        epoch: the rung.
        status: the trial's from now on.
        decision: the scheduler's.
    """

    kind: ClassVar[str] = "judged"

    configuration: int
    attempt: int
    epoch: int
    status: str
    decision: Decision

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk."""
        return {**vars(self), "decision": self.decision.to_dict()}

    @staticmethod
    def from_json(fields: Json) -> Judged:
        """Read what any release wrote."""
        decision = Decision.from_dict(fields["decision"])
        return Judged(fields["configuration"], fields["attempt"], fields["epoch"], fields["status"], decision)


@dataclass(frozen=True)
class Failed:
    """A process died, or a configuration is given up.

    Attributes:
        configuration: the index of its configuration.
        attempt: the driver's.
        epoch: epochs that were reported before.
        failure: what it died of, a word such as `crash`.
        reason: the same as a sentence.
        counts: whether it counts against the trial's retries.
        final: whether the configuration has failed permanently.
        replicate: of one replicate with processes of its own.
        given_up: whether that replicate is left out from now on.
        share: the share of a GPU for the next try.
    """

    kind: ClassVar[str] = "failed"

    configuration: int
    attempt: int
    epoch: int
    failure: str
    reason: str
    counts: bool
    final: bool
    replicate: int | None = None
    given_up: bool = False
    share: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk."""
        return {
            "configuration": self.configuration,
            **_replicate(self.replicate),
            "attempt": self.attempt,
            "epoch": self.epoch,
            "kind": self.failure,
            "reason": self.reason,
            "counts": self.counts,
            **({"given_up": self.given_up} if self.replicate is not None else {}),
            "final": self.final,
            **({"share": self.share} if self.share is not None else {}),
        }

    @staticmethod
    def from_json(fields: Json) -> Failed:
        """Read what any release wrote: before kinds of failures were distinguished, each counted and was final."""
        counts, final = bool(fields.get("counts", True)), fields.get("final", True)
        return _read(Failed, {**fields, "failure": fields["kind"], "counts": counts, "final": final})


@dataclass(frozen=True)
class Ended(_PlainBody):
    """A driver ends cleanly: `finished`, `stopped` or `interrupted`, and why."""

    kind: ClassVar[str] = "ended"

    attempt: int
    outcome: str
    reason: str


Body: TypeAlias = Attempt | Learned | Suggested | Started | ReplicateReported | Reported | Judged | Failed | Ended
"""What a record says happened."""

_KINDS: dict[str, type[Body]] = {
    each.kind: each
    for each in (Attempt, Learned, Suggested, Started, ReplicateReported, Reported, Judged, Failed, Ended)
}


def body_from_json(kind: str, fields: Json) -> Body:
    """Read the body of a record of any release. Raises ValueError for a kind, KeyError for a missing field."""
    if kind not in _KINDS:
        raise ValueError(f"{kind!r} is no kind of record that this release knows")
    return _KINDS[kind].from_json(fields)


def configuration_of(body: Body) -> int | None:
    """Return the configuration that a record is about; `None` where it is about the whole sweep."""
    return None if isinstance(body, Attempt | Learned | Ended) else body.configuration


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
            ValueError: the checksum does not fit the content, or the kind is unknown.
            KeyError: a field is missing.
        """
        checksum, _, content = data.partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != checksum:
            raise ValueError("its checksum does not match its content")
        fields = json.loads(content)
        return Record(fields["sequence"], fields["time"], body_from_json(fields["kind"], fields["body"]))


def _read(cls: type[_Body], values: Json) -> _Body:
    """Build a dataclass from those of `values` that are its fields. Raises KeyError for a missing field."""
    wanted = {field.name: field.default is MISSING for field in dataclass_fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: values[name] for name, required in wanted.items() if required or name in values})


def _replicate(number: int | None) -> dict[str, int]:
    return {"replicate": number} if number is not None else {}
