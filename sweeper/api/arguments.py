"""What commands take: parameters that several share, and what their functions have in common.

A command is one function of `sweeper.api`. cyclopts reads its signature for names, types and defaults, and its
docstring for the help: the text before `Args:` is the command's, each argument's text that of its option. A `Parameter`
in the annotation adds what neither can say. Arguments marked `HANDED` are not typed: the command line hands them over.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from sweeper.api.completion import complete_setting, complete_space, complete_sweep
from sweeper.core.errors import SweeperError
from sweeper.core.json_types import Values
from sweeper.reporting.live import NotebookProgress, Progress, in_notebook
from sweeper.tracking.base import default_address, kind_of
from trainables.files.stores.base import is_store_address

if TYPE_CHECKING:
    from cyclopts import Token

    from sweeper.execution.cluster.cluster import Cluster
    from sweeper.reporting.live import NotebookProgress, Progress
    from sweeper.results import Results

HANDED = Parameter(parse=False)

RESULTS = "results"

AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]

#: One text or several; on the command line the option is repeated.
Several = Annotated[str | Sequence[str], Parameter(metavar="TEXT")]

#: Takes text about what happens; a command prints it.
Say = Annotated[Callable[[str], None], HANDED]
Write = Annotated[Callable[[str], object], HANDED]

#: How rows and tables are written; an option of every command.
Form = Annotated[str, HANDED]

#: A search space: a file, the name of a shipped one, or its contents as a mapping.
Space = Annotated[
    str | Path | Values,
    Parameter(
        help="Search space file, or the name of a shipped one.",
        accepts_keys=False, n_tokens=1, completer=complete_space,
    ),
]  # fmt: skip


def _texts(_: object, tokens: Sequence[Token]) -> list[str]:
    """Take the values of a repeated option as they are typed."""
    return [token.value for token in tokens]


#: Overrides: `{"scheduler.max_epochs": 9}`, or `key=value` texts as for `--set`.
Settings = Annotated[
    Mapping[str, object] | Sequence[str] | None,
    Parameter(
        help="Override a key of the search space, e.g. seed=1; repeatable.", metavar="KEY=VALUE",
        accepts_keys=False, n_tokens=1, converter=_texts, completer=complete_setting,
    ),
]  # fmt: skip

Name = Annotated[str, Parameter(help="Name of the sweep, or path of its results.", completer=complete_sweep)]
OptionalName = Annotated[str | None, Parameter(completer=complete_sweep)]
Names = Annotated[Sequence[str], Parameter(completer=complete_sweep)]
Output = Annotated[
    str | Path | None,
    Parameter(
        ("--output", "-o"), help="Directory of results, s3://…, gs://… or az://….", metavar="PLACE",
        show_default=RESULTS, env_var="SWEEPER_OUTPUT",
    ),
]  # fmt: skip
Tracking = Annotated[
    str | None,
    Parameter(
        help="MLflow tracking store, or tensorboard: for event files in the sweep's folder.",
        show_default="a local SQLite file", env_var="MLFLOW_TRACKING_URI",
    ),
]  # fmt: skip
Mlflow = Annotated[bool, Parameter(negative="--no-mlflow", help="Write MLflow runs besides Parquet tables.")]
Rehearse = Annotated[bool, Parameter(help="Scale down to digits, small networks and a few epochs; results are marked.")]
Address = Annotated[
    str | None,
    Parameter("--ray", help="Address of a Ray cluster to run on.", show_default="start one", env_var="RAY_ADDRESS"),
]
ClusterAddress = Annotated[
    str | None,
    Parameter("--dashboard", help="Dashboard of a Ray cluster, e.g. http://head:8265.", env_var="SWEEPER_ADDRESS"),
]
Cpus = Annotated[
    int | None, Parameter(help="CPU cores to use on this machine.", show_default="all", validator=Number(gte=1))
]
RunsOn = Annotated[
    str,
    Parameter(
        help="local: forked processes on this machine; ray; auto: local if there is no cluster and no GPU.",
        env_var="SWEEPER_EXECUTOR",
    ),
]
WaitForNodes = Annotated[
    float,
    Parameter(
        help="Minutes to wait for the autoscaler to add the first node that fits a trial.", validator=Number(gte=0)
    ),
]
By = Annotated[
    str | None,
    Parameter(
        help="Metric that decides which trial is best, e.g. val_posthoc_temperature_ece.",
        show_default="the objective",
        metavar="METRIC",
    ),
]
Timings = Annotated[bool, Parameter(help="Print how long each phase took, in seconds.")]
Trust = Annotated[bool, Parameter(help="Run the code that came with the sweep; remembered for this code.")]


def readable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function without the type that it returns, which may be imported for type checkers alone."""

    @functools.wraps(function)
    def command(*given: Any, **named: Any) -> Any:
        return function(*given, **named)

    command.__annotations__ = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
    return command


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
    return str(output) if output is not None else os.environ.get("SWEEPER_OUTPUT", RESULTS)


def progress_view() -> type[NotebookProgress] | type[Progress]:
    """Return how progress is shown here: as a cell's output in a notebook, else in the terminal."""
    return NotebookProgress if in_notebook() else Progress


def connect(address: str) -> Cluster:
    """Return the cluster at `address`. Raises SweeperError when it does not answer, or refuses the token."""
    # Importing Ray takes a second that commands on local sweeps save.
    from sweeper.execution.cluster.cluster import Cluster

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
