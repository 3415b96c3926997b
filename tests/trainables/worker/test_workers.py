"""A process of a cohort: its room, what it repeats after a restart, what it gives back when memory runs out."""

import dataclasses
import errno
import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainables.small_data import small_digits
from tests.trainables.small_trials import SETTINGS, VALUES, timeless, untimed
from trainables.curvature import hessian
from trainables.files.stores.base import StoreError
from trainables.training.acceleration import TrainingSettings
from trainables.training.evaluation import EvaluationSettings
from trainables.training.lanes.cohort import Cohort
from trainables.training.own_loop import LoopError
from trainables.worker import workers
from trainables.worker.trial import Trial
from trainables.worker.trial_reports import Failure, TrialEnded, TrialReport, WorkerCommand
from trainables.worker.trial_settings import Assignment, TrialSettings
from trainables.worker.workers import STEPS, CohortWorker, failure_of, rehearse

LANES = replace(SETTINGS, packing="lanes", lanes=4)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _settings(**changes: Any) -> TrialSettings:
    return replace(LANES, **changes)


def _given(index: int, **changes: object) -> Assignment:
    return Assignment(index, f"c{index:05d}", {**VALUES, **changes}, [index, 100 + index])


def exceed(monkeypatch: pytest.MonkeyPatch, target: type, method: str, error: Exception) -> None:
    """Let a method run out of memory."""

    def too_much(*_: object) -> None:
        raise error

    monkeypatch.setattr(target, method, too_much)


CARD_FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_lanes_report_what_their_trials_report_alone() -> None:
    """As a cohort of their own, to the bit: a resumed trial, one on Ray and a lane are the same trial."""
    process = CohortWorker(_settings())
    first = process.follow(WorkerCommand(new=([_given(0)],)))
    assert first.room == 1 and not first.reports, "it says how many more fit before it trains"
    found: dict[int, list[object]] = {0: [], 1: [], 2: []}
    news = process.follow(WorkerCommand(new=([_given(1)],)))
    replaced = False
    while True:
        over = []
        for (report,), exhausted in news.reports:
            found[report.configuration].append(untimed(report.to_dict()))
            over += [report.configuration] if exhausted or report.configuration == 1 else []
        new = () if replaced else ([_given(2, loss={"name": "cross_entropy"})],)
        replaced = True
        if {r.configuration for (r,), last in news.reports if last} == {2}:
            break
        news = process.follow(WorkerCommand(over=tuple(over), new=new))
    assert [len(reports) for reports in found.values()] == [2, 1, 2], "the second trial was over after a rung"
    for index, loss in ((0, VALUES["loss"]), (2, {"name": "cross_entropy"})):
        trial = Trial(_given(index, loss=loss), _settings(), process._datasets.own)
        alone = [untimed(trial.advance().to_dict()) for _ in range(2)]
        assert repr(alone) == repr(found[index])


def test_what_shares_no_lanes_has_lanes_of_its_own_beside_nothing() -> None:
    """In bfloat16, for example, one trial's replicates are the lanes, with or without a cohort's process."""
    settings = _settings(training=TrainingSettings(precision="bfloat16"))
    process = CohortWorker(settings)
    report = process.follow(WorkerCommand(new=([_given(0)],)))
    assert report is not None and report.room == 0
    ((found,), _), *_ = report.reports
    alone = Trial(_given(0), settings, process._datasets.own).advance()
    assert found.packing == "lanes" and timeless([found.to_dict()]) == timeless([alone.to_dict()])
    single = Assignment(1, "c00001", VALUES, [1])
    assert Trial(single, settings, process._datasets.own).advance().packing == "sequential"


def test_compiled_networks_that_draw_in_each_lane_train_in_turn() -> None:
    settings = _settings(training=TrainingSettings(compile=True))
    given = _given(0, architecture={"name": "wide_resnet", "depth": 10, "width": 0.25, "dropout": 0.3})
    Trial(given, settings, small_digits())  # as lanes it would raise CannotCompileError


def test_a_restarted_trial_repeats_its_last_report_before_it_trains(tmp_path: Path) -> None:
    settings = _settings(checkpoints=tmp_path)
    before = CohortWorker(settings)
    before.follow(WorkerCommand(new=([_given(0)],)))
    ((told,), _), *_ = before.follow(WorkerCommand()).reports
    again = CohortWorker(settings).follow(WorkerCommand(new=([_given(0)],)))
    assert again.room == 1
    assert repr([report for (report,), _ in again.reports]) == repr([told])


