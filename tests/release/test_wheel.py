"""The wheel and the source distribution: whole, and at work where there is no checkout."""

import json
import sqlite3
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from search_spaces import packaged_files
from sweeper.results import load
from tests.release.check_release import VERSION
from tests.release.distribution import build, clean_environment, copy_of_the_sources, install, source_files

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(sources, tmp_path_factory.mktemp("dist"), "wheel")


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a program of the wheel's environment in an empty folder with an empty home."""
    root = tmp_path_factory.mktemp("away")
    programs = install(wheel, root / "environment")
    (root / "empty").mkdir()

    def runs(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        arguments = [str(programs / command[0]), *command[1:]]
        done = subprocess.run(
            arguments,
            cwd=root / "empty",
            env=clean_environment(root / "home"),
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return runs


@pytest.mark.integration
def test_the_wheel_holds_packages_spaces_and_data_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"calibration_sweeper-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    packages = ("sweeper/", "trainables/", "search_spaces/")
    assert held == {path for path in source_files() if path.startswith(packages)}


@pytest.mark.integration
def test_the_source_distribution_is_the_repository(sources: Path, tmp_path: Path) -> None:
    archive = build(sources, tmp_path, "sdist")
    with tarfile.open(archive) as held:
        names = {name.partition("/")[2] for name in held.getnames() if held.getmember(name).isfile()}
    assert set(source_files()) <= names
    assert {name for name in names - set(source_files()) if "egg-info" not in name} <= {"PKG-INFO", "setup.cfg"}


@pytest.mark.integration
def test_the_command_works_from_anywhere(run: Run) -> None:
    assert run("sweeper", "--version").stdout == f"sweeper {VERSION}\n"
    assert run("python", "-m", "sweeper", "--version").stdout == f"sweeper {VERSION}\n"
    where = run("python", "-c", "import sweeper, trainables, search_spaces as s; print(sweeper.__file__, s.FOLDER)")
    assert where.stdout.count("site-packages") == 2
    listed = run("sweeper", "spaces").stdout
    assert all(name in listed for name in packaged_files())


@pytest.mark.integration
def test_completion_knows_commands_and_shells(run: Run) -> None:
    for shell in ("bash", "zsh", "fish"):
        run("sweeper", "--install-completion", "--shell", shell, "--output", "completion")
        assert "recalibrate" in run("python", "-c", "print(open('completion').read())").stdout


@pytest.mark.slow
def test_a_sweep_runs_where_there_is_no_checkout(run: Run) -> None:
    tiny = {"samples": 2, "replicates": 1, "which": "[]", "scheduler": "{name: none, max_epochs: 2}"}
    overrides = [part for key, value in tiny.items() for part in ("--set", f"{key}={value}")]
    done = run("sweeper", "run", "quickstart", *overrides, "--set", "space.architecture=mlp")
    assert "report.html" in done.stdout
    folder = Path(run("python", "-c", "import os; print(os.getcwd())").stdout.strip(), "results", "quickstart")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["versions"]["calibration-sweeper"] == VERSION and manifest["git"] is None
    assert {row["status"] for row in load(folder).rows("SELECT status FROM trials")} == {"completed"}
    with closing(sqlite3.connect(folder.parent / "mlflow.db")) as store:
        tagged = store.execute("SELECT value, count(*) FROM tags WHERE key = 'version' GROUP BY value").fetchall()
    assert tagged == [(VERSION, 3)], "the parent and both trials say which release made them"
    again = run("sweeper", "results", "quickstart", "--sql", "SELECT count(*) AS n FROM final", "--format", "csv")
    assert again.stdout.split() == ["n", "4"]
