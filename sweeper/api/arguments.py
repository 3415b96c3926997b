"""Parameters that several commands share, and helpers of their functions.

A command is one function of `sweeper.api`. cyclopts reads its signature for names, types and defaults, and its
docstring for the help: the text before `Args:` describes the command, and the text of each argument describes its
option. A `Parameter` in the annotation adds the rest. Users do not type arguments marked `HANDED`: the command line
supplies them. The functions `complete_…` answer the TAB key.
"""

from __future__ import annotations

import functools
import glob
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from search_spaces import packaged_files
from sweeper.core.domains import Values
from sweeper.reporting.live import NotebookProgress, Progress, in_notebook
from sweeper.space.catalogue import keys_of, values_of
from sweeper.storage.lookup import sweep_names
from sweeper.storage.places import local_copy
from trainables.files.stores.base import is_store_address

if TYPE_CHECKING:
    from cyclopts import Token
    from cyclopts.completion import CompletionContext

    from sweeper.execution.cluster.cluster import Cluster
    from sweeper.results import Results

#: Marks an argument that the command line supplies, such as how to print or to ask.
HANDED = Parameter(parse=False)

#: Default folder of results.
RESULTS = "results"

AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]

#: One text or several; on the command line the option is repeated.
Several = Annotated[str | Sequence[str], Parameter(metavar="TEXT")]

#: Callback for messages; the command line prints each on a line of standard error.
Say = Annotated[Callable[[str], None], HANDED]
#: Callback for text that is printed unchanged, such as a log.
Write = Annotated[Callable[[str], object], HANDED]

#: Format of rows and tables. Every command has the option, so `sweeper.api.main` parses it once.
Form = Annotated[str, HANDED]


def complete_space(context: CompletionContext) -> list[str]:
    """Return the shipped search spaces, and the YAML files and folders that start with the typed text."""
    begun = context.incomplete
    folder, _, beginning = begun.rpartition("/")
    place = Path(folder or ("/" if begun.startswith("/") else "."))
    files = sorted(place.glob(f"{glob.escape(beginning)}*")) if place.is_dir() else []
    near = [path for path in files if path.is_dir() or path.suffix in (".yaml", ".yml")]
    # The shell replaces the whole word, so completions repeat the folder as it was typed.
    prefix = begun[: len(begun) - len(beginning)]
    return [*packaged_files()] + [f"{prefix}{path.name}{'/' if path.is_dir() else ''}" for path in near]


def complete_sweep(context: CompletionContext) -> list[str]:
    """Return the sweeps below `--output` or its environment variable."""
    output = str(_typed(context, "output") or "results")
    # A store would answer too slowly for a key press.
    return [] if is_store_address(output) or not Path(output).is_dir() else sorted(sweep_names(output))


def complete_method(context: CompletionContext) -> list[str]:
    """Return the names of the post-hoc methods."""
    from trainables.posthoc import POSTHOC

    return sorted(POSTHOC)


def complete_setting(context: CompletionContext) -> list[str]:
    """Return `key=` for each key of the search space; after the `=`, the names of components."""
    key, equals, _ = context.incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in values_of(key)]
    return [f"{name}=" for name in keys_of(_typed(context, "space"))]


def _typed(context: CompletionContext, name: str) -> str | None:
    """Return the text typed for another argument, or its environment variable's value."""
    argument = context.get(name)
    return argument.raw if argument is not None else None


#: A search space: a file, the name of a shipped one, or its contents as a mapping.
Space = Annotated[
    str | Path | Values,
    Parameter(
        help="Search space file, or the name of a shipped one.",
        accepts_keys=False, n_tokens=1, completer=complete_space,
    ),
]  # fmt: skip


def _texts(_: object, tokens: Sequence[Token]) -> list[str]:
    """Return the values of a repeated option as typed: YAML parses them later, not cyclopts."""
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
        help="MLflow tracking store; tensorboard: for event files in the sweep's folder; or wandb:project.",
        show_default="the sweep's own; for a new one MLFLOW_TRACKING_URI, else a local SQLite file",
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


def readable(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function without its return annotation, which may name a type imported for type checkers only."""
    # cyclopts evaluates all annotations; importing the returned types would make `--help` take seconds.

    @functools.wraps(function)
    def command(*given: object, **named: object) -> object:
        return function(*given, **named)

    command.__annotations__ = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
    return command


def overrides(settings: Mapping[str, object] | Sequence[str] | None) -> list[str]:
    """Return overrides as `--set` writes them.

    Examples:
        >>> overrides({"samples": 12, "space.loss": {"name": "focal"}})
        ['samples=12', 'space.loss={"name": "focal"}']
    """
    # JSON is YAML, which `--set` parses.
    if isinstance(settings, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return [settings] if isinstance(settings, str) else list(settings or ())


def listed(texts: Several) -> list[str]:
    """Return one text or several as a list."""
    return [texts] if isinstance(texts, str) else list(texts)


def output_folder(output: str | Path | None) -> str:
    """Return the directory or store of results: `output`, else SWEEPER_OUTPUT, else `results`."""
    return str(output) if output is not None else os.environ.get("SWEEPER_OUTPUT", RESULTS)


def progress_view() -> type[NotebookProgress] | type[Progress]:
    """Return the class that shows progress: in a cell's output in a notebook, else in the terminal."""
    return NotebookProgress if in_notebook() else Progress


def connect(address: str) -> Cluster:
    """Return the cluster at `address`. Raises SweeperError if it does not answer, or refuses the token."""
    # Importing Ray takes a second, so commands on local sweeps do not import it.
    from sweeper.execution.cluster.cluster import Cluster

    return Cluster(address)


def remote_output(name: str, output: str, address: str | None) -> tuple[str, str]:
    """Return a sweep's name and output: as given, or as the cluster at `address` reports them."""
    if address is None or is_store_address(name):
        return name, output
    sweep = connect(address).sweep(name)
    return sweep.name, sweep.output


def opened(name: str, output: str | Path | None, address: str | None = None) -> Results:
    """Return a sweep's results; fetch them first if they are in a store or on a cluster."""
    from sweeper.results import load

    return load(*local_copy(*remote_output(name, output_folder(output), address)))
