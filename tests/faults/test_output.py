"""What cannot be printed is replaced, and a run's success does not depend on its summary."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.patience import patient
from tests.running import TINY, command, in_process, write_space

pytestmark = pytest.mark.integration

ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished sweep of two trials in `results`."""
    folder = tmp_path_factory.mktemp("finished")
    done = in_process("run", write_space(folder, TINY % 2), "--cpus", "1", "--no-mlflow", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def run(
    script: str, *arguments: str | Path, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command by a shell that changes its limits or its output first."""
    words = ["sh", "-c", script, "sh", *command(*arguments)]
    with (cwd / "out").open("w", encoding="utf-8") as out:
        return subprocess.run(
            words,
            cwd=cwd,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
            timeout=patient(240),
        )


@pytest.mark.parametrize(("encoding", "word"), zip(ENCODINGS, ("results", "show", "status"), strict=True))
def test_characters_that_a_terminal_lacks_are_replaced(finished: Path, encoding: str, word: str) -> None:
    done = run('"$@"', word, "small", cwd=finished, environment=ENCODINGS[encoding])
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


def test_a_run_ends_well_where_it_cannot_write_what_it_says(tmp_path: Path) -> None:
    done = run('"$@"', "run", write_space(tmp_path, TINY % 2), cwd=tmp_path, environment=ENCODINGS["C locale"])
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "out").read_text("utf-8", "replace")
    assert "results/small/report.html" in said and "2 finished" in said


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('"$@" > /dev/full', "the summary could not be printed: No space left on device; see `sweeper results small`"),
        ('exec "$@" >&- <&-', ""),
        ('ulimit -n 64; exec "$@"', ""),
    ],
)
def test_a_runs_success_does_not_depend_on_its_summary(tmp_path: Path, script: str, said: str) -> None:
    space = write_space(tmp_path, TINY % (24 if "-n" in script else 2))
    done = run(script, "run", space, "--no-mlflow", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and said in done.stderr
    assert bool(said) == ("could not be printed" in done.stderr)
    again = in_process("results", "small", "--sql", "SELECT count(*) AS n FROM trials", "-f", "csv", cwd=tmp_path)
    assert again.stdout.split() == ["n", "24" if "-n" in script else "2"]


def test_a_command_whose_answer_cannot_be_printed_says_so(finished: Path) -> None:
    done = run('"$@" > /dev/full', "results", "small", "-f", "json", cwd=finished)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["error: standard output: No space left on device", "  free space"]
    assert run('"$@" | head -1', "results", "small", "-f", "json", cwd=finished).stderr == ""
