"""Sweeps on a real Slurm of two nodes: both shapes, preemption, limits, deaths, and what it refuses."""

import functools
import math
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psutil
import pytest

from sweeper.core.ids import SweepPaths
from sweeper.execution.slurm.head import FRUITLESS_STARTS
from sweeper.execution.slurm.jobs import Exchange
from sweeper.journal.segments import last_sequence
from tests.faults.same_sweeps import EVERY, Outcome, Place, check_journal, run, space_of
from tests.patience import patient
from tests.running import write_space
from tests.seeds import drawn_seed
from tests.slurm.slurm_cluster import SlurmCluster, missing, slurm_cluster
from tests.slurm.small_file_systems import Resize, fill, small_disk, small_quota
from tests.slurm.user import SPACE, User

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
    pytest.mark.timeout(900),
]

SMALL = SPACE.replace("max_epochs: 9", "max_epochs: 3").replace("samples: 6", "samples: 2")
LONGER = SPACE.replace("max_epochs: 9", "max_epochs: 6561").replace("variant: promotion, ", "")
SHAPES = {
    "array": "workers: 2\ncpus: 1\ninterface: lo\ntime: '0:10:00'",
    "nodes": "nodes: 2\ncpus: 1\ninterface: lo\ntime: '0:10:00'",
}


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """A Slurm for all tests here."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurm_cluster(Path(folder)) as cluster:
        yield cluster


@pytest.fixture
def user(slurm: SlurmCluster, tmp_path: Path) -> Iterator[User]:
    """A user, in a folder with a blank in its name, whose jobs are cancelled in the end."""
    folder = tmp_path / "my sweeps"
    folder.mkdir()
    yield User(slurm, folder)
    slurm.ask("scancel", "--user=root")
    slurm.wait_until_idle()


@pytest.fixture(scope="module")
def without_slurm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """Run a search space on one slot of this machine, once for all tests that ask."""

    @functools.cache
    def ran(space: str) -> Outcome:
        folder = tmp_path_factory.mktemp("alone")
        return Outcome.of(run(write_space(folder, space), folder / "one_slot", Place(), random.Random(0))[0])

    return ran


def same(user: User, expected: Outcome) -> None:
    """Assert that a sweep decided and measured what it does without Slurm, to the last digit."""
    paths = SweepPaths(user.folder / "results" / "a")
    check_journal(user.folder / "a.yaml", paths)
    expected.check_equal(Outcome.of(paths), user.folder)


@pytest.mark.parametrize("kind", [EVERY[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in EVERY[1:])])
def test_two_workers_give_the_same_sweep(user: User, without_slurm: Callable[[str], Outcome], kind: str) -> None:
    space = space_of(user.folder, kind).read_text()
    exchange = user.submits(space, SHAPES["array"])
    user.waits(exchange, lambda: exchange.over is not None)
    same(user, without_slurm(space))


def test_a_sweep_stopped_and_submitted_again(user: User, without_slurm: Callable[[str], Outcome]) -> None:
    shape = SHAPES["array"].replace("workers: 2", "workers: 1\ngpus: 1\ngpu_type: a100")
    exchange = user.submits(SMALL, f"{shape}\nsbatch: ['--hold']\nhead: {{sbatch: ['--hold']}}")
    said = user.says("status", "a").stdout
    assert "a · Slurm: head" in said and "waiting in partition main (JobHeldUser), will not start: release it" in said
    assert "1 waiting" in said, said
    assert "stopped early" not in user.says("status").stdout, "a table's head alone"
    _strangers_reach_nothing(user, exchange)
    again = user.says("resume", "a", "--slurm")
    assert again.returncode == 2 and "Slurm has jobs of 'a'" in again.stderr
    again = user.says("cluster", "submit", "a.yaml", "--slurm", "--name", "a")
    assert again.returncode == 2 and "`sweeper resume a --slurm`" in again.stderr
    stopped = user.says("stop", "a")
    assert "which waited" in stopped.stdout + stopped.stderr
    assert exchange.over is not None and not (user.folder / "results" / "a").exists()
    again = user.says("resume", "a", "--slurm")
    assert again.returncode == 0 and "submitted a as 2 jobs" in again.stderr, again.stderr
    for job in user.slurm.ask("squeue", "--noheader", "--format=%A").split():
        user.slurm.ask("scontrol", "release", job)
    user.waits(exchange, lambda: exchange.over is not None)
    user.slurm.wait_until_idle()  # the workers were released
    assert "the sweep is finished" in user.says("cluster", "logs", "a").stdout
    assert "Slurm" in user.says("status").stdout
    same(user, without_slurm(SMALL))
    assert user.says("manage", "delete", "a", "--yes").returncode == 0 and not exchange.folder.exists()


def _strangers_reach_nothing(user: User, exchange: Exchange) -> None:
    """Assert that what others' folders say of this sweep's jobs is not believed."""
    copied, linked = user.folder / "copied", user.folder / "linked"
    shutil.copytree(exchange.folder, copied / ".slurm" / "a")
    linked.mkdir()
    (linked / ".slurm").symlink_to(exchange.folder.parent)
    for place in (copied, linked):
        said = user.says("status", "a", "--output", str(place)).stdout
        assert "waiting" not in said, said
        assert user.says("stop", "a", "--output", str(place)).returncode == 2
    assert len(user.slurm.ask("squeue", "--noheader", "--array").splitlines()) == 2


@pytest.mark.slow
def test_whole_nodes_give_the_same_sweep(user: User, without_slurm: Callable[[str], Outcome]) -> None:
    exchange = user.submits(SPACE, SHAPES["nodes"])
    user.waits(exchange, lambda: exchange.over is not None)
    user.slurm.wait_until_idle()
    same(user, without_slurm(SPACE))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_time_limit_continues_the_sweep_in_the_next_job(user: User, without_slurm: Callable[[str], Outcome]) -> None:
    # Slurm warns up to a minute early (sbatch(1), --signal): a job is warned when it is `least` to `least` + 60 s old.
    least = int(patient(25))
    minutes = math.ceil((least + 75) / 60)
    shape = SHAPES["array"].replace("workers: 2", "workers: 1")
    exchange = user.submits(LONGER, f"{shape}\nwarning: {minutes * 60 - 60 - least}\nhead: {{time: {minutes}}}")
    user.waits(exchange, lambda: exchange.over is not None, 1500)
    print(f"limit {minutes} min, warned from {least} s on, {len(exchange.starts())} starts")
    starts = exchange.starts()
    assert user.logs(exchange).count("the time limit is near: requeued") == len(starts) - 1 > 0
    assert starts == sorted(set(starts)), "each job made progress"
    same(user, without_slurm(LONGER))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("workers: 2\npartition: gpus", "invalid partition specified: gpus"),
        ("workers: 2\npartition: small\ntime: 1:00:00", "Requested time limit is invalid"),
        ("workers: 2\nmemory: 900G", "Memory specification can not be satisfied"),
        ("nodes: 20", "More processors requested than permitted"),
        ("workers: 2\ngpus: 1\ngpu_type: h100", "Requested node configuration is not available"),
    ],
)
def test_what_slurm_or_a_rule_refuses_is_one_sentence_and_leaves_nothing(user: User, settings: str, said: str) -> None:
    (user.folder / "slurm.yaml").write_text(settings)
    write_space(user.folder, SPACE, "a")
    done = user.says("cluster", "submit", "a.yaml", "--slurm")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert said in done.stderr, done.stderr
    assert not list((user.folder / "results").glob(".slurm/*")), "nothing is left"
    user.waits(Exchange(user.folder), lambda: user.slurm.ask("squeue", "--noheader") == "")  # cancelled ones linger


@pytest.mark.parametrize(
    ("small", "size", "said"),
    [(small_disk, "64k", "No space left on device"), (small_quota, "1M", "Disk quota exceeded")],
)
def test_a_full_file_system_is_one_sentence_and_leaves_nothing(
    user: User, small: Callable[[Path, str], AbstractContextManager[Resize]], size: str, said: str
) -> None:
    (user.folder / "slurm.yaml").write_text(SHAPES["array"])
    write_space(user.folder, SPACE, "a")
    place = user.folder / "results"
    with small(place, size):
        fill(place / "filled")
        done = user.says("cluster", "submit", "a.yaml", "--slurm")
        assert (done.returncode, done.stderr.count("\n")) == (1, 2), done.stderr
        assert f"cannot be written: {said}\n  free space" in done.stderr
        assert not [path for path in place.rglob("*") if path.name not in ("filled", ".slurm")]


@pytest.mark.slow
def test_a_sweep_goes_on_after_a_full_quota(user: User, without_slurm: Callable[[str], Outcome]) -> None:
    with small_quota(user.folder / "results", "2M") as resize:
        exchange = user.submits(SPACE, SHAPES["array"])
        user.waits(exchange, lambda: user.slurm.ask("squeue", "--noheader") == "", 600)
        said = user.logs(exchange)
        print(said)
        assert "Disk quota exceeded" in said
        resize("64M")
        again = user.says("resume", "a", "--slurm")
        assert again.returncode == 0, again.stderr
        user.waits(exchange, lambda: exchange.over is not None)
        same(user, without_slurm(SPACE))
        user.slurm.wait_until_idle()


@pytest.mark.slow
def test_a_driver_that_dies_at_each_start_is_given_up(user: User) -> None:
    exchange, journal = user.submits(SPACE, SHAPES["array"]), SweepPaths(user.folder / "results" / "a").journal

    def over() -> bool:
        if (starts := exchange.starts()) and last_sequence(journal) > starts[-1]:
            _kill_driver(user.slurm)
        return exchange.over is not None

    user.waits(exchange, over, 400)
    assert exchange.over == f"{FRUITLESS_STARTS} starts without progress: not requeued again", user.logs(exchange)
    assert len(exchange.starts()) == FRUITLESS_STARTS


@pytest.mark.slow
def test_workers_that_end_at_once_each_time_are_given_up(user: User) -> None:
    ends = 'setup: ["[ -z \\"$SLURM_ARRAY_TASK_ID\\" ] || exit 3"]'
    exchange = user.submits(SPACE, f"{SHAPES['array']}\n{ends}")
    user.waits(exchange, lambda: exchange.over is not None, 400)
    assert exchange.over == f"all workers ended {FRUITLESS_STARTS} times without progress; their logs say why"
    assert exchange.over in user.says("status", "a").stdout and exchange.over in user.says("status").stdout
    user.slurm.wait_until_idle()


def _kill_driver(slurm: SlurmCluster) -> None:
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        with suppress(psutil.Error):
            if words[1:4] == ["-m", "sweeper", "run"] and process.environ().get("SLURM_CONF") == slurm.configuration:
                process.kill()


FAULTS = ("requeue head", "cancel worker", "kill node", "restart controller", "requeue worker")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_twenty_random_faults_lose_nothing(user: User, without_slurm: Callable[[str], Outcome], part: int) -> None:
    rng, number = random.Random(f"{drawn_seed()} {part}"), 0
    while number < 5:
        exchange = user.submits(SPACE, SHAPES["array"])
        number += _disturbed_sweep(user, exchange, rng)
        same(user, without_slurm(SPACE))
        user.slurm.wait_until_idle(120)
        shutil.rmtree(user.folder / "results")


def _disturbed_sweep(user: User, exchange: Exchange, rng: random.Random) -> int:
    """Let faults befall a sweep until it is over; return how many."""
    paths, fallen = SweepPaths(user.folder / "results" / "a"), list[str]()
    for _ in range(rng.randint(1, 4)):
        goal = last_sequence(paths.journal) + rng.randint(1, 8)

        def due(wanted: int = goal) -> bool:
            return last_sequence(paths.journal) >= wanted and bool(_running(user.slurm, "sweeper-a"))

        user.waits(exchange, lambda: exchange.over is not None or due())
        if exchange.over is not None:
            break
        fallen.append(rng.choice(FAULTS))
        _disturb(user, exchange, fallen[-1], rng)
    user.waits(exchange, lambda: exchange.over is not None, 600)
    print(", ".join(fallen) or "none")
    assert exchange.over == "the sweep is finished", user.logs(exchange)
    return len(fallen)


def _running(slurm: SlurmCluster, name: str) -> list[str]:
    """Return the jobs of a name that run, or the tasks of an array."""
    lines = slurm.ask("squeue", "--noheader", "--array", "--states=RUNNING", f"--name={name}", "--format=%i")
    return lines.split()


def _disturb(user: User, exchange: Exchange, fault: str, rng: random.Random) -> None:
    slurm = user.slurm
    head, workers = _running(slurm, "sweeper-a"), _running(slurm, "sweeper-a-workers")
    if "worker" in fault and not workers:  # they are dead already, and not yet submitted again
        fault = "requeue head"
    match fault:
        case "requeue head":
            slurm.ask("scontrol", "requeue", *head)
        case "requeue worker":
            slurm.ask("scontrol", "requeue", rng.choice(workers))
        case "cancel worker":
            slurm.ask("scancel", "--signal=KILL", "--full", rng.choice(workers))
        case "kill node":
            node = rng.choice(("n1", "n2"))
            slurm.kill_node(node)
            time.sleep(rng.random() * 3)
            slurm.start_node(node)
        case "restart controller":
            slurm.kill("slurmctld")
            time.sleep(rng.random() * 3)
            slurm.start_controller()
