"""What commands take: parameters that several share, and how each is typed on the command line.

A command is one function of `sweeper.api`. Its signature gives the command line names, types and defaults, its
docstring the help: the text before `Args:` is the command's, each argument's text is that of its option, where
`(default: …)` at the end says in words what is done without it. What neither can say is a `CommandOption` in the
annotation; an argument without text of its own has the one that stands there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sweeper.core.errors import SweeperError
from sweeper.core.json_types import Plain
from sweeper.tracking.base import default_address, kind_of
from trainables.files.stores.base import is_store_address

if TYPE_CHECKING:
    from sweeper.monitoring.live import NotebookProgress, Progress
    from sweeper.remote.cluster import Cluster
    from sweeper.results import Results


@dataclass(frozen=True)
class CommandOption:
    """How a parameter is typed on the command line.

    Attributes:
        flags: names other than the parameter's own, such as `("--output", "-o")`; a positional one with flags is typed
            as an option.
        help: what it is, where the docstring does not say.
        kind: what is typed, where a function takes more; a parameter that is `negated` is true unless it is typed.
        default: what is shown as the default, where the function finds it itself.
        words: the default in words.
        envvar: the environment's variable that is looked at.
        least: smallest value.
        most: largest value.
        metavar: stands for the value in the help.
        complete: the function of `sweeper.cli.main` that completes it.
        negated: whether the flag turns off what the parameter turns on.
        hidden: whether the help leaves it out.
    """

    flags: Sequence[str] = ()
    help: str = ""
    kind: object = None
    default: object = None
    words: str = ""
    envvar: str | None = None
    least: float | None = None
    most: float | None = None
    metavar: str | None = None
    complete: str = ""
    negated: bool = False
    hidden: bool = False


#: A count.
AtLeastOne = CommandOption(least=1)

#: One text or several; on the command line the option is repeated.
Several = str | Sequence[str]

#: Takes text about what happens; a command prints it.
Say = Callable[[str], None]

#: A search space: a file, the name of a shipped one, or its contents as a mapping.
Space = Annotated[
    str | Path | Mapping[str, Plain],
    CommandOption(help="Search space file, or the name of a shipped one.", kind=str, complete="complete_space"),
]

#: Overrides: `{"scheduler.max_epochs": 9}`, or `key=value` texts as for `--set`.
Settings = Annotated[
    Mapping[str, object] | Sequence[str] | None,
    CommandOption(
        help="Override a key of the search space, e.g. seed=1; repeatable.", kind=list[str], metavar="KEY=VALUE",
        complete="complete_setting",
    ),
]  # fmt: skip

Name = Annotated[str, CommandOption(help="Name of the sweep, or path of its results.", complete="complete_sweep")]
Output = Annotated[
    str | Path | None,
    CommandOption(
        ("--output", "-o"), "Directory of results, s3://…, gs://… or az://….", str, "results", envvar="SWEEPER_OUTPUT"
    ),
]
Tracking = Annotated[
    str | None,
    CommandOption(
        help="MLflow tracking store, or tensorboard: for event files in the sweep's folder.",
        words="a local SQLite file", envvar="MLFLOW_TRACKING_URI",
    ),
]  # fmt: skip
Mlflow = Annotated[bool, CommandOption(("--no-mlflow",), "Write Parquet tables only, no MLflow runs.", negated=True)]
Rehearse = Annotated[
    bool, CommandOption(help="Scale down to digits, small networks and a few epochs; results are marked.")
]
Address = Annotated[
    str | None,
    CommandOption(("--ray",), "Address of a Ray cluster to run on.", words="start one here", envvar="RAY_ADDRESS"),
]
ClusterAddress = Annotated[
    str | None,
    CommandOption(("--dashboard",), "Dashboard of a Ray cluster, e.g. http://head:8265.", envvar="SWEEPER_ADDRESS"),
]
Cpus = Annotated[int | None, CommandOption(help="CPU cores to use on this machine.", words="all", least=1)]
RunsOn = Annotated[
    str,
    CommandOption(
        help="local: forked processes on this machine; ray; auto: local if there is no cluster and no GPU.",
        envvar="SWEEPER_EXECUTOR",
    ),
]
WaitForNodes = Annotated[
    float, CommandOption(help="Minutes to wait for the autoscaler to add the first node that fits a trial.", least=0)
]
Trust = Annotated[bool, CommandOption(help="Run the code that came with the sweep; remembered for this code.")]
Format = Annotated[
    str, CommandOption(("--format",), "Output format: table, json, csv or parquet.", complete="complete_format")
]


def overrides(settings: Mapping[str, object] | Sequence[str] | None) -> list[str]:
    """Return overrides as `--set` writes them: a mapping's values as JSON, which is YAML too."""
    if isinstance(settings, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return [settings] if isinstance(settings, str) else list(settings or ())


def listed(texts: Several) -> list[str]:
    """Return one text or several as a list."""
    return [texts] if isinstance(texts, str) else list(texts)


def output_folder(output: str | Path | None) -> str:
    """Return the directory or store of results: as given, else that of SWEEPER_OUTPUT, else `results`."""
    return str(output) if output is not None else os.environ.get("SWEEPER_OUTPUT", "results")


def progress_view() -> type[NotebookProgress] | type[Progress]:
    """Return how progress is shown here: as a cell's output in a notebook, else in the terminal."""
    from sweeper.monitoring.live import NotebookProgress, Progress, in_notebook

    return NotebookProgress if in_notebook() else Progress


def connect(address: str) -> Cluster:
    """Return the cluster at `address`. Raises SweeperError when it does not answer, or refuses the token."""
    # Importing Ray takes a second that commands on local sweeps save.
    from sweeper.remote.cluster import Cluster

    return Cluster(address)


def remote_output(name: str, output: str, address: str | None) -> tuple[str, str]:
    """Return a sweep's name and where its results are: as given, or as the cluster at `address` reports."""
    if address is None or is_store_address(name):
        return name, output
    sweep = connect(address).sweep(name)
    return sweep.name, sweep.output


def local_sweep(name: str, output: str, *, tables: bool = True) -> tuple[str, Path]:
    """Return the name and the folder under which a sweep can be read on this machine; from a store it is fetched."""
    from sweeper.storage.places import local_copy

    return local_copy(name, output, tables=tables)


def opened(name: str, output: str | Path | None, address: str | None = None) -> Results:
    """Return a sweep's results, read on this machine; from a store, or where a cluster put them, they are fetched."""
    from sweeper.results import load

    return load(*local_sweep(*remote_output(name, output_folder(output), address)))


def checked(address: str | None) -> str | None:
    """Return the address of a tracker, if it can be one. Raises SweeperError where it cannot."""
    fault = kind_of(address).fault(address) if address is not None else None
    if fault is not None:
        raise SweeperError(*fault)
    return address


def local_tracking(address: str | None, folder: Path) -> str:
    """Return the tracker that was named, or the default one of the sweeps in `folder`."""
    return checked(address) or default_address(folder)


def tracking_address(address: str | None, output: str, name: str | None = None) -> str | None:
    """Return the tracker of a sweep: as given, else that of MLFLOW_TRACKING_URI, else the default one of its folder.

    A sweep in a store has no default one.
    """
    from sweeper.storage.places import DRIVING, place_of

    address = address or os.environ.get("MLFLOW_TRACKING_URI")
    place = place_of(output, DRIVING)
    if place.store is not None and address is not None and address.endswith(":"):
        raise SweeperError(f"{address} means a folder beside the sweep, which is in a store", f"write {address}/folder")
    if address is not None or place.store is not None:
        return checked(address)
    return default_address(place.find(name).root.parent if name is not None else place.folder)
