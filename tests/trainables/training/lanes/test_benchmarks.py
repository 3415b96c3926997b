"""The benchmarks of lanes run as they stand; what they cannot measure here they say in a sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks import bench_lanes_gpu
from tests.benchmarks.bench_lanes_gpu import FRACTIONS, Job, Utilisation, jobs, prepare, train
from tests.benchmarks.lane_memory import megabytes_a_lane, peak_megabytes
from trainables.training.acceleration import TrainingSettings
from trainables.training.lanes.cohort import Lanes
from trainables.training.lanes.packing import FUSED, SEQUENTIAL, Sequential

ROOT = Path(__file__).resolve().parents[4]
COMMON = {
    "network": "resnet20",
    "steps": 1,
    "batch_size": 4,
    "device": "cpu",
    "training": TrainingSettings(),
    "options": {"width": 0.25},
}


def _run(*arguments, timeout=600):
    command = [sys.executable, "-m", "tests.benchmarks.bench_lanes_gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def test_without_a_card_it_says_so_in_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench_lanes_gpu"])
    with pytest.raises(SystemExit, match=r"^bench-lanes-gpu needs a CUDA card, and torch sees none; .* --smoke$"):
        bench_lanes_gpu.main()


@pytest.mark.parametrize("way", [FUSED, SEQUENTIAL, FRACTIONS])
def test_a_way_trains_all_replicates(way):
    ready = jobs(way, 2, COMMON)
    assert sorted(seed for job in ready for seed in job.seeds) == [0, 1]
    assert [job.share for job in ready] == ([0.5, 0.5] if way == FRACTIONS else [1.0])
    for job in ready:
        prepare(job)
        group = bench_lanes_gpu._held["group"]
        assert isinstance(group, Lanes if job.packing == FUSED else Sequential) and train("cpu") == 0.0


def test_a_process_is_capped_at_its_share(monkeypatch):
    class CappedError(Exception):
        pass

    def cap(share):
        raise CappedError(share)

    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", cap)
    with pytest.raises(CappedError, match=r"0\.25"):
        prepare(Job(seeds=(0,), packing=SEQUENTIAL, share=0.25, **{**COMMON, "device": "cuda"}))


def test_utilisation_is_asked_of_nvidia_smi(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 42, 310.5\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with Utilisation("cuda") as seen:
        seen._end.wait(0.7)
    assert seen.text.strip() in ("42 % busy, 310 W", "unknown")
    assert seen._samples and set(seen._samples) == {(42.0, 310.5)}
    with Utilisation("cpu") as unseen:
        pass
    assert unseen.text == "unknown"


def test_memory_a_lane_is_a_slope():
    assert megabytes_a_lane([1, 2, 5, 10], [11.0, 14.0, 23.0, 38.0]) == pytest.approx(3.0)
    assert peak_megabytes("mlp", 2, FUSED) >= 0


@pytest.mark.slow
def test_the_command_runs_on_a_cpu():
    done = _run("--device", "cpu", "--smoke")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "samples/s" in line]
    assert len(rows) == 12 and "smoke: figures mean nothing" in done.stdout