def test_a_process_whose_trials_are_over_waits_and_takes_others_up() -> None:
    process = CohortWorker(_settings())
    process.follow(WorkerCommand(new=([_given(0)],)))
    assert process.follow(WorkerCommand()) is not None
    assert process.follow(WorkerCommand(over=(0,))) is None, "there is nothing to report"
    again = process.follow(WorkerCommand(new=([_given(1)],)))
    assert again is not None and again.room == 1


def test_a_checkpoint_holds_its_own_trial_alone(tmp_path: Path) -> None:
    for lanes in (4, 64):
        process = CohortWorker(_settings(checkpoints=tmp_path / str(lanes), lanes=lanes))
        process.follow(WorkerCommand(new=([_given(0)],)))
        process.follow(WorkerCommand())
    sizes = [sum(path.stat().st_size for path in (tmp_path / name).rglob("e*.pt")) for name in ("4", "64")]
    assert sizes[0] == sizes[1] > 0


def test_a_cohort_that_runs_out_of_memory_gives_all_back_and_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    process = CohortWorker(_settings())
    process.follow(WorkerCommand(new=([_given(0)],)))
    exceed(monkeypatch, Cohort, "train_epoch", CARD_FULL)
    news = process.follow(WorkerCommand(new=([_given(1)],)))
    assert (news.gave_up, news.most_lanes, news.reports) == (True, 2, ())
    monkeypatch.undo()
    assert process.follow(WorkerCommand(new=([_given(0)],), most_lanes=2)).reports, (
        "now the cohort is full with one trial"
    )


def test_memory_that_runs_out_while_lanes_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    process, join = CohortWorker(_settings(lanes=8)), Trial.join

    def too_much(trial: Trial, cohort: Cohort) -> None:
        if trial.assignment.configuration == 2:
            raise CARD_FULL
        join(trial, cohort)

    monkeypatch.setattr(Trial, "join", too_much)
    process.follow(WorkerCommand(new=([_given(0)],)))
    broken = _given(1, loss={"name": "focal", "gamma": -1.0})
    news = process.follow(WorkerCommand(new=([broken], [_given(2)], [_given(3)])))
    assert (news.gave_up, news.most_lanes) == (True, 4) and [index for index, _ in news.lost] == [1]
    assert not process._slots


def test_memory_that_an_evaluation_beside_others_exceeds_is_no_trials_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    process = CohortWorker(_settings())
    process.follow(WorkerCommand(new=([_given(0)],)))
    exceed(monkeypatch, Trial, "evaluations", MemoryError())
    news = process.follow(WorkerCommand(new=([_given(1)],)))
    assert (news.gave_up, news.lost) == (True, ())


