"""The command line's entry point. Data goes to stdout, progress and errors to stderr.

Exit status: 0 done; 1 the sweep has failed trials or was stopped; 2 bad input.

Commands are the functions of `sweeper.api`; cyclopts reads their signatures and docstrings, as `sweeper.api.arguments`
describes. `sweeper.api.printing` prints their return values.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.metadata
import io
import os
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Annotated

from cyclopts import App, CycloptsError, Group, Parameter

from sweeper.api import COMMANDS, GROUPS, SUBCOMMANDS, function_of
from sweeper.api.arguments import readable
from sweeper.api.printing import BAD_INPUT, DONE, HANDED, discard_output, display
from sweeper.core.display import FORMATS, SafeConsole
from sweeper.core.errors import SweeperError
from sweeper.core.processes import collect_garbage_rarely
from trainables.files.stores.base import StoreError


def _words(function: str) -> str:
    return function.rstrip("_").replace("_", "-")


#: The words that name a built-in command or a group of commands.
BUILT_IN = {*SUBCOMMANDS, *(_words(name) for names in GROUPS.values() for name in names)}


def _shown_default(value: object) -> str | None:
    return None if value in (None, False, "", ()) else str(value)


def _refuse(message: str) -> None:
    # Standard output first, so that the error comes last on a terminal. Either stream may be closed or full.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        SafeConsole(stderr=True).print(f"error: {message}", soft_wrap=True)


@functools.cache  # finding entry points reads the metadata of every installed package
def plugins() -> dict[str, Callable[..., object]]:
    """Return the commands that installed packages add: name → function, written like those of `sweeper.api`.

    A package names them in its `pyproject.toml`. A command that cannot be imported, or has the name of a built-in
    command, is skipped with a warning.

        [project.entry-points."sweeper.commands"]
        audit = "my_package.commands:audit"
    """
    added: dict[str, Callable[..., object]] = {}
    for entry in importlib.metadata.entry_points(group="sweeper.commands"):
        if entry.name in BUILT_IN:
            _refuse(f"the command {entry.name!r} of {entry.value} has the name of a built-in command")
            continue
        try:
            added[entry.name] = entry.load()
        except Exception as error:  # another package's module can raise anything; built-in commands must still work
            _refuse(f"the command {entry.name!r} of {entry.value} cannot be imported: {error}")
    return added


@functools.cache
def program(only: str | None = None) -> App:
    """Build the command line with every command, or with one: `sweeper status` then imports no other command."""
    app = App(
        "sweeper",
        help="Which loss, γ, coverage and ν give calibrated confidences on which network.",
        version=lambda: f"sweeper {importlib.metadata.version('calibration-sweeper')}",
        help_format="plaintext",
        default_parameter=Parameter(negative=(), show_default=_shown_default),
        group_commands=(options := Group("Options", sort_key=len(GROUPS) + 1)),
        # `main` prints errors and chooses the exit status.
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )
    groups = {title: Group(title, sort_key=place) for place, title in enumerate((*GROUPS, "More"))}
    for title, names in GROUPS.items():
        _add(app, (name for name in names if only in (None, _words(name))), groups[title])
    for name, function in plugins().items() if only is None else ():
        app.command(readable(function), name=name, group=groups["After training"], sort_key=len(COMMANDS))
    for name, (said, names) in SUBCOMMANDS.items():
        if only not in (None, name):
            continue
        app.command(group := App(name, help=said, group=groups["More"], group_commands=options))
        _add(group, names, Group("Commands"))
    app.register_install_completion_command()
    # --format is an option of every command, so the meta app parses it before the command's own options.
    app.meta.group_parameters = options
    app.meta.default(launch)
    return app


def program_for(words: Sequence[str]) -> App:
    """Return the command line that these words need: all of it unless they begin with the name of a command."""
    # Help, completion, suggestions for a misspelt command and commands of other packages need every command.
    return program(words[0] if words and words[0] in BUILT_IN else None)


def _add(app: App, names: Iterable[str], group: Group) -> None:
    for place, name in enumerate(names):
        app.command(readable(function_of(name)), name=_words(name), group=group, sort_key=place)


def launch(
    *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    form: Annotated[str | None, Parameter(("--format", "-f"), completer=lambda context: FORMATS)] = None,
) -> int:
    """Run the typed command.

    Args:
        form: Output format: table or json; for rows also csv and parquet, for papers' tables markdown, latex and csv.
    """
    function, bound, handed = program_for(words).parse_args(words)
    own = "form" in handed
    if not own and form not in (None, "table", "json"):  # checked before the command, which may run for days
        raise SweeperError(f"unknown format {form!r}", "formats: table, json")
    # A function whose parameters include callbacks, such as `say`, gets those that print.
    given = {name: HANDED[name] for name in handed if name in HANDED} | ({"form": form} if own and form else {})
    answer = function(*bound.args, **bound.kwargs, **given)
    return display(answer, as_json=form == "json" and not (own and isinstance(answer, str)))


#: Remedies for errors of the operating system that this program does not cause.
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


def main() -> None:
    """Run the command line; turn a `SweeperError` into a message and an exit status, without a traceback.

    The same holds for errors of the operating system: a read-only folder, too few file descriptors, too little memory.
    """
    collect_garbage_rarely()
    open_missing_streams()
    print_what_can_be_printed()
    refuse_what_would_hang()
    try:
        try:
            refuse_what_is_no_text(sys.argv[1:])
            status = program_for(sys.argv[1:]).meta(sys.argv[1:])
        finally:
            sys.stdout.flush()  # a full disk behind it shows here, and not when the interpreter ends
    except CycloptsError as error:
        _refuse(str(error))
        raise SystemExit(BAD_INPUT) from None
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
    raise SystemExit(status)


def refuse_what_is_no_text(arguments: Sequence[str]) -> None:
    """Raise SweeperError for an argument that is not UTF-8, which no file, query or table of a sweep can store."""
    for argument in arguments:
        try:
            argument.encode()  # Python decodes arguments with surrogates for invalid bytes; these do not encode again
        except UnicodeEncodeError as error:
            shown = os.fsencode(argument).decode("utf-8", "backslashreplace")
            raise SweeperError(f"the argument {shown} is not UTF-8 text", "write it in UTF-8; rename a file") from error


def open_missing_streams() -> None:
    """Open the null device for each standard stream that is closed, before another file gets its descriptor.

    Otherwise a library's output could end up in a journal record or a table.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", errors="replace", closefd=False))


