"""The command line's entry point. Data goes to stdout, progress and errors to stderr.

Exit status: 0 done; 1 the sweep has failed trials or was stopped; 2 bad input.

Commands are made of the functions of `sweeper.api`: options, help and types from one signature and docstring, as
`sweeper.api.arguments` says. What a function returns is printed by `display`, or by what `sweeper.cli.printing` has
for it, whose own keyword arguments are further options of the command.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import importlib.metadata
import inspect
import io
import os
import re
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
import typer.core

from search_spaces import packaged_files
from sweeper.api import GROUPS, SUBCOMMANDS, analyses, commands, exports, housekeeping
from sweeper.api.arguments import CommandOption
from sweeper.cli.printing import BAD_INPUT, DONE, GIVEN, PRINTED, discard_output, display, display_json
from sweeper.core.errors import SweeperError
from sweeper.storage.lookup import sweep_names
from sweeper.text.display import FORMATS, SafeConsole
from trainables.files.stores.base import StoreError, is_store_address

#: An argument of a docstring whose section is indented by four columns.
ARGUMENT = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)

SECTION = re.compile(r"\n(Args|Returns|Raises):\n")
WORDS = re.compile(r" \(default: (.+)\)$")


MODULES = {each.__name__.rpartition(".")[2]: each for each in (analyses, commands, exports, housekeeping)}


class Command(typer.core.TyperCommand):
    """A command whose `--columns` may stand without names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed."""
        words = [*args]
        for at, word in enumerate(words):
            if word == "--columns" and (at + 1 == len(words) or words[at + 1].startswith("-")):
                words[at] = "--columns=?"  # without names: what columns there are
        return super().parse_args(ctx, words)


#: Characters of a command's sentence in the list of commands; of a longer one only what stands before a colon.
MOST_WORDS = 64


class Program(typer.core.TyperGroup):
    """The program, whose help lists commands by group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write every command that is not hidden, with what it does."""
        groups = {title: [_words(name) for name in names] for title, names in GROUPS.items()}
        groups["After training"] += plugins()
        groups["More"] = [*SUBCOMMANDS]
        width = max(len(name) for names in groups.values() for name in names) + 2
        for title, names in groups.items():
            formatter.write(f"\n{title}:\n" if title == "Start" else f"{title}:\n")
            for name in names:
                formatter.write(f"  {name:{width}}{self.commands[name].get_short_help_str(100)}\n")


def _words(function: str) -> str:
    return function.rstrip("_").replace("_", "-")


def add_commands(app: typer.Typer) -> None:
    """Add every command to the program."""
    for names in GROUPS.values():
        _add(app, names)
    for title, (said, names) in SUBCOMMANDS.items():
        group = typer.Typer(help=said, no_args_is_help=True)
        _add(group, names)
        app.add_typer(group, name=title)
    for name, function in plugins().items():
        _add_one(app, name, function)


def _add(app: typer.Typer, names: Mapping[str, str]) -> None:
    for name, module in names.items():
        _add_one(app, name, getattr(MODULES[module], name))


def _add_one(app: typer.Typer, name: str, function: Callable[..., Any]) -> None:
    made = command(function, PRINTED.get(name.rstrip("_"), display))
    # In full: a list of commands would cut it at 45 characters.
    short = (made.__doc__ or "").split("\n")[0].partition(". ")[0].removesuffix(".")
    short = f"{short if len(short) <= MOST_WORDS else short.partition(': ')[0]}."
    app.command(_words(name), cls=Command, short_help=short)(made)


def _refuse(message: str) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        SafeConsole(stderr=True).print(f"error: {message}", soft_wrap=True)


@functools.cache
def plugins() -> dict[str, Callable[..., Any]]:
    """Return the commands that installed packages add: name → function, written like those of `sweeper.api`.

    A package names them in its `pyproject.toml`. A command that cannot be imported, or that has the name of one of the
    sweeper's own, is left out with a warning.

        [project.entry-points."sweeper.commands"]
        audit = "my_package.commands:audit"
    """
    added: dict[str, Callable[..., Any]] = {}
    own = {*SUBCOMMANDS, *(_words(name) for names in GROUPS.values() for name in names)}
    for entry in importlib.metadata.entry_points(group="sweeper.commands"):
        if entry.name in own:
            _refuse(f"the command {entry.name!r} of {entry.value} has the name of one of the sweeper's own")
            continue
        try:
            added[entry.name] = entry.load()
        except Exception as error:  # a stranger's module may raise anything
            _refuse(f"the command {entry.name!r} of {entry.value} cannot be imported: {error}")
    return added


def command(function: Callable[..., Any], printed: Callable[..., None]) -> Callable[..., None]:
    """Return a command: its parameters are those of a function and the keyword arguments of what prints its answer."""
    own, further = parameters(function), parameters(printed)
    if "form" not in own:
        further |= parameters(display_json)
    negated = {name for name, (_, option) in own.items() if option.negated}

    @functools.wraps(function)
    def run(**typed: Any) -> None:
        shown = {name: typed.pop(name) for name in further}
        given = {name: value for name, value in typed.items() if value is not None and value != []}
        given |= {name: not given[name] for name in negated}
        form = shown.pop("form", typed.get("form"))
        if "form" not in own and form not in ("table", "json"):  # before anything is done
            raise SweeperError(f"unknown format {form!r}", "formats: table, json")
        helpers = {name: GIVEN[name] for name in inspect.signature(function).parameters.keys() & GIVEN.keys()}
        answer = function(**given, **helpers)
        if form == "json" and not (isinstance(answer, str) and "form" in own):
            display_json(answer)
        else:
            printed(answer, given, **shown)

    merged = [each for each, _ in (*own.values(), *further.values())]
    run.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {}
    run.__doc__ = SECTION.split(inspect.getdoc(function) or "")[0].strip()
    return run


def parameters(function: Callable[..., Any]) -> dict[str, tuple[inspect.Parameter, CommandOption]]:
    """Return the parameters of a function as typer expects them, without what the command line gives by itself."""
    texts = argument_texts(inspect.getdoc(function) or "")
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        # What prints an answer takes it and what was typed first; those are no options.
        if name not in GIVEN and name not in ("found", "given", "answer"):
            # Text, as every file has `from __future__ import annotations`. One at a time: other annotations, of values
            # that are returned, are known to type checkers alone.
            hint = eval(parameter.annotation, function.__globals__)
            found[name] = _as_typed(parameter, hint, texts.get(name, ""))
    return found


def argument_texts(doc: str) -> dict[str, str]:
    """Return what a docstring says of each argument, in one line."""
    _, *sections = SECTION.split(f"\n{doc}")
    listed = dict(zip(sections[::2], sections[1::2], strict=True)).get("Args", "")
    return {name: " ".join(text.split()) for name, text in ARGUMENT.findall(listed)}


def _as_typed(parameter: inspect.Parameter, hint: object, text: str) -> tuple[inspect.Parameter, CommandOption]:
    """Return a parameter with typer's annotation and default, and what is said of how it is typed."""
    kind, option = hint, CommandOption()
    if get_origin(hint) is Annotated:
        kind, *said = get_args(hint)
        option = [each for each in said if isinstance(each, CommandOption)][-1]
    text = text or option.help
    words = WORDS.search(text)
    shared: dict[str, Any] = {
        "help": WORDS.sub("", text),
        "show_default": words[1] if words else option.words or True,
        "envvar": option.envvar,
        "metavar": option.metavar,
        "min": option.least,
        "max": option.most,
        "hidden": option.hidden,
        "autocompletion": globals()[option.complete] if option.complete else None,
    }
    typed = typed_as(option.kind or kind)
    required = parameter.default is parameter.empty
    default = option.default if option.default is not None else parameter.default
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and not option.flags:
        if required and not words:
            shared["show_default"] = False
        annotation = typer.Argument(**shared)
    else:
        flag = f"--{parameter.name.replace('_', '-')}"
        flags = option.flags or ((flag,) if typed is not bool or not default else ())
        annotation = typer.Option(*flags, **shared)
    if get_origin(typed) is list and not required:
        typed, default = typed | None, None
    elif default is None:
        typed = typed | None
    elif option.negated:
        default = not default
    default = parameter.empty if required else default
    made = parameter.replace(kind=parameter.KEYWORD_ONLY, default=default, annotation=Annotated[typed, annotation])
    return made, option


