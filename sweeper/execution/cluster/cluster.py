"""A remote Ray cluster through its Jobs API; each job is the driver of one sweep.

A job's metadata has the sweep's name, its submitter and the location of its results; everything else is in the results.

A cluster's authentication token is created once, stored in a file that only its owner can read, and never printed. It
is sent only in a header of each request. Like Ray, this module looks for it in `RAY_AUTH_TOKEN`, then in the file that
`RAY_AUTH_TOKEN_PATH` names, then in `~/.ray/auth_token`. Every machine of a cluster must find the same token.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import shlex
import socket
import string
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import requests
from ray.dashboard.modules.dashboard_sdk import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient
from rich.table import Table

from sweeper.core.display import redact
from sweeper.core.errors import SweeperError
from sweeper.core.labels import PROGRESS, duration

#: Seconds to connect to the dashboard; Ray's own client would wait for minutes.
CONNECT_SECONDS = 10.0

#: Seconds that a driver has, after a request to stop, to finish trials, tables, report and tracker; then Ray kills it.
STOP_SECONDS = 300

#: Seconds between two requests for a followed log.
FOLLOW_SECONDS = 1.0

#: Seconds to wait for a new head to accept jobs; it accepts them some seconds after its dashboard answers.
AGENT_SECONDS = 18.0

ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)

WORDS = {
    JobStatus.PENDING: "pending",
    JobStatus.RUNNING: "running",
    JobStatus.STOPPED: "stopped",
    JobStatus.SUCCEEDED: "finished",
}
#: Exit status of the driver → state: 1 if trials failed or it was stopped, 2 for bad input. Any other: it died.
FAILED_WORDS = {1: "incomplete", 2: "refused"}


CHECK_ADDRESS = (
    "check the address: it is the head's dashboard, usually http://HEAD:8265, perhaps through "
    "`kubectl port-forward` or `ray dashboard`"
)


@dataclass(frozen=True)
class RemoteSweep:
    """A job of a cluster that drives a sweep.

    Attributes:
        job: Ray's job id.
        name: Name of the sweep.
        submitter: User and host that submitted it.
        output: Location of its results, as given to `--output`.
        tracking_uri: Address of MLflow, as given; `None` if the cluster's own environment names it.
        no_mlflow: Whether it was submitted without MLflow.
        state: `pending`, `running`, `finished`, `stopped`, `incomplete`, `refused` or `died`.
        started: Unix time in seconds; `None` while it is pending.
        exit_code: Exit status of the driver; `None` before its end, or if it was killed.
        message: Ray's message, if the driver ended unexpectedly.
    """

    job: str
    name: str
    submitter: str
    output: str
    tracking_uri: str | None
    no_mlflow: bool
    state: str
    started: float | None
    exit_code: int | None
    message: str

    @property
    def ended(self) -> bool:
        """Whether the driver has ended."""
        return self.state not in ("pending", "running")


class Cluster:
    """Client of the Jobs API at an address such as `http://head:8265`."""

    def __init__(self, address: str) -> None:
        """Connect. Raises SweeperError if there is no cluster at the address, or the token is missing or wrong."""
        self.address = _checked_address(address)
        # Ray's SDK logs every upload and request at INFO, which would interrupt the command's own output.
        for logger in ("modules.dashboard_sdk", "modules.job.sdk"):
            logging.getLogger(f"ray.dashboard.{logger}").setLevel(logging.WARNING)
        logging.getLogger("ray._private.runtime_env.packaging").setLevel(logging.WARNING)
        token = find_token()
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        with self._errors():
            self._client = JobSubmissionClient(self.address, create_cluster_if_needed=False, headers=headers)

    def submit(
        self, name: str, command: Sequence[str], metadata: Mapping[str, str], folder: Path, modules: Sequence[Path]
    ) -> str:
        """Submit a sweep's driver and return its job.

        Args:
            name: Name of the sweep.
            command: Command line of the driver, run on the head in a copy of `folder`.
            metadata: Metadata for `sweeps`; at least `sweep`, `submitter` and `output`.
            folder: Folder of files to send along.
            modules: Packages to send along; the cluster's own are used if empty.
        """
        environment: dict[str, object] = {
            "working_dir": str(folder),
            "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), "SWEEPER_SUBMITTER": metadata["submitter"]},
        }
        if modules:
            environment["py_modules"] = [str(module) for module in modules]
        # Ray never reuses a job's id, so each driver of a sweep gets a number.
        taken = {sweep.job for sweep in self.sweeps()}
        job = next(job for n in itertools.count(1) if (job := f"{name}.{n}") not in taken)
        with self._errors():
            return self._submit(job, shlex.join(command), environment, dict(metadata))

    def sweeps(self) -> list[RemoteSweep]:
        """Return the cluster's drivers, newest first; a resumed sweep appears once per driver."""
        with self._errors():
            jobs = [job for job in self._client.list_jobs() if "sweep" in (job.metadata or {})]
        return [_remote_sweep(job) for job in sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)]

    def sweep(self, name: str) -> RemoteSweep:
        """Return the newest driver of a sweep. Raises SweeperError if there is none."""
        known = self.sweeps()
        for sweep in known:
            if name in (sweep.name, sweep.job):
                return sweep
        names = ", ".join(sorted({sweep.name for sweep in known})[:8])
        raise SweeperError(
            f"the cluster at {self.address} has no sweep {name!r}", f"it has: {names}" if names else "it has none"
        )

    def logs(self, job: str) -> str:
        """Return a driver's log so far."""
        with self._errors():
            return redact(self._client.get_job_logs(job))

    def follow(self, job: str, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
        """Yield a driver's log as it grows, until the driver ends."""
        seen = 0
        while True:
            # Read the status before the log, so that the last lines are not missed.
            with self._errors():
                ended = self._client.get_job_status(job) in ENDED
            text = self.logs(job)
            if len(text) > seen:
                yield text[seen:]
                seen = len(text)
            if ended:
                return
            sleep(FOLLOW_SECONDS)

    def stop(self, job: str) -> None:
        """Ask a driver to end cleanly; Ray kills it after `STOP_SECONDS`."""
        with self._errors():
            self._client.stop_job(job)

    def _submit(self, job: str, entrypoint: str, environment: dict[str, object], metadata: dict[str, str]) -> str:
        began = time.monotonic()
        while True:
            try:
                options = {"submission_id": job, "runtime_env": environment, "metadata": metadata}
                return str(self._client.submit_job(entrypoint=entrypoint, **options))
            except RuntimeError as error:
                # A new head accepts jobs only some seconds after its dashboard answers.
                if "No available agent" not in str(error) or time.monotonic() - began > AGENT_SECONDS:
                    raise
                time.sleep(1.0)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except AuthenticationError as error:
            if find_token() is None:
                raise SweeperError(
                    f"the cluster at {self.address} requires a token, and this environment has none",
                    "set RAY_AUTH_TOKEN_PATH to a file with the token; ask the cluster's administrator for it",
                ) from error
            raise SweeperError(
                f"the cluster at {self.address} rejects this environment's token",
                "it belongs to another cluster or was replaced; put the right token into the file RAY_AUTH_TOKEN_PATH",
            ) from error
        except (ConnectionError, requests.RequestException) as error:
            raise SweeperError(f"no Ray cluster responds at {self.address}", CHECK_ADDRESS) from error
        except (RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())[:300]
            raise SweeperError(
                f"the Ray cluster at {self.address} refused a request: {redact(text)}",
                "check that the address is a Ray dashboard of the same Ray version",
            ) from error


def _checked_address(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise SweeperError(
            f"{redact(address)!r} is not the address of a Ray dashboard",
            "use e.g. http://head:8265; put a token into the file RAY_AUTH_TOKEN_PATH",
        )
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise SweeperError(f"nothing responds at {address}: {said}", CHECK_ADDRESS) from error
    return address.rstrip("/")


def _remote_sweep(job: JobDetails) -> RemoteSweep:
    metadata = job.metadata
    state = WORDS.get(job.status) or FAILED_WORDS.get(job.driver_exit_code or 0, "died")
    return RemoteSweep(
        job.submission_id,
        metadata["sweep"],
        metadata.get("submitter", "?"),
        metadata.get("output", "?"),
        metadata.get("tracking_uri") or None,
        bool(metadata.get("no_mlflow")),
        state,
        job.start_time / 1000 if job.start_time else None,
        job.driver_exit_code,
        redact(job.message or ""),
    )


def sweeps_table(sweeps: Iterable[RemoteSweep], logs: Callable[[str], str]) -> Table:
    """Return a table with one row per sweep: state, submitter, start, progress, location of results.

    Args:
        sweeps: Drivers, newest first; older drivers of the same sweep are omitted.
        logs: Function from a job to its driver's log.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("sweep", "state", "submitter", "began", "progress", "results"):
        table.add_column(heading, no_wrap=heading not in ("sweep", "progress"), overflow="fold")
    seen = set()
    for sweep in sweeps:
        if sweep.name not in seen:
            seen.add(sweep.name)
            began = f"{duration(max(0.0, time.time() - sweep.started))} ago" if sweep.started is not None else "–"
            words = sweep.name, sweep.state, sweep.submitter, began, progress_of(sweep, logs)
            table.add_row(*words, f"{sweep.output}/{sweep.name}")
    return table


def progress_of(sweep: RemoteSweep, logs: Callable[[str], str]) -> str:
    """Return a sweep's progress in one line: the driver's last progress line, else Ray's message."""
    return last_progress(logs(sweep.job)) or first_sentence(sweep.message) or "–"


def last_progress(text: str) -> str:
    """Return the last progress line of a driver's log, or an empty text."""
    lines = (line.removeprefix(PROGRESS) for line in reversed(text.splitlines()) if line.startswith(PROGRESS))
    return next(lines, "").strip()


def first_sentence(message: str) -> str:
    """Return the first line of a message, cut to 120 characters."""
    line = message.strip().splitlines()[0] if message.strip() else ""
    return line if len(line) <= 120 else f"{line[:117]}…"


#: Random bytes of a token, as many as Ray's own generator uses: 256 bits, written as 64 hexadecimal digits.
TOKEN_BYTES = 32

_PRINTABLE = frozenset(string.ascii_letters + string.digits + string.punctuation)


def create_token(path: Path) -> None:
    """Write a new token to the file `path`, which only its owner can read.

    Raises SweeperError if the file exists, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Created with its permissions: a later chmod would leave a moment in which others can open it.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SweeperError(
            f"the file {path} already exists",
            "use its token or choose another file; replacing a cluster's token locks out everyone with the old one",
        ) from None
    except OSError as error:
        raise SweeperError(f"{path} cannot be written: {error.strerror}", "choose another file") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(TOKEN_BYTES))


def find_token() -> str | None:
    """Return the token of this environment, `None` if it has none.

    Raises SweeperError if a named file cannot be read, or contains no valid token.
    """
    given, named = os.environ.get("RAY_AUTH_TOKEN", "").strip(), os.environ.get("RAY_AUTH_TOKEN_PATH")
    if given:
        return _checked(given, "the environment's RAY_AUTH_TOKEN")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        return _checked(path.read_text().strip(), f"the file {path}")
    except (OSError, UnicodeDecodeError) as error:
        if not named and not path.exists():
            return None
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SweeperError(
            f"the token file {path} cannot be read: {reason}",
            "correct RAY_AUTH_TOKEN_PATH, or ask the cluster's administrator",
        ) from error


def _checked(token: str, source: str) -> str:
    if not token or not _PRINTABLE.issuperset(token):
        raise SweeperError(
            f"{source} contains no token",
            "create one with `sweeper cluster token FILE`, or ask the cluster's administrator",
        )
    return token
