"""CONTRIBUTING.md is true: its folders, targets and files are there, and changes made as it says need nothing else."""

from __future__ import annotations

import ast
import filecmp
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.release.distribution import ROOT, source_files

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CHANGES = re.findall(r"^\| (an? [^|]+) \| ([^|]+) \| ([^|]+) \|$", TEXT, re.MULTILINE)
FOLDERS = [
    name
    for row in re.findall(r"^\| (`[a-z_/]+/`[^|]*) \|", TEXT, re.MULTILINE)
    for name in re.findall(r"`([^`]+)`", row)
]
PACKAGES = sorted(
    path for package in ("trainables", "sweeper", "search_spaces") for path in (ROOT / package).rglob("__init__.py")
)

LOSS = '''"""A quarter of the Brier score."""

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Loss
from trainables.registry import Component


class Quarter(Loss):
    """A quarter of the squared error of the probability vector."""

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the [N] values."""
        p = torch.softmax(logits, dim=-1)
        return (p - torch.nn.functional.one_hot(targets, logits.shape[-1])).square().sum(-1) / 4


LOSSES.register(Component("quarter", Quarter, summary="a quarter of the Brier score", source="a test"))
'''

FIGURE = '''"""How many trials there are."""

from sweeper.reporting.figure_parts.figure import Figure, Panel, axis, plot
from sweeper.results import Results

ABSENT = "Trials: none."


def draw(results: Results) -> Figure | None:
    """Return the number of trials by status."""
    sql = "SELECT status, count(*) AS n FROM trials GROUP BY 1 ORDER BY 1"
    rows = results.rows(sql)
    bars = {"type": "bar", "x": [row["status"] for row in rows], "y": [row["n"] for row in rows]}
    panel = Panel("trials", [], plot([bars], axis("status"), axis("trials")))
    return Figure("trials-by-status", "Trials by status", "A planted figure.", [sql], [panel], ["trials"])
'''

COMMAND = '''

@commands.command()
def greet(name: str) -> None:
    """Greet somebody."""
    typer.echo(f"hello {name}")
'''


@dataclass(frozen=True)
class Checkout:
    """A copy of the packages, in which a change is made as a row of the table says."""

    folder: Path

    def files(self, change: str, **placeholders: str) -> list[str]:
        """Return the files that the table names for a change, and no other may be touched."""
        row = next(files for name, files, _ in CHANGES if name == change)
        named = re.findall(r"`([^`]+)`", row)
        return [re.sub(r"<(\w+)>", lambda found: placeholders[found[1]], path) for path in named]

    def run(self, *arguments: str) -> str:
        """Run this interpreter with the copy's packages, and return what it printed."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def touched(self) -> set[str]:
        """Return the files that differ from the checkout's."""
        there = {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.py")}
        return {
            name
            for name in there
            if not (ROOT / name).is_file() or not filecmp.cmp(ROOT / name, self.folder / name, shallow=False)
        }


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for path in source_files():
        if path.startswith(("sweeper/", "trainables/", "search_spaces/")):
            (tmp_path / "copy" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, tmp_path / "copy" / path)
    return Checkout(tmp_path / "copy")


def test_no_change_needs_more_than_two_files() -> None:
    assert len(CHANGES) >= 10
    for change, files, _ in CHANGES:
        assert len([part for part in files.split(", ") if part]) <= 2, change


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_the_files_of_a_change_are_there(change: tuple[str, str, str]) -> None:
    for path in re.findall(r"`([^`]+)`", change[1]):
        place = ROOT / path
        if "<" in path:
            assert len(list(place.parent.glob(f"*{place.suffix}"))) > 1, path
        else:
            assert place.is_file() or (ROOT / "sweeper" / "tables" / path).is_file(), path
    for name in re.findall(r"`(tests/[^`]+)`", change[2]):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"`(sweeper\.[\w.]+)`", change[2]):
        module, _, attribute = name.rpartition(".")
        assert hasattr(__import__(module, fromlist=[attribute]), attribute), name


def test_a_sink_has_the_methods_that_are_named() -> None:
    from sweeper.execution.driver.recorder import Sink

    said = next(how for name, _, how in CHANGES if name == "a sink")
    methods = {name for name in vars(Sink) if not name.startswith("_")}
    assert methods == set(re.findall(r"`(\w+)`", said.partition(" of ")[0]))


@pytest.mark.integration
def test_a_loss_is_added_as_the_table_says(checkout: Checkout) -> None:
    module, package = checkout.files("a loss", name="quarter")
    (checkout.folder / module).write_text(LOSS)
    with (checkout.folder / package).open("a") as text:
        text.write('import_module("trainables.losses.quarter")\n')
    assert checkout.touched() == {module, package}
    value = checkout.run(
        "-c",
        "import torch; from trainables.losses import build_loss; "
        "print(float(build_loss('quarter')(torch.zeros(2, 2), torch.tensor([0, 1]))))",
    )
    assert float(value) == 0.5 / 4
    planned = checkout.run("-m", "sweeper", "plan", "quickstart", "--set", "space.loss=quarter", "--set", "samples=3")
    assert "3" in planned
    assert "a quarter of the Brier score" in checkout.run("-m", "sweeper", "spaces", "--losses")


@pytest.mark.integration
def test_a_figure_is_added_as_the_table_says(checkout: Checkout, tmp_path: Path) -> None:
    module, package = checkout.files("a report figure", name="trials_by_status")
    (checkout.folder / module).write_text(FIGURE)
    place = checkout.folder / package
    text = place.read_text()
    assert text.count("    trace_regularisation,\n") == 2, "the list of imports, and FIGURES"
    place.write_text(text.replace("    trace_regularisation,\n", "    trace_regularisation,\n    trials_by_status,\n"))
    assert checkout.touched() == {module, package}
    shutil.copytree(ROOT / "tests/fixtures/release_0_1/apart", tmp_path / "apart", symlinks=True)
    if not (tmp_path / "apart/tables").exists():
        (tmp_path / "apart/tables").symlink_to("generations/0001")
    checkout.run("-m", "sweeper", "report", str(tmp_path / "apart"))
    page = (tmp_path / "apart" / "report.html").read_text("utf-8")
    assert "trials-by-status" in page and "A planted figure." in page


def test_a_command_is_added_as_the_table_says(checkout: Checkout) -> None:
    group, _ = checkout.files("a command", group="surroundings")
    with (checkout.folder / group).open("a") as text:
        text.write(COMMAND)
    assert checkout.touched() == {group}
    assert checkout.run("-m", "sweeper", "greet", "Ada") == "hello Ada\n"
    assert "greet" in checkout.run("-m", "sweeper", "--help")


def test_folders_and_targets_are_there() -> None:
    assert len(FOLDERS) >= 20 and all((ROOT / folder).is_dir() for folder in FOLDERS)
    stages = {
        path.parent.relative_to(ROOT).as_posix() + "/" for path in PACKAGES if len(path.relative_to(ROOT).parts) == 3
    }
    assert stages - {"search_spaces/examples/"} <= set(FOLDERS), "every stage has its row"
    named = {word for line in re.findall(r"\bmake ([a-z -]+)", TEXT) for word in line.split()}
    targets = set(re.findall(r"^([a-z][a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"test", "check", "fuzz", "graph"} <= named & targets


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.relative_to(ROOT).as_posix())
def test_a_package_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), f"{path} does not say what its modules are for"
