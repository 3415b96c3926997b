"""Taking results home from the command line and from Python, and answers of commands that have ended."""

from pathlib import Path

import pytest

import sweeper
from sweeper.api.finished import FinishedRun
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import run_sweep
from tests.running import in_process, write_space


def test_commands_write_what_functions_write(quickstart_folder, tmp_path):
    made = str(quickstart_folder)
    drawn = in_process("figure", made, "importance", "--to", "a.svg", cwd=tmp_path)
    assert (drawn.returncode, drawn.stdout) == (0, "a.svg\n"), drawn.stderr
    sweeper.figure(made, "importance", tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    printed = in_process("figure", made, "table", "--format", "latex", cwd=tmp_path)
    assert printed.stdout == sweeper.figure(made, "table", form="latex") + "\n"
    refused = in_process("export", "nothing", "--to", "model", cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.startswith("error: ") and "nothing" in refused.stderr
    assert not (tmp_path / "model").exists()


SPACE = """
dataset: {name: digits}
scheduler: {name: none, max_epochs: 1}
samples: 1
retries: 0
space:
  loss: {name: cross_entropy}
  architecture: {name: mlp, width: 16}
  optimizer: {name: sgd, lr: 1.0e+30, momentum: 0.9, batch_size: 128}
evaluation: {bins: 15, curvature: false, bootstrap: 0}
"""


@pytest.mark.integration
def test_a_trial_that_diverged_is_not_offered_a_retry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sweeper.api.printing import display

    options = RunOptions(str(tmp_path / "results"), cpus=1)
    outcome = run_sweep(write_space(tmp_path, SPACE), [], "s", options)
    done = FinishedRun(outcome, str(tmp_path / "results"), options.timings)
    assert done.counts["failed"] == 1 and done.retriable == 0
    assert display(done) == 1
    said = capsys.readouterr().out
    assert "failed: c00000" in said and "--failed" not in said
    assert "1 failed trial diverged; retries would diverge again" in said
    assert "retries failed trials" not in repr(done)
