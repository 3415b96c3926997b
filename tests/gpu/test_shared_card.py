"""On a real card: four trials at a time, one of them made to run out; shares measured; replicates apart and together.

Run with `make check-gpu`.
"""

import json

import pytest
import torch

from sweeper.core.ids import SweepPaths
from sweeper.core.processes import prepare
from sweeper.execution.driver.gpu_shares import CardMemory, share_for
from sweeper.journal.journal import read_journal
from sweeper.results import load
from tests.running import metrics_by_key, reports, same, sweeper, write_space
from tests.shared_card import HUNGRY, run_on_one_card

pytestmark = pytest.mark.gpu

SPACE = """
dataset: {name: digits}
scheduler: {name: asha, max_epochs: 4, grace_epochs: 2, reduction_factor: 2}
samples: 4
replicates: 2
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: 3}]}
  architecture: {choice: [{name: mlp, width: 32}, resnet8]}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.1]}, momentum: 0.9, batch_size: 64}
resources: {cpu: 1, gpu: auto}
evaluation: {posthoc: [temperature], curvature: {samples: 64, lanczos_steps: 3, trace_probes: 2}, bootstrap: 0}
"""


def test_four_at_a_time_and_the_one_that_runs_out_goes_on_with_more_while_its_neighbours_do_not_notice(tmp_path):
    prepare(None)
    import ray

    def eat(share):
        total = torch.cuda.get_device_properties(0).total_memory
        ballast = torch.empty(int(0.4 * total), dtype=torch.uint8, device="cuda")
        del ballast

    ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        failed = run_on_one_card(tmp_path, "cuda", eat, slots=4)
    finally:
        ray.shutdown()
    assert [(body["configuration"], body["kind"], body["share"]) for body in failed] == [
        (HUNGRY, "gpu_out_of_memory", 0.5)
    ]


def test_a_sweep_measures_its_networks_once_and_shares_the_card_accordingly(tmp_path):
    done = sweeper("run", write_space(tmp_path, SPACE), "--name", "s", "--no-mlflow", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    paths = SweepPaths(tmp_path / "results" / "s")
    kept = {path: path.read_text() for path in paths.card_memory.glob("*.json")}
    assert kept
    for text in kept.values():
        memory = CardMemory(**json.loads(json.loads(text)["answer"]))
        assert 0 < memory.used_bytes < memory.total_bytes and memory.card == torch.cuda.get_device_name()
        assert 0 < share_for(memory) <= 1
    assert {row["device"] for row in load(paths.root).rows("SELECT device FROM trials")} == {"cuda"}
    assert not [record for record in read_journal(paths.journal) if record.kind == "failed"]
    again = sweeper("resume", "s", "--no-mlflow", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert kept == {path: path.read_text() for path in paths.card_memory.glob("*.json")}


def test_replicates_apart_on_shares_of_the_card_measure_what_they_measure_together(tmp_path):
    space = write_space(tmp_path, SPACE)
    measured = {}
    for packing in ("sequential", "trials"):
        chosen = ("--set", f"replicates.packing={packing}", "--set", "scheduler.name=none")
        done = sweeper("run", space, "--name", packing, "--no-mlflow", *chosen, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        measured[packing] = metrics_by_key(reports(SweepPaths(tmp_path / "results" / packing)))
    together, apart = measured["sequential"], measured["trials"]
    assert together.keys() == apart.keys()
    for key, row in together.items():
        for name in ("val_nll", "val_accuracy"):
            if name in row:
                assert same(row[name], apart[key][name]) or row[name] == pytest.approx(apart[key][name], rel=0.05), key
