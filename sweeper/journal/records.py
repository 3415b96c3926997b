"""The journal's records: one dataclass per kind, and its JSON form.

Outside of this file nobody needs to know how a record is written: `to_json` gives the plain values that lie on disk,
key by key in the order in which they always have, and `from_json` reads them back, whichever release wrote them. What
older journals lack gets its value there and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from sweeper.core.ids import trial_name
from sweeper.journal.decision import Decision
from sweeper.journal.fields import (
    LATEST,
    MOST,
    Json,
    boolean,
    check_report,
    mapping,
    number,
    numbers,
    objects,
    said,
    text,
    trial,
    whole,
)
from trainables.worker.trial_reports import TrialReport, named_share, numbered_texts

STATUSES = ("waiting", "running", "completed", "early_stopped", "failed", "interrupted")
"""What a trial can be; `sweeper.journal.state` says when it is which."""

LARGEST_PROCESS = 2**32
"""No process has a larger number (Linux's limit is 2²²)."""


class _PlainBody:
    """A body that is written as its fields."""

    def to_json(self) -> dict[str, object]:
        """Return the values written to disk."""
        return dict(vars(self))


@dataclass(frozen=True)
class Attempt(_PlainBody):
    """A driver starts or resumes the sweep.

    Attributes:
        attempt: its number, counted from 1.
        host, pid: its process.
        code: identifies the version of the program that it runs, as `sweeper.core.ids` does; `None` where it
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

    @staticmethod
    def from_json(fields: Json) -> Attempt:
        """Read what any release wrote."""
        return Attempt(
            whole(fields, "attempt"),
            text(fields, "host"),
            whole(fields, "pid", most=LARGEST_PROCESS),
            text(fields, "code") if said(fields, "code") else None,
            mapping(fields, "space") if said(fields, "space") else None,
        )


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
        observations = [
            Observation(trial(each, "trial"), numbers(each, "choices"), number(each, "value"))
            for each in objects(fields, "observations")
        ]
        return Learned(whole(fields, "attempt"), text(fields, "sweep"), observations, whole(fields, "outside"))


@dataclass(frozen=True)
class Suggested(_PlainBody):
    """A searcher chose a configuration.

    Attributes:
        configuration: its index from now on.
        values: its nested values.
        choices: those that lead to it, see `sweeper.core.domains`.
        config_hash: of the values.
        searcher: what chose it, with its version.
    """

    kind: ClassVar[str] = "suggested"

    configuration: int
    values: dict[str, Any]
    choices: Mapping[str, float]
    config_hash: str
    searcher: str

    @staticmethod
    def from_json(fields: Json) -> Suggested:
        """Read what any release wrote."""
        return Suggested(
            whole(fields, "configuration", most=MOST - 1),
            dict(mapping(fields, "values")),
            numbers(fields, "choices"),
            text(fields, "config_hash"),
            text(fields, "searcher"),
        )


@dataclass(frozen=True)
class Drawn(_PlainBody):
    """Configurations of the space, drawn before the first of them begins: from now on they are these.

    They follow from space and seed, but a later release may draw others from the same space; so every reader takes them
    from here. The journals of older releases have none.

    Attributes:
        first: the index of the first.
        values: the nested values of the first and of those that follow it.
    """

    kind: ClassVar[str] = "drawn"

    first: int
    values: Sequence[Mapping[str, Any]]

    @staticmethod
    def from_json(fields: Json) -> Drawn:
        """Read what any release wrote."""
        values = [mapping({"values": each}, "values") for each in objects(fields, "values")]
        return Drawn(whole(fields, "first", most=MOST - 1), values)


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

    @staticmethod
    def from_json(fields: Json) -> Started:
        """Read what any release wrote."""
        index = whole(fields, "configuration", most=MOST - 1)
        return Started(index, whole(fields, "attempt"), _number_of(fields))


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
        check_report(fields)
        report = TrialReport.from_dict(fields)
        return ReplicateReported(
            report, whole(fields, "replicate"), whole(fields, "attempt"), boolean(fields, "pauses")
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
        check_report(fields)
        reused = mapping(fields, "reused") if said(fields, "reused") else None
        return Reported(
            TrialReport.from_dict(fields),
            whole(fields, "attempt"),
            text(fields, "status", STATUSES),
            Decision.from_dict(mapping(fields, "decision")) if said(fields, "decision") else None,
            Reused(text(reused, "sweep"), whole(reused, "record", most=LATEST)) if reused is not None else None,
            text(fields, "config_hash") if said(fields, "config_hash") else None,
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
        return Judged(
            whole(fields, "configuration", most=MOST - 1),
            whole(fields, "attempt"),
            whole(fields, "epoch"),
            text(fields, "status", STATUSES),
            Decision.from_dict(mapping(fields, "decision")),
        )


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
        return Failed(
            whole(fields, "configuration", most=MOST - 1),
            whole(fields, "attempt"),
            whole(fields, "epoch"),
            text(fields, "kind"),
            text(fields, "reason"),
            boolean(fields, "counts", True),
            boolean(fields, "final", True),
            _number_of(fields),
            boolean(fields, "given_up", False),
            number(fields, "share", 0, MOST) if said(fields, "share") else None,
        )


@dataclass(frozen=True)
class Ended(_PlainBody):
    """A driver ends cleanly: `finished`, `stopped` or `interrupted`, and why."""

    kind: ClassVar[str] = "ended"

    attempt: int
    outcome: str
    reason: str

    @staticmethod
    def from_json(fields: Json) -> Ended:
        """Read what any release wrote."""
        return Ended(whole(fields, "attempt"), text(fields, "outcome"), text(fields, "reason"))


Body: TypeAlias = (
    Attempt | Learned | Suggested | Drawn | Started | ReplicateReported | Reported | Judged | Failed | Ended
)
"""What a record says happened."""

_KINDS: dict[str, type[Body]] = {
    each.kind: each
    for each in (Attempt, Learned, Suggested, Drawn, Started, ReplicateReported, Reported, Judged, Failed, Ended)
}


def body_from_json(kind: str, fields: Json) -> Body:
    """Read the body of a record of any release. Raises ValueError for a kind, or a field that is missing or odd."""
    if kind not in _KINDS:
        raise ValueError(f"{kind!r} is no kind of record that this release knows")
    return _KINDS[kind].from_json(fields)


def configuration_of(body: Body) -> int | None:
    """Return the configuration that a record is about; `None` where it is about the whole sweep."""
    return None if isinstance(body, Attempt | Learned | Drawn | Ended) else body.configuration


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
        sequence, time = whole(fields, "sequence", most=LATEST), number(fields, "time", 0, LATEST)
        return Record(sequence, time, body_from_json(text(fields, "kind"), fields["body"]))


def _number_of(fields: Json) -> int | None:
    return whole(fields, "replicate") if said(fields, "replicate") else None


def _replicate(number: int | None) -> dict[str, int]:
    return {"replicate": number} if number is not None else {}
