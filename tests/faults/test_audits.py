"""`sweeper status --audit` on sweeps that were stopped, killed, lost a node or a trial, and on forged journals.

It says up to which virtual time a sweep is canonical. This must hold: up to then it decided as the undisturbed sweep.
"""

import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import Journal, read_journal
from sweeper.journal.records import Attempt, Body, Decision, Judged, Reported
from sweeper.journal.segments import last_sequence
from tests.faults.cluster import local_cluster
from tests.faults.processes import Running, kill_ids, trial_processes, until
from tests.faults.same_sweeps import Outcome, Place, run, space_of
from tests.patience import patient
from tests.running import Process, in_process, started

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Audited:
    """What the command said: exit code, virtual time up to which the sweep is canonical, and records that differ."""

    code: int
    until: float
    differing: list[int]

    @staticmethod
    def of(paths: SweepPaths) -> "Audited":
        """Run the command."""
        done = in_process("status", "--audit", paths.name, cwd=paths.root.parents[1])
        (until,) = re.findall(r"canonical up to virtual time ([\d.]+)", done.stdout)
        return Audited(done.returncode, float(until), [*map(int, re.findall(r"^  record (\d+):", done.stdout, re.M))])


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = space_of(tmp_path_factory.mktemp("space"), "promotion")
    path.write_text(path.read_text().replace("samples: 14", "samples: 40"))
    return path


@pytest.fixture(scope="module")
def whole(space: Path, tmp_path_factory: pytest.TempPathFactory) -> SweepPaths:
    """A sweep that nothing disturbed, on three slots."""
    return run(space, tmp_path_factory.mktemp("whole") / "run", Place((3,)), random.Random(0))[0]


def _check_beginning(paths: SweepPaths, whole: SweepPaths) -> int:
    """Assert that a sweep decided as the whole one as far as it came; return the number of its decisions."""
    decided, expected = (Outcome.decided(sweep) for sweep in (paths, whole))
    assert decided == expected[: len(decided)]
    return len(decided)


def _budget(folder: Path, paths: SweepPaths, driver: Running) -> None:
    """It is spent within the first second."""


def _stop(folder: Path, paths: SweepPaths, driver: Running) -> None:
    assert in_process("stop", "s", cwd=folder).returncode == 0


def _kill(folder: Path, paths: SweepPaths, driver: Process) -> None:
    driver.kill()


ENDINGS = {
    "budget": (("--set", "budget={wall_hours: 0.0001}"), _budget, 1),
    "stop": (("--set", "budget=null"), _stop, 1),
    "kill": ((), _kill, -9),
}


def test_what_ends_a_sweep_early_leaves_its_beginning_canonical(space: Path, whole: SweepPaths, tmp_path: Path) -> None:
    paths, before = SweepPaths(tmp_path / "results" / "s"), Audited(0, 0.0, [])
    for options, end, code in ENDINGS.values():
        start = ("resume", "s") if paths.root.exists() else ("run", space, "--name", "s")
        with started(*start, "--no-mlflow", "--cpus", "2", *options, cwd=tmp_path) as driver:
            goal = last_sequence(paths.journal) + 12
            until(lambda goal=goal: last_sequence(paths.journal) >= goal, driver, 100)
            end(tmp_path, paths, driver)
            assert driver.wait(patient(100)) == code, (tmp_path / "driver.err").read_text()
        found = Audited.of(paths)
        assert (found.code, found.differing) == (0, []) and found.until >= before.until
        assert 0 < _check_beginning(paths, whole) < len(Outcome.decided(whole))
        before = found
    assert before.until < Audited.of(whole).until
    assert in_process("resume", "s", "--no-mlflow", "--cpus", "2", cwd=tmp_path).returncode == 0
    assert Audited.of(paths) == Audited.of(whole)
    Outcome.of(whole).check_equal(Outcome.of(paths), "resumed")


def test_a_timeout_limits_the_order_from_its_virtual_end_on(space: Path, tmp_path: Path) -> None:
    # Every trial fails in its first epoch, the first of them at virtual time 1.
    options = ("--no-mlflow", "--cpus", "1", "--set", "samples=3", "--set", "trial_timeout=1.0e-6")
    assert in_process("run", space, "--name", "s", *options, cwd=tmp_path).returncode == 1
    assert Audited.of(SweepPaths(tmp_path / "results" / "s")) == Audited(0, 1.0, [])


