"""Submit a sweep to a remote cluster: search space file, driver command line, metadata.

The submitter's code runs: this package is sent with each job, so a cluster's images need only its dependencies. Ray
keeps one copy of each version for all users. On the cluster, custom components always lie next to the search space
file.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import search_spaces
import trainables
from sweeper.core.display import redact
from sweeper.core.errors import SweeperError
from sweeper.core.ids import require_sweep_name
from sweeper.space.loading import load_spec
from sweeper.space.user_code import code_of
from sweeper.storage.metadata import user_and_host
from sweeper.storage.places import READING, place_of
from trainables.extensions.code import unpack_into
from trainables.files.stores.base import StoreError, is_store_address

#: The folders of `sweeper`, `trainables` and `search_spaces`.
PACKAGES = tuple(Path(str(f)).parent for f in (Path(__file__).parent, trainables.__file__, search_spaces.__file__))

SPACE_FILE = "space.yaml"


class Jobs(Protocol):
    """The part of a cluster that accepts sweeps; see `sweeper.execution.cluster.cluster.Cluster`."""

    def submit(self, name: str, command: Sequence[str], metadata: dict[str, str], folder: Path,
               modules: Sequence[Path]) -> str:  # fmt: skip
        """Submit a sweep's driver and return its job."""


@dataclass(frozen=True)
class Request:
    """Options of a driver on a cluster.

    Attributes:
        output: Location of results: a store's address, or a folder that all machines of the cluster share.
        tracking_uri: Address of MLflow; `None` uses the cluster's own `MLFLOW_TRACKING_URI`, if it has one.
        no_mlflow: Whether to keep results in Parquet only.
        ship: Whether to send this package along; otherwise the cluster's own is used.
        settings: Overrides of `--set`.
        trust: On resume, run the code that came with the sweep.
        wait_for_nodes: Minutes to wait for the autoscaler to start the first node that fits a trial.
    """

    output: str
    tracking_uri: str | None = None
    no_mlflow: bool = False
    ship: bool = True
    settings: Sequence[str] = ()
    wait_for_nodes: float = 30.0
    trust: bool = False

    def options(self) -> list[str]:
        """Return the driver's options. Raises SweeperError if one of them is unusable, or would show a secret."""
        if not is_store_address(self.output) and not Path(self.output).is_absolute():
            raise SweeperError(
                f"--output {self.output!r} is a folder on this machine that the cluster cannot reach",
                "give --output s3://bucket/prefix, gs://…, az://…, or the path of a folder shared by all its machines",
            )
        if self.tracking_uri is not None and redact(self.tracking_uri) != self.tracking_uri:
            raise SweeperError(
                "the tracking address contains a password, which everyone who can list the cluster's jobs would see",
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the cluster's environment instead",
            )
        chosen = ["--output", self.output]
        if self.no_mlflow:
            chosen.append("--no-mlflow")
        elif self.tracking_uri is not None:
            chosen += ["--tracking-uri", self.tracking_uri]
        return [*chosen, "--wait-for-nodes", str(self.wait_for_nodes)]


def submit(jobs: Jobs, space: str, name: str | None, taken: Callable[[str], bool], request: Request) -> tuple[str, str]:
    """Submit a new sweep; return its name and its job.

    The search space is read and checked on this machine before anything is sent.

    Args:
        jobs: Jobs of the cluster.
        space: Search space file, or the name of a shipped one.
        name: Name of the sweep; `None` uses the file's name, numbered if it is taken.
        taken: Function that returns whether the cluster knows a sweep of that name.
        request: Options of the driver.

    Raises InvalidSearchSpace or SweeperError before anything was started.
    """
    path = search_spaces.locate(space)
    spec = load_spec(path, list(request.settings))
    own = code_of(spec)
    name = _free_name(path.stem, name, lambda other: taken(other) or _stored(request.output, other))
    overrides = [word for setting in request.settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory(prefix="sweeper-submit-") as folder:
        shutil.copyfile(path, Path(folder) / SPACE_FILE)
        if own is not None:
            unpack_into(own.archive, Path(folder))
        command = ["python", "-m", "sweeper", "run", SPACE_FILE, "--name", name, *request.options(), *overrides]
        return name, jobs.submit(name, command, _metadata(name, request), Path(folder), _modules(request))


def submit_resume(jobs: Jobs, name: str, request: Request, *, failed: bool = False) -> str:
    """Submit a driver that resumes an interrupted sweep; return its job."""
    more = ["--failed"] if failed else []
    more += ["--trust"] if request.trust else []
    more += [word for setting in request.settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory(prefix="sweeper-submit-") as folder:
        command = ["python", "-m", "sweeper", "resume", name, *request.options(), *more]
        return jobs.submit(name, command, _metadata(name, request), Path(folder), _modules(request))


def _metadata(name: str, request: Request) -> dict[str, str]:
    return {
        "sweep": name,
        "submitter": user_and_host(),
        "output": request.output,
        "tracking_uri": request.tracking_uri or "",
        "no_mlflow": "yes" if request.no_mlflow else "",
    }


def _modules(request: Request) -> list[Path]:
    return [*PACKAGES] if request.ship else []


def _free_name(stem: str, name: str | None, taken: Callable[[str], bool]) -> str:
    wanted = name if name is not None else stem
    require_sweep_name(wanted)
    if name is not None:
        if taken(name):
            raise SweeperError(
                f"the name {name!r} is taken", f"continue it with `sweeper resume {name}`, or choose another --name"
            )
        return name
    numbered = (f"{wanted}-{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([wanted], numbered) if not taken(free))


def _stored(output: str, name: str) -> bool:
    """Return whether the output has a sweep of that name, as far as this machine can see."""
    # This check only serves to propose a free name: the driver checks again when it claims the name.
    try:
        place = place_of(output, READING)
        return place.has(name) if place.store is not None else (place.folder / name).exists()
    except StoreError:
        return False
