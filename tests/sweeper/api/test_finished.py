"""What a run that has ended offers: a retry only to trials that may end otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.api.finished import FinishedRun
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import run_sweep
from tests.running import shared_server, write_space

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
    outcome = run_sweep(write_space(tmp_path, SPACE), [], "s", options, shared_server())
    done = FinishedRun(outcome, str(tmp_path / "results"), options.timings)
    assert done.counts["failed"] == 1 and done.retriable == 0
    assert display(done) == 1
    said = capsys.readouterr().out
    assert "failed: c00000" in said and "--failed" not in said
    assert "1 failed trial diverged; retries would diverge again" in said
    assert "retries failed trials" not in repr(done)