def print_what_can_be_printed() -> None:
    """Replace characters that the terminal's encoding lacks (γ in Latin-1, ± in ASCII), also in child processes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    os.environ["PYTHONIOENCODING"] = os.environ.get("PYTHONIOENCODING", "").partition(":")[0] + ":replace"


def refuse_what_would_hang() -> None:
    """Under a limit of address space (`ulimit -v`), refuse imports that would hang when it is exhausted."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        sys.meta_path.insert(0, _SpaceForLibraries())


class _SpaceForLibraries(MetaPathFinder):
    """Import hook that allows SciPy and DuckDB only while enough address space is left.

    SciPy's OpenBLAS (0.3.31) allocates buffers when it is loaded. If that fails, it retries for ever while it holds the
    interpreter's lock. DuckDB (2.0) aborts the process if an allocation is refused.
    """

    #: Bytes. Measured with one thread: SciPy with its statistics takes 195 MiB, DuckDB and Arrow's buffers 150 MiB.
    NEEDED = 256 * 2**20

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in ("scipy", "sklearn", "duckdb"):
            used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
            left = resource.getrlimit(resource.RLIMIT_AS)[0] - used
            if left < self.NEEDED:
                raise MemoryError(f"{name} needs {self.NEEDED >> 20} MiB of address space and {left >> 20} are left")
        return None
