"""Trials that hang, or take all memory, in processes of a real cluster: ended with their reason, neighbours unhurt."""

from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.journal.state import ENDED, fold
from sweeper.results import load
from tests.faults.misbehaving import BAD, misbehave
from tests.faults.reference import SMALL, undisturbed
from tests.running import metrics_by_key, reports, same, write_space
from tests.sweeper.records import fields

COUNT = 4
SPACE = SMALL.replace("grace_epochs: 1", "grace_epochs: 3") % {"samples": COUNT}


def check_neighbours(paths: SweepPaths, space: Path, *, unhurt: bool = True) -> None:
    """All others ended well, with the metrics of a sweep in which nothing misbehaves; `unhurt`: at the first try."""
    expected = undisturbed(space).metrics
    trials = fold(read_journal(paths.journal), COUNT).trials
    assert all(trial.status in ENDED for trial in trials.values())
    for number, trial in trials.items():
        assert (trial.status == "failed") == (number == BAD)
        assert number == BAD or trial.failures == 0 or not unhurt
    measured = metrics_by_key(reports(paths))
    for key in measured.keys() & expected.keys():
        assert all(same(value, expected[key][name]) for name, value in measured[key].items()), key
    assert {key[0] for key in measured} >= set(range(COUNT)) - {BAD}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "retries", "said"),
    [
        ("wait_for_ever", 0, {"function": "wait"}),
        pytest.param("lock_up", 1, {"killed": "SIGKILL", "tries": 2}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_hanging_trial_is_ended(
    tmp_path: Path, executor: str, kind: str, retries: int, said: dict[str, object]
) -> None:
    text = SPACE.replace("retries: 100", f"retries: {retries}\nhang_timeout: 4")
    space = write_space(tmp_path, text)
    paths = misbehave(kind, space, tmp_path, cpus=2, executor=executor)
    failed = [fields(record) for record in read_journal(paths.journal) if record.kind == "failed"]
    failures = [body["failure"] for body in failed]
    assert {body["configuration"] for body in failed} == {BAD}
    assert [(failure["kind"], failure["counts"]) for failure in failures] == [("hung", True)] * (retries + 1)
    assert [body["final"] for body in failed] == [False] * retries + [True]
    assert failures[-1]["values"].items() >= {"hang_timeout": 4, **said}.items()
    rows = load(paths.root).rows(f"SELECT * FROM trials WHERE trial LIKE '%{BAD}'")
    assert {(row["status"], row["stop_kind"]) for row in rows} == {("failed", "hung")}
    check_neighbours(paths, space)


def memory() -> dict[str, int]:
    """Return the machine's memory as the kernel tells it, in bytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) * 1024 for fields in lines}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_greedy_trial_runs_out_of_the_nodes_memory(tmp_path: Path, executor: str) -> None:
    """A monitor kills it once it has taken 3 GiB; what that lets die of its neighbours is tried again."""
    space = write_space(tmp_path, SPACE.replace("retries: 100", "retries: 1"))
    now = memory()
    used = now["MemTotal"] - now["MemAvailable"] + 3 * 2**30
    assert now["MemAvailable"] > 6 * 2**30, "this test takes up to 5 GiB"
    limits = {
        "RAY_memory_usage_threshold": f"{used / now['MemTotal']:.4f}",
        "RAY_memory_monitor_refresh_ms": "100",
        "RAY_min_memory_free_bytes": "-1",
    }
    paths = misbehave("devour", space, tmp_path, cpus=2, executor=executor, environment=limits)
    failed = [fields(record) for record in read_journal(paths.journal) if record.kind == "failed"]
    assert {body["failure"]["kind"] for body in failed} == {"out_of_memory"}
    greedy = [body for body in failed if body["configuration"] == BAD]
    assert len(greedy) == 2 and all(body["failure"]["counts"] for body in greedy)
    assert [body["final"] for body in greedy] == [False, True]
    assert greedy[-1]["failure"]["values"]["tries"] == 2
    check_neighbours(paths, space, unhurt=False)
    print({body["configuration"]: body["failure"] for body in failed})
