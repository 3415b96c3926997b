"""One answer to which trial is the best, given by all who name it."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeper.core.ids import trial_name
from sweeper.execution.driver.context import KeptCheckpoints
from sweeper.journal.best import Spending, best_trial, rank_of
from sweeper.journal.journal import read_journal
from sweeper.journal.state import SweepState, TrialState, fold
from sweeper.reporting.snapshot import MetricsSink, Tally, progress_line
from sweeper.reporting.status import status_of, statuses_table
from sweeper.results import load
from sweeper.results.leaderboard import leaderboard
from sweeper.space.spec import SweepSpec
from sweeper.storage.sweeps import Sweep
from sweeper.tracking.artifacts import artifacts
from tests.sweeper.random_sweep import RandomSweep, write_trial_files
from tests.sweeper.records import made_body, made_record

EARLY_STOPPED, COMPLETED, FAILED = 0, 1, 2
VALUES = {EARLY_STOPPED: 0.010, COMPLETED: 0.020, FAILED: 0.005}
EPOCHS = {EARLY_STOPPED: 3, COMPLETED: 9, FAILED: 9}
DECISIONS = {EARLY_STOPPED: ("early_stopped", "stop"), COMPLETED: ("completed", "complete")}


def written(folder: Path, *trials: int) -> Sweep:
    """Return a sweep in which only `trials` have reported, with journal and tables as a driver leaves them."""
    made = RandomSweep(folder / "small", count=3)
    made.write_spec()
    values = yaml.safe_load(made.paths.sweep_file.read_text())
    values["space"]["architecture"] = "mlp"  # without one, `status` would not open the sweep
    made.paths.sweep_file.write_text(yaml.safe_dump(values))
    sink, journal = made.sink(), made.journal()
    sink.append(journal.append(made_body("attempt")))
    for index in trials:
        status, kind = DECISIONS.get(index, ("running", "continue"))
        epoch, value = EPOCHS[index], VALUES[index]
        for replicate in range(made.replicates):
            write_trial_files(sink.incoming, trial_name(index), replicate, epoch)
        report = {
            "configuration": index,
            "epoch": epoch,
            "objective": value,
            "status": status,
            "evaluations": [{**row, "nll": value} for row in made.evaluations(index, epoch)],
            "decision": {"rung": epoch, "kind": kind, "metric": value},
        }
        sink.append(journal.append(made_body("report", report)))
    if FAILED in trials:
        sink.append(journal.append(made_body("failed", {"configuration": FAILED, "epoch": 9, "final": True})))
    sink.close()
    spec = SweepSpec.model_validate(yaml.safe_load(made.paths.sweep_file.read_text()))
    return Sweep(made.paths, spec, made.configurations)


class Kept:
    """What is left of checkpoints, of which all trials had some."""

    def __init__(self) -> None:
        self.names = {trial_name(index) for index in VALUES}

    def remove_checkpoints(self, place: str, *, now: bool = False) -> None:
        self.names.remove(place)

    def trials_with_checkpoints(self) -> set[str]:
        return set(self.names)


def named(sweep: Sweep, folder: Path) -> dict[str, Any]:
    """Return the best trial by who names it; a value where only that is shown."""
    state = fold(read_journal(sweep.paths.journal), 3)
    schedule = sweep.spec.schedule
    now = Tally(state, schedule).snapshot(seconds=0.0, epochs_before=0)
    published: dict[str, float] = {}
    sink = MetricsSink(
        "s", state, schedule, lambda n, _, v: published.update({n: v}),
        spending=Spending(), samples_per_epoch=1, gpu=0,
    )  # fmt: skip
    sink.publish(running=False)
    kept = Kept()
    KeptCheckpoints(kept, state, schedule.mode).remove_leftovers()
    folder.mkdir()
    diagrams = [p for p, _ in artifacts(sweep.paths, state, schedule, folder) if p.suffix == ".svg"]
    [titled] = [index for index in VALUES for p in diagrams if f">{trial_name(index)}, the best" in p.read_text()]
    board = leaderboard(load(sweep.paths.root))
    return {
        "snapshot": now.best and now.best.configuration,
        "status": list(statuses_table(status_of(sweep.paths.root.parent, "small")).columns[7].cells),
        "prometheus": published["sweeper_best_objective"],
        "checkpoint": kept.names - {trial_name(FAILED)},
        "mlflow": (titled, "so far" in diagrams[0].read_text()),
        "report": board.best and board.best["trial"],
        "line": progress_line(now, "val_nll").rpartition(" · ")[2],
        "order": [row["trial"] for row in board.rows],
    }


def test_all_who_name_the_best_trial_name_the_completed_one(tmp_path: Path) -> None:
    found = named(written(tmp_path, EARLY_STOPPED, COMPLETED, FAILED), tmp_path / "files")
    assert found["snapshot"] == COMPLETED
    assert found["status"] == ["val_nll 0.0200"]
    assert found["prometheus"] == 0.020
    assert found["checkpoint"] == {"c00001"}, "that of a failed trial is kept for a retry"
    assert found["mlflow"] == (COMPLETED, False)
    assert found["report"] == "c00001"
    assert found["line"] == "best val_nll 0.0200 (c00001)"
    assert found["order"] == ["c00001", "c00000", "c00002"]


def test_while_none_has_completed_it_is_the_best_so_far_and_never_a_failed_one(tmp_path: Path) -> None:
    found = named(written(tmp_path, EARLY_STOPPED, FAILED), tmp_path / "files")
    assert found["snapshot"] == EARLY_STOPPED
    assert found["status"] == ["val_nll 0.0100 so far"]
    assert found["prometheus"] == 0.010
    assert found["mlflow"] == (EARLY_STOPPED, True)
    assert found["report"] == "c00000"
    assert found["line"] == "best so far val_nll 0.0100 (c00000)"
    assert found["order"] == ["c00000", "c00002"]


def test_where_all_have_failed_none_is_the_best(tmp_path: Path) -> None:
    sweep = written(tmp_path, FAILED)
    assert best_trial(fold(read_journal(sweep.paths.journal), 3), "min") is None
    board = leaderboard(load(sweep.paths.root))
    assert board.best is None and len(board.rows) == 1


@pytest.mark.parametrize(("mode", "best"), [("min", 2), ("max", 1)])
def test_the_better_objective_wins_and_of_equals_the_first(mode: Any, best: int) -> None:
    state = SweepState(6)
    for index, value in enumerate([math.nan, 0.9, 0.1, 0.1, 0.9, None]):
        state.trials[index] = TrialState(configuration=index, status="completed", objective=value)
    found = best_trial(state, mode)
    assert found.configuration == best
    assert [index for index, trial in state.trials.items() if rank_of(trial, mode) is None] == [0, 5]


@pytest.mark.parametrize("seed", range(20))
def test_each_report_counts_at_the_share_that_its_process_had(seed: int) -> None:
    draw, spending, records = random.Random(seed), Spending(), 0
    seconds = gpu_seconds = unshared = 0.0
    for configuration in range(12):
        kind = draw.choice(["whole", "apart"])
        worked: dict[int | None, float] = {}
        for epoch in range(1, draw.randint(2, 8)):
            number = draw.randrange(3) if kind == "apart" else None
            more = draw.uniform(0, 500)
            worked[number] = worked.get(number, 0.0) + more
            share = draw.choice([None, 1.0, 0.5, 0.0625])
            body: dict[str, Any] = {"configuration": configuration, "epoch": epoch, "wall_seconds": worked[number]}
            body |= {"gpu": share} if share is not None else {}
            seconds += more
            gpu_seconds += more * (share or 0.0)
            unshared += more if share is None else 0.0
            name = "replicate" if number is not None else "report"
            spending.apply(
                made_record(records, name, 0.0, body | ({"replicate": number} if number is not None else {}))
            )
            records += 1
            if kind == "apart" and draw.random() < 0.4:
                merged = {"configuration": configuration, "epoch": epoch, "wall_seconds": sum(worked.values())}
                spending.apply(made_record(records, "report", 0.0, merged))
                records += 1
    assert spending.hours() == pytest.approx(seconds / 3600)
    for usual in (0.0, 0.25):
        assert spending.gpu_hours(usual) == pytest.approx((gpu_seconds + unshared * usual) / 3600)
