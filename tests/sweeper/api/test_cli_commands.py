"""A command is one function: its signature gives options, types and defaults, its docstring the help."""

import inspect
from typing import Any

import pytest
from docstring_parser import parse

from sweeper.api import COMMANDS, GROUPS, SUBCOMMANDS, function_of
from sweeper.api.main import plugins, program
from sweeper.api.printing import HANDED
from tests.running import arguments_of, typed

PATHS = {name: name.rstrip("_") for names in GROUPS.values() for name in names} | {
    name: f"{group} {name}" for group, (_, names) in SUBCOMMANDS.items() for name in names
}


def parsed(*words: str) -> dict[str, Any]:
    """Return what a command's function gets of what is typed."""
    return dict(program().parse_args(words)[1].arguments)


def test_a_function_gets_what_is_typed() -> None:
    assert parsed("run", "mine") == {"space": "mine"}
    assert parsed(
        "run", "mine", "-o", "elsewhere", "--no-mlflow", "--executor", "local", "--set", "a=1", "--set", "b=2",
        "--rehearse", "--continue",
    ) == {
        "space": "mine", "output": "elsewhere", "mlflow": False, "executor": "local", "set": ["a=1", "b=2"],
        "rehearse": True, "resume_existing": True,
    }  # fmt: skip
    assert parsed("report", "a", "b", "c", "--to", "page.html") == {
        "name": "a", "more": ["b", "c"], "to": "page.html"
    }  # fmt: skip
    assert parsed("recalibrate", "a", "-m", "temperature", "-m", "vector", "--bins", "5", "--bins", "10") == {
        "name": "a", "method": ["temperature", "vector"], "bins": [5, 10]
    }  # fmt: skip
    assert parsed("results", "a", "--columns") == {"name": "a", "columns": []}
    assert parsed("results", "a", "--columns", "ece,nll", "--columns", "lr") == {
        "name": "a", "columns": ["ece,nll", "lr"]
    }  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_an_argument_is_what_the_command_says_of_it(name: str) -> None:
    said = {
        each.arg_name: " ".join((each.description or "").split())
        for each in parse(function_of(name).__doc__ or "").params
    }
    shown = {each.field_info.name: " ".join((each.parameter.help or "").split()) for each in arguments_of(PATHS[name])}
    assert shown.items() >= {argument: text for argument, text in said.items() if argument in shown}.items()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("statu", "status"),
        ("run a --outpt b", "--output"),
        ("run", "--space"),
        ("run a --cpus 0", "cpus: 0 must be"),
        ("run a --cpus some", "some"),
        ("stop a b", "b"),
        ("manage delet a", "delete"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_nearest(words: str, said: str) -> None:
    done = typed(*words.split())
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", [*COMMANDS, *plugins()])
def test_every_parameter_of_a_function_is_an_option_with_its_help(name: str) -> None:
    path, function = PATHS.get(name, name), plugins().get(name) or function_of(name)
    arguments = {argument.field_info.name: argument for argument in arguments_of(path)}
    for argument in (argument for argument in arguments.values() if argument.parse):
        text = argument.parameter.help or ""
        assert text[:1].isupper() or text[:1] in ("'", "l", "h", "γ"), (argument.name, text)
        assert text.endswith((".", ")", "…")), (argument.name, text)
    handed = {"form", *HANDED}
    assert set(inspect.signature(function).parameters) - handed == set(arguments) - handed
    shown = " ".join(typed(*path.split(), "--help").stdout.replace("│", " ").split())
    assert "--format" in shown
    for option in (option for key, argument in arguments.items() if key not in handed for option in argument.names):
        assert option in shown, option
    assert shown.count("SweeperError") == 0