def test_a_crashed_trial_limits_the_order_from_its_virtual_end_on(
    space: Path, whole: SweepPaths, tmp_path: Path
) -> None:
    paths = SweepPaths(tmp_path / "results" / "s")
    words = ("run", space, "--name", "s", "--no-mlflow", "--cpus", "2", "--set", "retries=0")
    with started(*words, cwd=tmp_path) as driver:
        until(lambda: last_sequence(paths.journal) >= 20, driver, 100)
        until(lambda: bool(trial_processes(driver.pid)), driver, 100)
        kill_ids(trial_processes(driver.pid)[0])
        assert driver.wait(patient(100)) == 1
    found, failed = Audited.of(paths), [r for r in read_journal(paths.journal) if r.kind == "failed"]
    assert failed and (found.code, found.differing) == (0, []) and 0 < found.until < Audited.of(whole).until
    ended = Outcome.decided(paths, before=failed[-1].sequence)
    assert ended == Outcome.decided(whole)[: len(ended)]


def test_a_lost_node_changes_nothing(space: Path, whole: SweepPaths, tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "results" / "s")
    with local_cluster(2, tmp_path) as cluster:
        environment = {**cluster.environment, "RAY_ADDRESS": cluster.address}
        words = ("run", space, "--name", "s", "--no-mlflow", "--executor", "ray")
        with started(*words, cwd=tmp_path, environment=environment) as driver:
            assert until(lambda: last_sequence(paths.journal) >= 15, driver, 200)
            cluster.tell("kill 0")
            assert driver.wait(patient(200)) == 0, (tmp_path / "driver.err").read_text()
    assert Audited.of(paths) == Audited.of(whole)
    Outcome.of(whole).check_equal(Outcome.of(paths), "a lost node")


def test_decisions_that_other_lanes_may_turn_are_counted(tmp_path: Path) -> None:
    paths, _ = run(space_of(tmp_path, "lanes"), tmp_path / "run", Place((2,)), random.Random(0))
    done = in_process("status", "--audit", "s", cwd=tmp_path / "run")
    (told,) = re.findall(r"^(\d+) decisions turn on ([\d.]+) %", done.stdout, re.M)
    assert int(told[0]) == _narrow(paths, float(told[1]) / 100) > 0


def _narrow(paths: SweepPaths, share: float) -> int:
    """Count, in plain lists, the decisions of ASHA's stopping variant that turn if the objective changes by a share."""
    earlier, narrow = {1: list[float](), 3: list[float]()}, 0
    for record in read_journal(paths.journal):
        match record.body:
            case Reported(decision=Decision(rung=int(rung), metric=float(metric))) if rung in earlier:
                values, sides = earlier[rung], [metric * (1 - share), metric * (1 + share)]
                places = {sum(value < side for value in values) for side in sides}
                kinds = {not values or side <= np.percentile(values, 100 / 3) for side in sides}
                narrow += len(places) > 1 or len(kinds) > 1
                values.append(metric)
    return narrow


Forge = Callable[[list[Body]], list[Body]]


def _judgements(bodies: Sequence[Body]) -> list[int]:
    return [n for n, body in enumerate(bodies) if isinstance(body, Reported) and body.decision is not None]


def _swapped(bodies: list[Body]) -> list[Body]:
    first, second = _judgements(bodies)[10:12]
    bodies[first], bodies[second] = bodies[second], bodies[first]
    return bodies


def _moved(bodies: list[Body]) -> list[Body]:
    first, *_, last = _judgements(bodies)[10:14]
    bodies.insert(last, bodies.pop(first))
    return bodies


def _promoted_later(bodies: list[Body]) -> list[Body]:
    promotion = next(n for n, body in enumerate(bodies) if isinstance(body, Judged))
    bodies.insert(next(n for n in _judgements(bodies) if n > promotion), bodies.pop(promotion))
    return bodies


def _of_another_width(bodies: list[Body]) -> list[Body]:
    (first,) = (body for body in bodies if isinstance(body, Attempt))
    scheduler = {**first.space["scheduler"], "width": 5}
    return [replace(first, space={**first.space, "scheduler": scheduler}), *bodies[1:]]


@pytest.mark.parametrize("forge", [_swapped, _moved, _promoted_later, _of_another_width])
def test_a_forged_order_is_named_and_limits_what_is_canonical(whole: SweepPaths, tmp_path: Path, forge: Forge) -> None:
    forged = SweepPaths(tmp_path / "results" / "s")
    shutil.copytree(whole.root, forged.root, symlinks=True)
    shutil.rmtree(forged.journal)
    bodies = [record.body for record in read_journal(whole.journal)]
    journal = Journal(forged.journal, durable=False)
    changed = forge([*bodies])
    for body in changed:
        journal.append(body)
    if forge is _of_another_width:
        text = forged.sweep_file.read_text()
        forged.sweep_file.write_text(re.sub(r"\bwidth: 4$", "width: 5", text, flags=re.M))
    first = next((n for n, (old, new) in enumerate(zip(bodies, changed, strict=True)) if old != new), 0)
    found, sound = Audited.of(forged), Audited.of(whole)
    assert found.code == 1 and min(found.differing) >= first and found.until < sound.until