def typed_as(kind: Any) -> Any:
    """Return the type in which the command line takes what a function takes in several."""
    union = get_origin(kind) in (Union, UnionType)
    kinds = [each for each in get_args(kind) if each is not NoneType] if union else [kind]
    several = next((each for each in kinds if get_origin(each) is get_origin(Sequence[str])), None)
    if several is not None:
        return list[get_args(several)[0]]  # type: ignore[misc]  # made for typer, which reads it
    return Path if Path in kinds else kinds[0]


def complete_space(incomplete: str) -> list[str]:
    """Return the shipped search spaces, YAML files and folders whose names begin with `incomplete`."""
    shipped = [name for name in packaged_files() if name.startswith(incomplete)]
    folder, _, beginning = incomplete.rpartition("/")
    place = Path(folder or ("/" if incomplete.startswith("/") else "."))
    found = sorted(place.glob(f"{glob.escape(beginning)}*")) if place.is_dir() else []
    near = [path for path in found if path.is_dir() or path.suffix in (".yaml", ".yml")]
    prefix = incomplete[: len(incomplete) - len(beginning)]
    return shipped + [f"{prefix}{path.name}{'/' if path.is_dir() else ''}" for path in near]


def complete_sweep(context: typer.Context, incomplete: str) -> list[str]:
    """Return the sweeps below `--output` (or its variable) whose names begin with `incomplete`."""
    output = str(context.params.get("output") or "results")
    if is_store_address(output) or not Path(output).is_dir():
        return []
    return sorted(name for name in sweep_names(output) if name.startswith(incomplete))


