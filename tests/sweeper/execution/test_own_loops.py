"""Whole sweeps of training loops of users' own: wrong ones harm no others, and killed ones lose nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.core.labels import number
from sweeper.journal.journal import read_journal
from sweeper.results import load
from sweeper.scheduling.base import audit
from sweeper.space.configurations import configurations_of
from sweeper.space.loading import reopened_spec
from sweeper.storage.metadata import read_specification
from tests.patience import patient
from tests.running import in_process, started, sweeper, wait_for_records
from tests.trainables.training.test_own_loop import LOOPED

pytestmark = pytest.mark.integration

WRONG = (
    LOOPED
    + """
import os, signal, time

class Wrong(Loop):
    def __init__(self, configuration, *, seed):
        super().__init__({"lr": 0.1}, seed=seed)
        self.how, self.epoch = configuration["how"], 0
    def state_dict(self): return {**super().state_dict(), "epoch": self.epoch}
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.epoch = state["epoch"]
    def train_epoch(self):
        self.epoch += 1
        if self.how == "raises" and self.epoch == 7: raise RuntimeError("something broke")
        if self.how == "hangs" and self.epoch == 3: time.sleep(3600)
        if self.how == "dies" and self.epoch == 2: os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "prints":
            for number in range(1_000_000): print(number)
        if self.how == "workers":
            data = torch.utils.data.DataLoader(list(range(100)), batch_size=10, num_workers=2)
            assert sum(len(batch) for batch in data) == 100
        return super().train_epoch()
    def predict(self, split):
        logits, targets = super().predict(split)
        bad = {
            "shape": (logits.flatten(), targets), "nan": (logits * float("nan"), targets), "far": (logits, targets + 5),
        }
        return bad.get(self.how, (logits, targets)) if self.epoch > 1 else (logits, targets)
