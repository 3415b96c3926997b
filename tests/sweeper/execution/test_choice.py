"""Which executor carries a sweep's trials out."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest

from sweeper.core.errors import SweeperError
from sweeper.execution.choice import check_can_start, runs_here
from sweeper.execution.options import RunOptions
from sweeper.execution.ray.address import RayUnavailable
from sweeper.space.parts import Resources
from tests.running import in_process, write_space

ON_PROCESSORS = Resources(gpu=0)


@pytest.mark.parametrize(
    ("executor", "address", "gpu", "here"),
    [
        ("auto", None, 0, True),
        ("local", None, 0, True),
        ("ray", None, 0, False),
        ("auto", "127.0.0.1:6379", 0, False),
        ("auto", None, 0.25, False),
        ("ray", None, 0.25, False),
    ],
)
def test_trials_run_here_without_a_cluster_and_without_cards(executor, address, gpu, here):
    assert runs_here(RunOptions("results", address, executor=executor), Resources(gpu=gpu)) is here


def test_a_cluster_that_the_program_has_joined_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    assert not runs_here(RunOptions("results"), ON_PROCESSORS)
    assert runs_here(RunOptions("results", executor="local"), ON_PROCESSORS), "unless it is asked for"


@pytest.mark.parametrize(
    ("address", "gpu", "said"),
    [
        ("10.0.0.1:6379", 0, "the executor is local, but the cluster is 10.0.0.1:6379"),
        (None, 0.5, "resources.gpu = 0.5, and the local executor does not allocate GPUs"),
    ],
)
def test_what_the_local_executor_cannot_do_is_refused(address, gpu, said):
    with pytest.raises(SweeperError, match=said):
        runs_here(RunOptions("results", address, executor="local"), Resources(gpu=gpu))


@pytest.mark.parametrize(
    ("resources", "executor", "said"),
    [
        (Resources(gpu=1), "auto", "a trial needs 1 cpu, 1 gpu"),
        (Resources(cpu=10**6, gpu=0), "auto", "a trial needs 1e\\+06 cpu"),
        (Resources(cpu=10**6, gpu=0), "ray", "a trial needs 1e\\+06 cpu"),
    ],
)
def test_a_trial_that_cannot_fit_is_refused_before_anything_is_begun(monkeypatch, resources, executor, said):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    options = RunOptions("results", executor=executor)
    with pytest.raises(SweeperError, match=said):
        check_can_start(options, resources, here=runs_here(options, resources))


@pytest.mark.parametrize(
    "address", ["ray://127.0.0.1:1", "127.0.0.1:1", "[::1]:1", "http://127.0.0.1:8265", "x..y:6379"]
)
def test_an_address_where_nobody_answers_is_refused_before_anything_is_begun(address):
    with pytest.raises(RayUnavailable, match="no Ray cluster could be joined at"):
        check_can_start(RunOptions("results", address), ON_PROCESSORS, here=False)


def test_what_fits_or_only_a_cluster_can_tell_is_let_through():
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = RunOptions("results", f"127.0.0.1:{server.getsockname()[1]}")
        check_can_start(there, Resources(cpu=10**6, gpu=8), here=False)
    for address in ("auto", "local"):
        check_can_start(RunOptions("results", address), Resources(gpu=8), here=False)
    check_can_start(RunOptions("results"), ON_PROCESSORS, here=True)


@pytest.mark.parametrize(
    "fault",
    [
        ["--output", "ftp://host/results"],
        ["--output", "file:///results"],
        ["--tracking-uri", "nosuch://x"],
        ["--set", "resources.gpu=1"],
        ["--set", "resources.cpu=1000000"],
        ["--address", "ray://127.0.0.1:1"],
    ],
)
def test_nothing_was_started_means_nothing(tmp_path, monkeypatch, fault):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    space = write_space(tmp_path)
    done = in_process("run", space, "--name", "far", *fault, cwd=tmp_path)
    assert done.returncode in (1, 2) and done.stderr.startswith("error: "), done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != "mlflow.db"] == [space.name]


def test_a_driver_that_fails_before_its_first_record_gives_the_name_back(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise SweeperError("Ray could not be started on this machine: no", "do")

    monkeypatch.setattr("sweeper.execution.assembly.DriverContext.run", broken)
    space = write_space(tmp_path)
    done = in_process("run", space, "--name", "far", "--no-mlflow", cwd=tmp_path)
    assert done.returncode == 2 and "nothing was started" in done.stderr
    assert [*(tmp_path / "results").iterdir()] == []