def complete_format(incomplete: str) -> list[str]:
    """Return the output formats of rows."""
    return [name for name in FORMATS if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Return the post-hoc methods whose names begin with `incomplete`."""
    from trainables.posthoc import POSTHOC

    return sorted(name for name in POSTHOC if name.startswith(incomplete))


def complete_setting(context: typer.Context, incomplete: str) -> list[str]:
    """Return `key=` for each key of the search space that begins with `incomplete`; names of components as values."""
    from sweeper.space.catalogue import keys_of, values_of

    key, equals, begun = incomplete.partition("=")
    space = context.params.get("space")
    if equals:
        return [f"{key}={value}" for value in values_of(key) if value.startswith(begun)]
    return [f"{name}=" for name in keys_of(space) if name.startswith(incomplete)]


#: What to do about errors of the operating system that are no fault of this program.
REFUSED = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "ask its owner for access, or choose another place"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"),
    **dict.fromkeys(
        (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY),
        "something else is in its place: remove it, or restore the folder from a backup",
    ),
    errno.ENOMEM: "raise the limit of memory (ulimit -v), or free memory",
}


app = typer.Typer(
    name="sweeper",
    cls=Program,
    help="Which loss, γ, coverage and ν give calibrated confidences on which network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)
add_commands(app)


def main() -> None:
    """Run the command line; a `SweeperError` becomes a message and an exit status, never a traceback.

    So does what the machine refuses: a folder that cannot be written, too few file descriptors, too little memory.
    """
    open_missing_streams()
    print_what_can_be_printed()
    refuse_what_would_hang()
    try:
        try:
            refuse_what_is_no_text(sys.argv[1:])
            app()
        finally:
            sys.stdout.flush()  # a full disk behind it shows here, and not when the interpreter ends
    except (SweeperError, StoreError) as error:
        _refuse(str(error))
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:
        discard_output()  # the reader of the pipe (head, less) has closed it
        raise SystemExit(DONE) from None
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        discard_output()
        place = error.filename or "standard output"
        _refuse(f"{place}: {error.strerror}\n  {REFUSED[error.errno]}")
        raise SystemExit(BAD_INPUT) from None
    except MemoryError:
        _refuse("there is too little memory for this command\n  raise its limit (ulimit -v), or free memory")
        raise SystemExit(BAD_INPUT) from None


def refuse_what_is_no_text(arguments: Sequence[str]) -> None:
    """Raise SweeperError for an argument that is not UTF-8: no file, query or table of a sweep could hold it."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(argument).decode("utf-8", "backslashreplace")
            raise SweeperError(f"the argument {shown} is not UTF-8 text", "write it in UTF-8; rename a file") from error


def open_missing_streams() -> None:
    """Open the null device in the place of standard streams that were closed, before a file of ours gets their number.

    Without it, what a library prints would go into a journal record or a table.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", errors="replace", closefd=False))


def print_what_can_be_printed() -> None:
    """Replace characters that a terminal's encoding lacks (γ in Latin-1, ± in ASCII), here and in processes of ours."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    os.environ["PYTHONIOENCODING"] = os.environ.get("PYTHONIOENCODING", "").partition(":")[0] + ":replace"


def refuse_what_would_hang() -> None:
    """Where address space is limited (`ulimit -v`), refuse to import what would hang for want of it."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        sys.meta_path.insert(0, _SpaceForBlas())


class _SpaceForBlas(MetaPathFinder):
    """Lets SciPy be imported only where there is address space left for it.

    Its OpenBLAS (0.3.31) asks for buffers when it is loaded, and where it gets none it asks again for ever, holding the
    interpreter's lock.
    """

    #: Bytes: SciPy and its statistics were seen to take 195 MiB, numpy's random numbers 20, with one thread.
    NEEDED = 256 * 2**20

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in ("scipy", "sklearn"):
            used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
            left = resource.getrlimit(resource.RLIMIT_AS)[0] - used
            if left < self.NEEDED:
                raise MemoryError(f"{name} needs {self.NEEDED >> 20} MiB of address space and {left >> 20} are left")
        return None


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"sweeper {version('calibration-sweeper')}")
        raise typer.Exit(DONE)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Accept the options that come before a command."""
