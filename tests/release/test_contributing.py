"""CONTRIBUTING.md is true: its folders, targets and files are there, and changes made as it says need nothing else."""

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.release.distribution import ROOT, source_files
from tests.sweeper.synthetic_sweep import write_sweep

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

MEMBERS = {
    "a loss": "quarter",
    "a metric": "f1",
    "a post-hoc method": "power",
    "a curvature statistic": "condition",
    "a data set": "parity",
    "an evaluation split": "mirrored",
    "a network": "linear",
    "a domain": "lognormal",
}
"""A member of each family: the file of `members/` that is added, as a newcomer would write it."""

SPACE = {
    "dataset": "digits",
    "objective": {"metric": "val_f1"},
    "scheduler": {"name": "none", "max_epochs": 1},
    "samples": 1,
    "space": {
        "loss": {"name": "quarter", "focus": {"grid": [0.5, 2]}},
        "architecture": "linear",
        "optimizer": {"name": "sgd", "lr": {"lognormal": [0.05, 0.2]}},
    },
    "evaluation": {
        "posthoc": ["power"],
        "splits": ["val", "test", {"mirrored": {}}],
        "curvature": {"samples": 32, "lanczos_steps": 2, "trace_probes": 2},
    },
}

FIGURE = '''"""How many trials there are."""

from sweeper.reporting.figures.base import FIGURES, Figure, Panel, mark, names, quantity
from sweeper.results import Results


@FIGURES.add("trials_by_status", place=160, absent="Trials: none.")
def draw(results: Results) -> Figure | None:
    """Return the number of trials by status."""
    sql = "SELECT status, count(*) AS n FROM trials GROUP BY 1 ORDER BY 1"
    bars = mark("bar", results.rows(sql))
    panel = Panel("trials", [bars], names("status"), quantity("n", "trials", zero=True))
    return Figure("Trials by status", "A planted figure.", [sql], [panel], ["trials"])

'''

