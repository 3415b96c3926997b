"""Which executor a run takes, a driver that dies between the last report and the end, and `confirm: n`."""

from __future__ import annotations

import shutil
import socket
import sys
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sweeper as api
from sweeper.analysis.selection import (
    best_set_line,
    candidates,
    confirmation_of,
    confirmations_of,
    confirmed_value,
    left_after,
)
from sweeper.core.errors import InvalidSearchSpace, SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.execution.driver.capacity import RayUnavailable
from sweeper.execution.driver.executor import executor_named
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import chosen_executor, confirming_spec, run_sweep
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Ended
from sweeper.planning.plan import plan
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.listing import headline
from sweeper.space.loading import build_spec
from sweeper.space.parts import Resources
from sweeper.storage.lookup import find_sweep
from tests.running import in_process, sweeper, write_space
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


def test_a_second_interruption_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sweeper.execution.attempt.Attempt.run", interrupted)
    monkeypatch.setattr("sweeper.execution.runner.early_server", lambda *_: nullcontext())
    options = RunOptions(tmp_path / "out", executor="ray")
    with pytest.raises(KeyboardInterrupt):
        run_sweep(write_space(tmp_path), [], "mine", options)
    said = capfd.readouterr().err
    assert f"continue with `sweeper resume mine --output {tmp_path / 'out'}`" in said


def test_advice_names_the_output_where_it_has_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert SweepPaths(tmp_path / "results" / "small").in_commands == "small"
    assert SweepPaths(Path("results/small")).in_commands == "small"
    assert SweepPaths(tmp_path / "my results" / "small").in_commands == f"small --output '{tmp_path}/my results'"


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
        (None, 0.5, "resources.gpu = 0.5, and the local executor does not allocate GPUs"),
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


SPACE: dict[str, Any] = {
    "dataset": {"name": "digits"},
    "objective": {"metric": "val_nll", "mode": "min"},
    "scheduler": {"name": "asha", "max_epochs": 4, "grace_epochs": 1, "reduction_factor": 2},
    "samples": 4,
    "replicates": 2,
    "confirm": 3,
    "space": {
        "loss": {"name": "focal", "gamma": {"uniform": [0.5, 5]}},
        "architecture": "mlp",
        "optimizer": {"name": "sgd", "lr": {"loguniform": [0.01, 0.3]}, "batch_size": 256},
    },
    "evaluation": {"posthoc": [], "curvature": False},
}

ROWS = "SELECT nll FROM final WHERE split = 'val' AND trial = 'c00000' ORDER BY replicate"


@pytest.mark.integration
def test_the_best_are_trained_again_on_seeds_that_chose_nothing(tmp_path: Path) -> None:
    api.run(SPACE, name="one", output=tmp_path, tracking_uri="none")
    first, again = Results(tmp_path / "one"), Results(tmp_path / "one-confirmed")
    board = leaderboard(first)
    chosen = candidates(first, board)
    assert again.specification["confirms"]["sweep"] == "one"
    trials = [f"c{number:05d}" for number in again.specification["confirms"]["configurations"]]
    assert trials == chosen[: len(trials)] and confirmation_of(first) is not None
    hashes = {name: {row["trial"]: row["config_hash"] for row in found.rows("SELECT * FROM trials")}
              for name, found in (("first", first), ("again", again))}  # fmt: skip
    assert [hashes["again"][f"c{at:05d}"] for at in range(len(trials))] == [hashes["first"][trial] for trial in trials]
    seeds = [{row["seed"] for row in found.rows("SELECT seed FROM trials")} for found in (first, again)]
    assert seeds[0].isdisjoint(seeds[1]) and len(seeds[1]) == 3 * len(trials)
    rows = again.rows(ROWS)
    value = float(np.mean([float(str(row["nll"])) for row in rows]))
    line = best_set_line(first, board)
    assert line.startswith("Confirmed on 3 fresh seeds each by one-confirmed: ")
    said = headline(board, confirmed_value(first, board))
    assert (
        f"validation NLL {value:.3g} (95 % " in said
        and "on the seeds that picked it" in said
        and "3 fresh seeds" in said
    )

    shutil.rmtree(tmp_path / "one-confirmed")
    assert confirmation_of(first) is None
    api.resume("one", output=tmp_path, tracking_uri="none")
    once_more = Results(tmp_path / "one-confirmed").rows(ROWS)
    assert once_more == rows, "the same configurations and seeds, whenever they are confirmed"


