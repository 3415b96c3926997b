"""Which executor a run takes, and a driver that dies between the last report and the end."""

import shutil
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from sweeper.core.errors import SweeperError
from sweeper.execution.driver.capacity import RayUnavailable
from sweeper.execution.driver.executor import executor_named
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import chosen_executor, to_continue
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Ended
from sweeper.space.loading import load_spec
from sweeper.space.spec import Resources
from sweeper.storage.lookup import find_sweep
from tests.running import SPACE, in_process, sweeper, write_space
from tests.sweeper.inline_sweep import Inline
from tests.sweeper.records import fields, record_names


@pytest.mark.integration
def test_resume_tells_the_end(tmp_path: Path) -> None:
    Inline(tmp_path).run("small")
    paths = find_sweep("small", tmp_path / "results")
    before = [record.kind for record in read_journal(paths.journal)]
    assert before[-1] == "ended"
    (paths.journal / record_names(paths.journal)[-1]).unlink()
    done = sweeper("resume", "small", "--no-mlflow", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = [*read_journal(paths.journal)]
    assert [record.kind for record in records] == [*before[:-1], "attempt", "ended"]
    assert fields(records[-1])["outcome"] == "finished"
    assert "starting Ray" not in done.stderr
    assert in_process("resume", "small", "--no-mlflow", cwd=tmp_path).returncode == 0
    assert len(record_names(paths.journal)) == len(records), "once is enough"


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
    chosen = chosen_executor(RunOptions("results", address, executor=executor), Resources(gpu=gpu))
    assert chosen.name == ("local" if here else "ray")


def test_a_cluster_that_the_program_has_joined_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    assert chosen_executor(RunOptions("results"), ON_PROCESSORS).name == "ray"
    assert chosen_executor(RunOptions("results", executor="local"), ON_PROCESSORS).name == "local", "if asked for"


@pytest.mark.parametrize(
    ("address", "gpu", "said"),
    [
        ("10.0.0.1:6379", 0, "the executor is local, but the cluster is 10.0.0.1:6379"),
        (None, 0.5, "resources.gpu = 0.5, but the local executor does not allocate GPUs"),
    ],
)
def test_what_the_local_executor_cannot_do_is_refused(address, gpu, said):
    with pytest.raises(SweeperError, match=said):
        chosen_executor(RunOptions("results", address, executor="local"), Resources(gpu=gpu))


@pytest.mark.parametrize("name", ["slurm", "driver", "runner", "x y"])
def test_an_executor_that_there_is_not_is_refused(name):
    with pytest.raises(SweeperError, match=f"there is no executor '{name}'"):
        chosen_executor(RunOptions("results", executor=name), ON_PROCESSORS)


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
        chosen_executor(options, resources).check(resources)


@pytest.mark.parametrize(
    "address", ["ray://127.0.0.1:1", "127.0.0.1:1", "[::1]:1", "http://127.0.0.1:8265", "x..y:6379"]
)
def test_an_address_where_nobody_answers_is_refused_before_anything_is_begun(address):
    with pytest.raises(RayUnavailable, match="no Ray cluster could be joined at"):
        executor_named("ray")(RunOptions("results", address)).check(ON_PROCESSORS)


def test_what_fits_or_only_a_cluster_can_tell_is_let_through():
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = RunOptions("results", f"127.0.0.1:{server.getsockname()[1]}")
        executor_named("ray")(there).check(Resources(cpu=10**6, gpu=8))
    for address in ("auto", "local"):
        executor_named("ray")(RunOptions("results", address)).check(Resources(gpu=8))
    executor_named("local")(RunOptions("results")).check(ON_PROCESSORS)


@pytest.mark.parametrize(
    "fault",
    [
        ["--output", "ftp://host/results"],
        ["--output", "file:///results"],
        ["--tracking-uri", "nosuch://x"],
        ["--set", "resources.gpu=1"],
        ["--set", "resources.cpu=1000000"],
        ["--ray", "ray://127.0.0.1:1"],
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

    monkeypatch.setattr("sweeper.execution.attempt.Attempt.run", broken)
    space = write_space(tmp_path)
    done = in_process("run", space, "--name", "far", "--no-mlflow", cwd=tmp_path)
    assert done.returncode == 2 and "nothing was started" in done.stderr
    assert [*(tmp_path / "results").iterdir()] == []


def test_a_results_folder_that_is_removed_meanwhile_is_named(tmp_path, monkeypatch):
    def removed(context, executor):
        journal = context.mirror.journal(alone=True)
        shutil.rmtree(context.sweep.paths.root)
        journal.append(Ended(1, "finished", ""))

    monkeypatch.setattr("sweeper.execution.attempt.Attempt.run", removed)
    done = in_process("run", write_space(tmp_path), "--name", "far", "--no-mlflow", cwd=tmp_path)
    assert done.returncode == 2 and "journal was removed while the sweep ran" in done.stderr
    assert "nothing was started" not in done.stderr and "every record" not in done.stderr


def kept(folder: Path, space: Path, name: str) -> None:
    """Leave what a sweep of a search space leaves at its start."""
    (folder / name).mkdir(parents=True)
    (folder / name / "sweep.yaml").write_text(yaml.safe_dump(load_spec(space).resolved()))


def test_a_name_that_is_free_is_begun_and_one_of_the_same_space_continued(tmp_path: Path) -> None:
    space, output = write_space(tmp_path), tmp_path / "results"
    assert to_continue(str(space), [], None, str(output), rehearse=False) == ("small", False)
    kept(output, space, "small")
    assert to_continue(str(space), [], None, str(output), rehearse=False) == ("small", True)
    assert to_continue(str(space), [], "other", str(output), rehearse=False) == ("other", False)


@pytest.mark.parametrize(("override", "key"), [("seed=77", "seed"), ("space.optimizer.lr=0.123", "space")])
def test_another_search_space_is_another_sweep(tmp_path: Path, override: str, key: str) -> None:
    space, output = write_space(tmp_path, SPACE), tmp_path / "results"
    kept(output, space, "small")
    with pytest.raises(SweeperError, match=f"another search space: {key} differ"):
        to_continue(str(space), [override], None, str(output), rehearse=False)
    assert to_continue(str(space), ["budget.gpu_hours=3"], None, str(output), rehearse=False) == ("small", True)