"""
)

SPACE = """
loop: "wrong:Wrong"
scheduler: {name: none, max_epochs: 8}
space: {how: {grid: [fine, shape, nan, far, raises, hangs, dies, prints, workers]}}
resources: {gpu: 0}
retries: 1
hang_timeout: 5
evaluation: {bootstrap: 0}
"""

SAID = {
    "shape": r"wrong:Wrong: predict('val') returns shapes [180] and [60]; ",
    "nan": "val_nll of replicate 0 is nan in epoch 2",
    "far": "wrong:Wrong: predict('val') returns targets from 5 to 7; 3 logits allow 0 to 2",
    "raises": "RuntimeError: something broke (after 2 tries)",
    "hangs": "its process did no work for 5 s",
    "dies": "its process was ended by SIGKILL (after 2 tries)",
}


def test_wrong_loops_fail_with_a_sentence_each_and_the_others_finish(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "wrong.yaml").write_text(SPACE)
    done = in_process("run", "wrong.yaml", "--no-mlflow", cwd=tmp_path)
    assert "9 trials: 3 finished, 6 failed" in done.stdout, done.stdout + done.stderr
    rows = load("wrong", tmp_path / "results").table("trials").to_pylist()
    found = {row["config_how"]: (row["status"], row["error"]) for row in rows}
    assert {how for how, (status, _) in found.items() if status == "completed"} == {"fine", "prints", "workers"}
    for how, said in SAID.items():
        assert found[how][0] == "failed" and said in found[how][1], found[how]
    assert (tmp_path / "results" / "wrong" / "sweeper.log").stat().st_size < 2_000_000


KILLED = """
loop: "looped:Shown"
scheduler: {name: asha, max_epochs: 9, grace_epochs: 1, reduction_factor: 3}
samples: 6
replicates: 2
seed: 3
space: {lr: {loguniform: [0.01, 1]}, loss: {choice: [cross_entropy, focal]}}
resources: {gpu: 0}
checkpoint: {every_seconds: 0}
evaluation: {bootstrap: 0, posthoc: [temperature], curvature: {samples: 30, lanczos_steps: 3, trace_probes: 2}}
"""


def _measured(folder: Path, name: str, table: str) -> dict[tuple[object, ...], dict[str, object]]:
    rows = load(name, folder / "results").table(table).to_pylist()
    keys = ("trial", "replicate", "epoch", "split", "sample")
    return {tuple(row.get(k) for k in keys): {k: v for k, v in row.items() if "seconds" not in k} for row in rows}


def test_a_killed_loop_resumes_to_the_bit_on_both_executors(tmp_path):
    (tmp_path / "looped.py").write_text(LOOPED)
    (tmp_path / "killed.yaml").write_text(KILLED)
    arguments = ["run", "killed.yaml", "--no-mlflow", "--executor"]
    assert in_process(*arguments, "local", "--name", "whole", cwd=tmp_path).returncode == 0
    assert sweeper(*arguments, "ray", "--name", "on-ray", cwd=tmp_path).returncode == 0
    paths = SweepPaths(tmp_path / "results" / "killed")
    with started(*arguments, "local", "--name", "killed", cwd=tmp_path) as process:
        wait_for_records(paths, 8, process)
        process.send_signal(signal.SIGKILL)
        process.wait(patient(30))
    (tmp_path / "looped.py").write_text("raise RuntimeError('edited since')")
    resumed = sweeper("resume", "killed", "--no-mlflow", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    for table in ("epochs", "evaluations", "predictions"):
        whole = _measured(tmp_path, "whole", table)
        for other in ("killed", "on-ray"):
            assert {key: repr(row) for key, row in _measured(tmp_path, other, table).items()} == {
                key: repr(row) for key, row in whole.items()
            }
    spec = reopened_spec(read_specification(paths.sweep_file, required=True), "killed")
    checked, differences = audit(spec.schedule, list(read_journal(paths.journal)))
    assert checked >= 6 and not differences


WHOLE_ENDS = """
loop: "looped:Told"
scheduler: {name: none, max_epochs: 1}
samples: 4
seed: 3
searcher: SEARCHER
space: {lr: {uniform: [0, 1]}, width: {loguniform: [1, 10]}, step: {quniform: [0, 1, 0.25]}, rank: {randint: [1, 8]}}
resources: {gpu: 0}
evaluation: {bootstrap: 0, posthoc: []}
"""

TOLD = """
class Told(Loop):
    def train_epoch(self):
        return {**super().train_epoch(), **{"told_" + k: float(v) for k, v in self.given.items() if k != "seed"}}
"""


@pytest.mark.parametrize("searcher", ["random", "{name: optuna, startup: 2}"])
def test_what_is_trained_is_what_journal_tables_and_show_say_with_whole_ends(tmp_path, searcher):
    (tmp_path / "looped.py").write_text(LOOPED + TOLD)
    (tmp_path / "whole.yaml").write_text(WHOLE_ENDS.replace("SEARCHER", searcher))
    done = in_process("run", "whole.yaml", "--no-mlflow", cwd=tmp_path)
    assert "4 trials: 4 finished" in done.stdout, done.stdout + done.stderr
    output = tmp_path / "results"
    trials = {row["trial"]: row for row in load("whole", output).table("trials").to_pylist()}
    spec = reopened_spec(read_specification(SweepPaths(output / "whole").sweep_file, required=True), "whole")
    kept = configurations_of(spec, SweepPaths(output / "whole").journal)
    for row in load("whole", output).table("epochs").to_pylist():
        own = kept[int(row["trial"][1:])]
        text = in_process("show", "whole", row["trial"], cwd=tmp_path).stdout
        for key, value in ((key, own[key]) for key in ("lr", "width", "step", "rank")):
            assert value == row[f"told_{key}"] == trials[row["trial"]][f"config_{key}"]
            assert number(value) in text
            assert type(value) is (int if key == "rank" else float)
    assert any(not row["config_lr"].is_integer() for row in trials.values())