@pytest.mark.integration
def test_those_that_may_be_the_best_get_more_seeds_until_one_is_left_or_all_are_given(tmp_path: Path) -> None:
    space = {**SPACE, "confirm": {"count": 2, "at_most": 7}, "objective": {"metric": "val_accuracy", "mode": "max"}}
    api.run(space, name="one", output=tmp_path, tracking_uri="none")
    first = Results(tmp_path / "one")
    rounds, board = confirmations_of(first), leaderboard(first)
    named = [each.specification["confirms"]["configurations"] for each in rounds]
    assert 1 <= len(rounds) <= 3 and all(set(later) <= set(earlier) for earlier, later in pairwise(named))
    assert len(rounds) == 3 or len(left_after(first, board)) == 1, "seeds went on while more than one was left"
    seeds = [{row["seed"] for row in each.rows("SELECT seed FROM trials")} for each in [first, *rounds]]
    assert len(set.union(*seeds)) == sum(map(len, seeds)), "every round's seeds are fresh"
    assert not any(api.status(each.name, output=tmp_path, audit=True).value for each in rounds)
    line, rows = best_set_line(first, board), rounds[-1].rows("SELECT seed FROM trials ORDER BY ALL")
    told = f"up to {2 * len(rounds)} fresh seeds each, in {len(rounds)} rounds, by one-confirmed"
    assert (told in line) is (len(rounds) > 1)

    shutil.rmtree(rounds[-1].folder)
    assert len(confirmations_of(first)) == len(rounds) - 1
    api.resume("one", output=tmp_path, tracking_uri="none")
    again = confirmations_of(first)[-1]
    assert again.rows("SELECT seed FROM trials ORDER BY ALL") == rows
    assert best_set_line(first, board) == line, "the same seeds and the same answer, whenever it is resumed"


def test_rounds_of_seeds_are_written_shortly_and_checked() -> None:
    spec = build_spec({**SPACE, "confirm": {"count": 3, "at_most": 8}})
    assert spec.resolved()["confirm"] == {"count": 3, "at_most": 8} and spec.confirm.total == 6
    assert build_spec(spec.resolved()) == spec
    assert build_spec(SPACE).resolved()["confirm"] == 3 and build_spec(SPACE).confirm.total == 3
    for wrong in ({"count": 3, "at_most": 2}, {"at_most": 4}):
        with pytest.raises(InvalidSearchSpace, match="must be at least count"):
            build_spec({**SPACE, "confirm": wrong})


def test_seeds_instead_of_more_for_all_are_written_priced_and_checked() -> None:
    space = {**SPACE, "scheduler": {"name": "none", "max_epochs": 4}, "replicates": 1}
    spec = build_spec({**space, "confirm": {"count": 1, "instead_of": 5}})
    assert spec.resolved()["confirm"] == {"count": 1, "instead_of": 5} and build_spec(spec.resolved()) == spec
    assert dict(plan(spec).lines())["confirmation"] == "on fresh seeds, at most 24 epochs more", "half of 4 × 5, less 4"
    for wrong in ({"count": 2, "instead_of": 5}, {"count": 1, "at_most": 4, "instead_of": 5}):
        with pytest.raises(InvalidSearchSpace, match="instead_of = 5 takes one seed a round"):
            build_spec({**space, "confirm": wrong})
    with pytest.raises(InvalidSearchSpace, match="instead_of compares by every seed"):
        build_spec({**SPACE, "confirm": {"count": 1, "instead_of": 5}})


def test_named_seeds_are_not_those_that_confirm() -> None:
    spec = build_spec({**SPACE, "replicates": {"count": 2, "seeds": [1, 2]}})
    seeds = [confirming_spec(spec, "one", [2, 0], number).replicate_seeds.of(0) for number in (1, 2)]
    assert all(len(each) == 3 for each in seeds) and len({1, 2, *seeds[0], *seeds[1]}) == 8


def test_fresh_seeds_follow_from_the_sweeps_and_are_none_of_its_own() -> None:
    spec = build_spec(SPACE)
    confirms = {"sweep": "one", "configurations": [2, 0]}
    other = build_spec({**spec.resolved(), "confirm": 0, "confirms": confirms, "replicates": {"count": 3}})
    own = {seed for at in range(4) for seed in spec.replicate_seeds.of(at)}
    assert own.isdisjoint({seed for at in range(2) for seed in other.replicate_seeds.of(at)})
    assert build_spec(other.resolved()).confirms == other.confirms


def test_plan_prices_it_and_a_searcher_that_learns_is_refused() -> None:
    lines = dict(plan(build_spec(SPACE)).lines())
    assert lines["confirmation"] == "on fresh seeds, at most 48 epochs more"
    with pytest.raises(InvalidSearchSpace, match="confirm trains configurations of the space again"):
        build_spec({**SPACE, "searcher": {"name": "optuna"}})
    assert "confirm" not in build_spec({**SPACE, "confirm": 0}).resolved()