def test_checkpoints_of_one_batch_are_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two must not leave the later trial ahead of the earlier one: it would come to its rung first."""
    process, save, written = CohortWorker(_settings(checkpoints=tmp_path, lanes=6)), Trial.save, []

    def slow_at_first(trial: Trial, report: TrialReport, **options: bool) -> None:
        time.sleep(0.1 / (1 + 4 * trial.assignment.configuration))
        save(trial, report, **options)
        written.append(trial.assignment.configuration)

    monkeypatch.setattr(Trial, "save", slow_at_first)
    process.follow(WorkerCommand(new=([_given(0)],)))
    process.follow(WorkerCommand(new=([_given(1)], [_given(2)])))
    assert written == [0, 1, 2]


def test_memory_that_one_trial_alone_exceeds_is_its_own_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    process = CohortWorker(_settings())
    process.follow(WorkerCommand(new=([_given(0)],)))
    exceed(monkeypatch, Cohort, "train_epoch", MemoryError())
    with pytest.raises(MemoryError):
        process.follow(WorkerCommand())


def test_a_trial_that_cannot_be_built_costs_no_other(tmp_path: Path) -> None:
    process = CohortWorker(_settings())
    process.follow(WorkerCommand(new=([_given(0)],)))
    broken = _given(1, loss={"name": "focal", "gamma": -1.0})
    news = process.follow(WorkerCommand(new=([broken],)))
    assert [(index, failure.kind) for index, failure in news.lost] == [(1, "error")] and not news.reports
    assert [report.configuration for (report,), _ in process.follow(WorkerCommand()).reports] == [0]


def test_a_width_is_measured_once_for_a_sweep(tmp_path: Path) -> None:
    settings = _settings(lanes=0, most_lanes=8, choices=tmp_path)
    rooms = [CohortWorker(settings).follow(WorkerCommand(new=([_given(0)],))).room for _ in range(2)]
    assert rooms[0] == rooms[1] and len(list(tmp_path.glob("*.json"))) == 1


FAILURES = [
    (ValueError("bad value\nand more"), Failure("error", message="ValueError: bad value")),
    (KeyError(), Failure("error", message="KeyError")),
    (
        ValueError("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback\nValueError: γ = -1"),
        Failure("error", message="ValueError: ValueError: γ = -1"),
    ),
    (FileNotFoundError("/mnt/preemptible/out of memory"), "error"),
    (LoopError("my loop failed"), Failure("error", message="my loop failed")),
    (MemoryError("8 GiB"), "out_of_memory"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "gpu_out_of_memory"),
    (RuntimeError("CUDA error: out of memory"), "gpu_out_of_memory"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "gpu_out_of_memory"),
    (OSError(errno.ENOSPC, "No space left on device"), "storage"),
    (OSError(errno.EROFS, "Read-only file system"), "storage"),
    (RuntimeError("unexpected pos 62336: No space left on device"), "storage"),
    (
        StoreError("the store is out of reach", "wait"),
        Failure("store", message="the store is out of reach", counts=False),
    ),
    (TrialEnded(Failure("hung", {"silent": 3.0})), Failure("hung", {"silent": 3.0})),
]


@pytest.mark.parametrize(("error", "expected"), FAILURES)
def test_the_failure_that_an_exception_stands_for(error: Exception, expected: Failure | str) -> None:
    failure = failure_of(error)
    assert failure == expected if isinstance(expected, Failure) else failure.kind == expected
    assert failure.counts is (failure.kind not in ("storage", "store")) and "\n" not in failure.message


def test_a_known_failure_comes_through_a_pickle() -> None:
    failure = Failure("storage", {"node": "ab12"}, "full", counts=False)
    assert pickle.loads(pickle.dumps(TrialEnded(failure))).failure == failure


SMALL = {
    "loss": {"name": "cross_entropy"},
    "architecture": {"name": "mlp", "width": 8},
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "batch_size": 16},
}
CAPPED = TrialSettings(
    dataset={"name": "digits"}, max_epochs=300, rungs=(3, 300), objective="val_nll", timeout_seconds=1e-9,
    evaluation=EvaluationSettings.from_mapping({"posthoc": [], "curvature": False, "bootstrap": 0}),
)  # fmt: skip


@pytest.mark.parametrize("packing", ["sequential", "lanes", "trials"])
def test_a_rehearsal_takes_a_few_steps_and_a_whole_evaluation_and_leaves_nothing(tmp_path, packing, monkeypatch):
    dataset, sizes = small_digits(), []

    class Counted(Trial):
        def __init__(self, assignment, settings, data):
            sizes.append((len(data.train), len(data.val), len(data.test)))
            super().__init__(assignment, settings, data)

    monkeypatch.setattr(workers, "Trial", Counted)
    settings = dataclasses.replace(CAPPED, packing=packing, tables=tmp_path / "t", checkpoints=tmp_path / "c")
    seeds = [1] if packing == "trials" else [1, 2, 3]
    report = rehearse(Assignment(0, "c00000", SMALL, seeds), settings, dataset)
    assert not report.failure and report.epoch == 1
    assert {row["split"] for row in report.evaluations} == {"val", "test"}
    assert len(report.epochs) == len(seeds)
    assert sizes == [(STEPS * 16, len(dataset.val), len(dataset.test))]
    assert not any(tmp_path.iterdir())


def test_a_rehearsal_s_curvature_keeps_no_graph_and_has_the_numbers_of_a_sweep(monkeypatch):
    kept, count = [], hessian.kept_chunks

    def noted(*arguments):
        kept.append(count(*arguments))
        return kept[-1]

    monkeypatch.setattr(hessian, "kept_chunks", noted)
    measured = EvaluationSettings.from_mapping({"posthoc": [], "bootstrap": 0, "curvature": {"lanczos_steps": 2}})
    settings = dataclasses.replace(CAPPED, evaluation=measured)
    dataset, assignment = small_digits(), Assignment(0, "c00000", SMALL, [1])
    rehearsed = rehearse(assignment, settings, dataset)
    assert kept and set(kept) == {0}
    kept.clear()
    few = dataclasses.replace(dataset.train, inputs=dataset.train.inputs[:48], targets=dataset.train.targets[:48])
    own = dataclasses.replace(settings, max_epochs=1, rungs=(1,), timeout_seconds=None)
    trained = Trial(assignment, own, dataclasses.replace(dataset, train=few)).advance()
    assert min(kept) > 0
    names = ("hessian_cross_entropy_lambda_max", "hessian_cross_entropy_trace")
    rows = [[[row.get(name) for name in names] for row in report.evaluations] for report in (rehearsed, trained)]
    assert rows[0] == rows[1] and rows[0][0][0] is not None
