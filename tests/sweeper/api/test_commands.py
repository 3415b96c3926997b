"""The commands as functions: light to import, the same results and sentences as the command line, readable objects."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

import sweeper
from sweeper.api import commands
from sweeper.core.display import CommandResult, as_html
from sweeper.core.errors import InvalidArgumentsError
from sweeper.results import UnknownSweepError, load
from sweeper.results.queries import QueryError
from tests.running import SPACE, typed
from tests.sweeper.synthetic_sweep import write_sweep

ROOT = Path(__file__).resolve().parents[3]


def test_importing_the_package_imports_nothing_else():
    program = (
        "import sys, time; began = time.perf_counter(); import sweeper; took = time.perf_counter() - began\n"
        "heavy = {'torch', 'ray', 'rich', 'pydantic', 'duckdb', 'pyarrow', 'numpy', 'yaml'} & set(sys.modules)\n"
        "print(heavy, 'api' in dir(sweeper), set(sweeper.COMMANDS) <= set(dir(sweeper)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "set() False True\n", done.stdout + done.stderr


def test_a_module_of_a_commands_name_is_both():
    program = (
        "import sweeper.planning.plan, sweeper.reporting, sweeper\n"
        "from sweeper.results.comparison import compare as inner\n"
        "import sweeper.reporting.status as module\n"
        "print(module.statuses_table.__name__, inner.__module__, sweeper.planning.plan.Plan.__name__)\n"
        "print(all(callable(getattr(sweeper, name)) for name in sweeper.COMMANDS), type(sweeper.results).__name__)\n"
        "try:\n    sweeper.status('nothing', output='/nowhere')\n"
        "except sweeper.SweeperError as error:\n    print(error)\n"
        "try:\n    sweeper.nothing\nexcept AttributeError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["statuses_table sweeper.results.comparison Plan", "True module"], done.stdout + done.stderr
    assert "/nowhere" in lines[2] and lines[-1] == "module 'sweeper' has no attribute 'nothing'"


def test_faults_are_raised_with_the_command_lines_sentences(tmp_path):
    with pytest.raises(sweeper.SweeperError) as caught:
        commands.run({"dataset": "digits", "space": {"loss": "focl"}}, output=tmp_path, mlflow=False)
    said = str(caught.value)
    assert "search space: 4 errors, nothing was started" in said and "did you mean 'focal'?" in said
    assert not any(tmp_path.iterdir())
    (tmp_path / "bad.yaml").write_text("dataset: digits\n")
    with pytest.raises(sweeper.SweeperError) as caught:
        commands.plan(tmp_path / "bad.yaml")
    printed = typed("plan", tmp_path / "bad.yaml")
    assert printed.returncode == 2 and printed.stderr == f"error: {caught.value}\n"


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("ensemble", {"size": 0}),
        ("ensemble", {"size": 1001}),
        ("ensemble", {"candidates": -1}),
        ("conformal", {"alpha": 0.0}),
        ("conformal", {"alpha": float("nan")}),
        ("plan", {"price_per_gpu_hour": -0.5}),
        ("plan", {"price_per_gpu_hour": float("inf")}),
        ("run", {"wait_for_nodes": float("nan")}),
        ("resume", {"cpus": 0}),
        ("submit", {"wait_for_nodes": -1.0}),
        ("init", {"epochs": 0}),
        ("init", {"replicates": 0}),
        ("serve", {"port": 65536}),
        ("ui", {"port": 0}),
    ],
)
def test_functions_and_command_line_refuse_the_same_numbers(command, given, tmp_path):
    first = next(iter(inspect.signature(getattr(sweeper, command)).parameters))
    needed = {first: str(tmp_path / "x")} if first in ("name", "file", "space") and command != "ui" else {}
    with pytest.raises(InvalidArgumentsError) as caught:
        getattr(sweeper, command)(**needed, **given)
    assert [fault.path for fault in caught.value.faults] == [*given]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    printed = typed(*(["cluster"] if command == "submit" else []), command, *needed.values(), *options)
    assert printed.returncode == 2 and printed.stderr == f"error: {caught.value}\n"
    assert not any(tmp_path.iterdir())


def test_all_wrong_unknown_and_missing_arguments_are_named_at_once():
    with pytest.raises(InvalidArgumentsError) as caught:
        sweeper.ensemble(size=0, candidates="many", sise=3)
    assert {fault.path for fault in caught.value.faults} == {"name", "size", "candidates", "sise"}
    assert "did you mean 'size'?" in str(caught.value)
    for command, given in [
        (sweeper.init, {"file": "x", "loss": "focal"}),  # would be five losses of one letter
        (sweeper.compare, {"name": "x", "by": "loss"}),
        (sweeper.status, {"name": 3}),
    ]:
        with pytest.raises(InvalidArgumentsError):
            command(**given)


def test_a_path_names_a_sweep_as_its_text_does(tmp_path):
    write_sweep(tmp_path / "one", space="gamma", configurations=2, samples=20, failures=0)
    assert sweeper.show(tmp_path / "one").json == sweeper.show(str(tmp_path / "one")).json


def test_a_plan_from_values_is_that_of_the_file(tmp_path):
    import yaml

    values = yaml.safe_load(SPACE)
    values["space"]["architecture"] = "mlp"
    planned = commands.plan(values, set={"samples": 4})
    assert isinstance(planned, CommandResult) and planned.trials == planned.value.trials == 4
    assert "samples" in values and values["samples"] == 10, "what was given stays as it is"
    assert repr(planned).startswith("trials ") and "<pre" in planned._repr_html_()


def test_reading_commands_give_objects(tmp_path):
    for name in ("one", "two"):
        write_sweep(tmp_path / name, configurations=4, samples=30)
    compared = sweeper.compare("one", "two", output=tmp_path)
    assert compared.names == ("one", "two") and repr(compared).startswith("one and two")
    assert "<pre" in compared._repr_html_() and "1 &lt; 2" in as_html(Text("1 < 2"))
    found = load("one", tmp_path)
    assert "<pre" in found._repr_html_() and load(tmp_path / "one").table("final").num_rows > 0
    with pytest.raises(QueryError, match="there is no table 'finale'"):
        found.table("finale")
    with pytest.raises(UnknownSweepError, match="did you mean 'one'"):
        load("onee", tmp_path)
