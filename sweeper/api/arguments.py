"""Parameters that several commands share, and helpers of their functions.

A command is one function of `sweeper.api`. cyclopts reads its signature for names, types and defaults, and its
docstring for the help: the text before `Args:` describes the command, and the text of each argument describes its
option. A `Parameter` in the annotation adds the rest. Users do not type arguments marked `HANDED`: the command line
supplies them. The functions `complete_…` answer the TAB key.

Types and bounds (`Ge`, `Le` … of annotated_types) are checked by `validated` alone, so notebooks, the command line and
agents are refused the same values.
"""

from __future__ import annotations

import functools
import glob
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

from annotated_types import Ge
from cyclopts import Parameter
from pydantic import AllowInfNan, BeforeValidator, ConfigDict, ValidationError, validate_call

from search_spaces import packaged_files
from sweeper.core.domains.values import Values
from sweeper.core.errors import Fault, InvalidArgumentsError
from sweeper.reporting.live import NotebookProgress, Progress, in_notebook
from sweeper.space.catalogue import keys_of, values_of
from sweeper.storage.lookup import sweep_names
from sweeper.storage.places import local_copy
from trainables.files.stores.base import is_store_address
from trainables.registry.names import hint

if TYPE_CHECKING:
    from cyclopts import Token
    from cyclopts.completion import CompletionContext

    from sweeper.execution.cluster.cluster import Cluster
    from sweeper.results import Results

#: Marks an argument that the command line supplies, such as how to print or to ask.
HANDED = Parameter(parse=False)

#: Default folder of results.
RESULTS = "results"

AtLeastOne = Annotated[int, Ge(1)]

#: A finite number that is not negative, such as a price or minutes.
NotNegative = (Ge(0), AllowInfNan(False))

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
    Mapping[str, object] | str | Sequence[str] | None,
    Parameter(
        help="Override a key of the search space, e.g. seed=1; repeatable.", metavar="KEY=VALUE",
        accepts_keys=False, n_tokens=1, converter=_texts, completer=complete_setting,
    ),
]  # fmt: skip

#: Accept a path where a text is meant.
AsText = BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)

Name = Annotated[str, AsText, Parameter(help="Name of the sweep, or path of its results.", completer=complete_sweep)]
OptionalName = Annotated[str | None, AsText, Parameter(completer=complete_sweep)]
Names = Annotated[Sequence[Annotated[str, AsText]], Parameter(completer=complete_sweep)]
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
Rehearse = Annotated[bool, Parameter(help="Apply the file's changes under `rehearsal`; results are marked.")]
Address = Annotated[
    str | None,
    Parameter("--ray", help="Address of a Ray cluster to run on.", show_default="start one", env_var="RAY_ADDRESS"),
]
ClusterAddress = Annotated[
    str | None,
    Parameter("--dashboard", help="Dashboard of a Ray cluster, e.g. http://head:8265.", env_var="SWEEPER_ADDRESS"),
]
Cpus = Annotated[int | None, Ge(1), Parameter(help="CPU cores to use on this machine.", show_default="all")]
RunsOn = Annotated[
    str,
    Parameter(
        help="local: forked processes on this machine; ray; auto: local if there is no cluster and no GPU.",
        env_var="SWEEPER_EXECUTOR",
    ),
]
WaitForNodes = Annotated[
    float, *NotNegative, Parameter(help="Minutes to wait for the autoscaler to add the first node that fits a trial.")
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
    """Return a function as cyclopts parses it: without its return annotation, and without bounds.

    The return annotation may name a type imported for type checkers only. cyclopts would refuse the first value out of
    bounds in pydantic's words; `validated` refuses all of them.
    """

    @functools.wraps(function)
    def command(*given: object, **named: object) -> object:
        return function(*given, **named)

    hints = {name: _parsed_as(hint) for name, hint in hints_of(function).items()}
    # What a command's own docstring says of an argument comes before the help of a type that many commands share.
    said = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", inspect.getdoc(function) or "", re.MULTILINE)
    own = {name: Parameter(help=" ".join(text.split())) for name, text in said if name in hints}
    command.__annotations__ = hints | {name: Annotated[hints[name], parameter] for name, parameter in own.items()}
    return command


def hints_of(function: Callable[..., object]) -> dict[str, Any]:
    """Return the type of each parameter with its metadata, without the return type."""
    bare = SimpleNamespace(__annotations__={n: kind for n, kind in function.__annotations__.items() if n != "return"})
    return get_type_hints(bare, inspect.unwrap(function).__globals__, include_extras=True)


def _parsed_as(hint: Any) -> Any:
    if get_origin(hint) is not Annotated:
        return hint
    kept = [part for part in hint.__metadata__ if isinstance(part, Parameter)]
    return Annotated[(hint.__origin__, *kept)] if kept else hint.__origin__


def validated(function: Callable[..., object]) -> Callable[..., object]:
    """Return a command that checks its arguments against the types and bounds in its signature.

    Raises InvalidArgumentsError, before anything else happens, for all wrong, unknown and missing arguments at once.

    Example:
        >>> def halve(size: AtLeastOne) -> float:
        ...     return size / 2
        >>> validated(halve)(size=0)
        Traceback (most recent call last):
        ...
        sweeper.core.errors.InvalidArgumentsError: size: 0 must be greater than or equal to 1
    """

    @functools.wraps(function)
    def taken(*given: object, **named: object) -> tuple[tuple[object, ...], dict[str, object]]:
        return given, named

    # Only the arguments are checked: an error of the command itself must not look like a wrong argument.
    taken.__annotations__ = hints_of(function)
    check = validate_call(config=ConfigDict(arbitrary_types_allowed=True, defer_build=True))(taken)

    @functools.wraps(function)
    def command(*given: object, **named: object) -> object:
        try:
            positional, keywords = check(*given, **named)
        except ValidationError as error:
            raise InvalidArgumentsError(_argument_faults(error, function)) from None
        return function(*positional, **keywords)

    return command


def _argument_faults(error: ValidationError, function: Callable[..., object]) -> list[Fault]:
    names = [*inspect.signature(function).parameters]
    faults = []
    for detail in error.errors(include_url=False):
        place, kind = detail["loc"][0], detail["type"]
        name = names[place] if isinstance(place, int) and place < len(names) else str(place)
        if kind.startswith("unexpected_"):
            faults.append(Fault(name, "unknown argument", hint(name, names)))
        elif kind.startswith("missing_"):
            faults.append(Fault(name, "missing"))
        else:
            rule = "must be a list" if kind == "sequence_str" else detail["msg"].replace("Input should", "must")
            faults.append(Fault(name, f"{repr(detail['input'])[:60]} {rule}"))
    return faults


def overrides(settings: Mapping[str, object] | str | Sequence[str] | None) -> list[str]:
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