COMMAND = '''

def greet(name: str) -> CommandResult[str]:
    """Greet somebody."""
    return CommandResult(name, f"hello {name}")
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
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
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


def test_the_tours_twelve_files_define_what_it_names() -> None:
    rows = re.findall(r"^\| (\d+) \| `([^`]+)` \| ([^|]+) \|$", TEXT, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == [*range(1, 13)]
    for _, file, sentence in rows:
        name = re.findall(r"`(\w+(?:\.\w+)?)`", sentence)[0].split(".")[-1]
        assert re.search(rf"^ *(?:def|class) {name}\b", (ROOT / file).read_text("utf-8"), re.MULTILINE), (file, name)


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
    from sweeper.execution.driver.context import Sink

    said = next(how for name, _, how in CHANGES if name == "a sink")
    methods = {name for name in vars(Sink) if not name.startswith("_")}
    assert methods == set(re.findall(r"`(\w+)`", said.partition(" of ")[0]))


@pytest.mark.integration
def test_each_familys_member_is_one_file_that_everything_follows(checkout: Checkout, tmp_path: Path) -> None:
    for change, name in MEMBERS.items():
        (module,) = checkout.files(change, name=name)
        shutil.copy2(ROOT / "tests" / "release" / "members" / f"{name}.py", checkout.folder / module)
        assert module in checkout.touched()
    assert len(checkout.touched()) == len(MEMBERS)
    (tmp_path / "members.yaml").write_text(yaml.safe_dump(SPACE))
    checkout.run("-m", "sweeper", "run", str(tmp_path / "members.yaml"), "--output", str(tmp_path))
    wanted = "split, f1, posthoc_power_f1 AS again, posthoc_power_power AS power, hessian_training_condition AS curved"
    query = f"SELECT {wanted} FROM final ORDER BY split"
    found = checkout.run(
        "-m", "sweeper", "results", "members", "--output", str(tmp_path), "--format", "json", "--sql", query
    )
    rows = {row["split"]: row for row in json.loads(found)}
    assert set(rows) == {"val", "test", "mirrored"} and rows["val"]["curved"] > 1
    assert all(0 < row["f1"] == row["again"] < 1 and row["power"] == 2 for row in rows.values())
    rates = "SELECT config_optimizer_lr AS lr FROM trials"
    found = checkout.run(
        "-m", "sweeper", "results", "members", "--output", str(tmp_path), "--format", "json", "--sql", rates
    )
    assert 0.05 < json.loads(found)[0]["lr"] < 0.2
    _check_quantity(checkout, tmp_path)
    shown = checkout.run("-m", "sweeper", "show", "members", "c00000", "--output", str(tmp_path))
    assert "training κ" in shown and "macro F1" in shown
    made = ("--posthoc", "power", "--to", str(tmp_path / "model"))
    assert "power" in checkout.run("-m", "sweeper", "export", "members", "--output", str(tmp_path), *made)
    _check_executor(checkout, tmp_path)
    other = ("--set", "dataset=parity", "--set", "evaluation={splits: [val, test]}")
    assert "2 × 1 replicates" in checkout.run("-m", "sweeper", "plan", str(tmp_path / "members.yaml"), *other)


OF_PROBMETRICS = {"pm_t": "temp-scaling", "pm_mixed": "ts-mix", "pm_vector": "VectorScalingCalibrator", "pm_svs": "svs"}
"""Labels of columns, and methods of the package probmetrics."""


@pytest.mark.integration
def test_methods_of_another_package_are_one_member_ranked_beside_ours(checkout: Checkout, tmp_path: Path) -> None:
    pytest.importorskip("probmetrics.calibrators")
    (module,) = checkout.files("a post-hoc method", name="probmetrics")
    shutil.copy2(ROOT / "tests" / "release" / "members" / "probmetrics.py", checkout.folder / module)
    theirs = [{"name": "probmetrics", "method": of, "label": label} for label, of in OF_PROBMETRICS.items()]
    drawn = {"loss": "cross_entropy", "architecture": "mlp", "optimizer": {"name": "sgd", "lr": 0.1}}
    methods = {"posthoc": ["temperature", "vector", *theirs]}
    space = {**SPACE, "objective": {"metric": "val_nll"}, "space": drawn, "evaluation": methods}
    (tmp_path / "beside.yaml").write_text(yaml.safe_dump(space))
    checkout.run("-m", "sweeper", "run", str(tmp_path / "beside.yaml"), "--output", str(tmp_path), "--no-mlflow")
    place = ("--output", str(tmp_path), "--format", "json")
    query = "SELECT posthoc_temperature_nll AS ours, posthoc_pm_t_nll AS theirs FROM final WHERE split = 'test'"
    (row,) = json.loads(checkout.run("-m", "sweeper", "results", "beside", *place, "--sql", query))
    assert row["ours"] == pytest.approx(row["theirs"], abs=1e-6)
    ranked = json.loads(checkout.run("-m", "sweeper", "compare", "beside", "--by", "posthoc", *place))
    named = {f"probmetrics (method={method})" for method in OF_PROBMETRICS.values()}
    assert {row["method"] for row in ranked} == {"temperature", "vector", *named}
    again = ("--method", "probmetrics", "--option", "method=sms")
    checkout.run("-m", "sweeper", "recalibrate", "beside", *again, "--output", str(tmp_path))
    query = "SELECT nll FROM recalibrations WHERE method = 'probmetrics' AND split = 'test'"
    (row,) = json.loads(checkout.run("-m", "sweeper", "results", "beside", *place, "--sql", query))
    assert 0 < row["nll"] < 0.7


def _check_quantity(checkout: Checkout, tmp_path: Path) -> None:
    """Assert that a hyperparameter that is a γ by another name is γ in figures and labels."""
    report = "from sweeper.results import load; from sweeper.results.leaderboard import leaderboard; import sys\n"
    report += "from sweeper.reporting.figures.curvature_and_calibration import ece_against_gamma\n"
    report += "results = load('members', sys.argv[1]); board, draw = leaderboard(results), ece_against_gamma(results)\n"
    report += "print(*(board.describe(row) for row in board.rows), *(panel.heading for panel in draw.panels), sep='|')"
    found = checkout.run("-c", report, str(tmp_path)).strip().split("|")
    assert [word.partition(" · ")[0] for word in sorted(found)] == ["quarter", "γ 0.5", "γ 2"]


def _check_executor(checkout: Checkout, tmp_path: Path) -> None:
    """Assert that an executor is one file, on which a sweep runs to its end."""
    before, (module,) = checkout.touched(), checkout.files("an executor", name="inline")
    shutil.copy2(ROOT / "tests" / "release" / "members" / "inline.py", checkout.folder / module)
    assert checkout.touched() - before == {module}
    place = ("--name", "within", "--output", str(tmp_path), "--executor", "inline", "--no-mlflow")
    checkout.run("-m", "sweeper", "run", str(tmp_path / "members.yaml"), *place)
    assert json.loads((tmp_path / "within/manifest.json").read_text())["executor"] == "inline"


@pytest.mark.integration
def test_a_figure_is_added_as_the_table_says(checkout: Checkout, tmp_path: Path) -> None:
    (module,) = checkout.files("a report figure", name="trials_by_status")
    (checkout.folder / module).write_text(FIGURE)
    assert checkout.touched() == {module}
    write_sweep(tmp_path / "apart")
    checkout.run("-m", "sweeper", "report", str(tmp_path / "apart"))
    page = (tmp_path / "apart" / "report.html").read_text("utf-8")
    assert "trials-by-status" in page and "A planted figure." in page


@pytest.mark.integration
def test_a_command_is_added_as_the_table_says(checkout: Checkout) -> None:
    group, names = checkout.files("a command", group="housekeeping")[:2]
    with (checkout.folder / group).open("a") as text:
        text.write(COMMAND)
    with (checkout.folder / names).open("a") as text:
        text.write('GROUPS["Start"]["greet"] = COMMANDS["greet"] = "housekeeping"\n')
    assert checkout.touched() == {group, names}
    assert checkout.run("-m", "sweeper", "greet", "Ada") == "hello Ada\n"
    assert "greet" in checkout.run("-m", "sweeper", "--help")
    assert checkout.run("-c", "import sweeper; print(sweeper.greet('Ada').value)") == "Ada\n"


def test_folders_and_targets_are_there() -> None:
    assert len(FOLDERS) >= 20 and all((ROOT / folder).is_dir() for folder in FOLDERS)
    stages = {
        path.parent.relative_to(ROOT).as_posix() + "/" for path in PACKAGES if len(path.relative_to(ROOT).parts) == 3
    }
    assert stages - {"search_spaces/examples/"} <= set(FOLDERS), "every stage has its row"
    named = {word for line in re.findall(r"\bmake ([a-z -]+)", TEXT) for word in line.split()}
    targets = set(re.findall(r"^([a-z][a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"test", "check", "fuzz", "graph"} <= named & targets
