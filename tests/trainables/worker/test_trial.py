"""A trial reports at rungs, resumes from any of its checkpoints bit for bit, and repeats a report that may be lost."""

import json
import math
import os
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch

from tests.trainables.small_data import poisoned, small_digits
from tests.trainables.small_trials import assignment, finished, timeless
from trainables.curvature import CurvatureUnavailable
from trainables.training.evaluation import EvaluationSettings
from trainables.worker.checkpoints import PARTIAL, checkpoint_epochs, checkpoint_file
from trainables.worker.trial import Trial
from trainables.worker.trial_reports import Failure
from trainables.worker.trial_settings import Assignment, TrialSettings, prepare_process

CURVATURE = {"samples": 30, "lanczos_steps": 3, "trace_probes": 2}
SETTINGS = TrialSettings(
    dataset={"name": "digits"},
    max_epochs=4,
    rungs=(1, 2, 4),
    objective="val_nll",
    evaluation=EvaluationSettings.from_mapping({"posthoc": ["temperature"], "bootstrap": 5, "curvature": CURVATURE}),
    report_seconds=1e9,
)
UNCURVED = replace(SETTINGS, evaluation=replace(SETTINGS.evaluation, curvature=None))
RESNET = {"name": "resnet8", "width": 0.25}
ADAFOCAL = assignment("adafocal")
COUNTING = assignment({"name": "selective_risk", "history": "epoch"}, checkpoint="best_val_nll")
CASES = [assignment(), ADAFOCAL, COUNTING, assignment("focal", RESNET)]
DROPOUT = {"name": "wide_resnet", "depth": 10, "width": 0.25, "dropout": 0.3}
LANES = [
    ADAFOCAL,
    COUNTING,
    assignment({"name": "hessian_trace", "weight": 1e-3}, name="adam", lr=1e-3, momentum=None),
    assignment("focal", DROPOUT),
]


def named(case):
    return case if isinstance(case, str) else "-".join(case.values[part]["name"] for part in ("loss", "architecture"))


def settings_for(case, **changes):
    """Curvature is measured of perceptrons alone, because it takes long for convolutions."""
    return replace(SETTINGS if case.values["architecture"]["name"] == "mlp" else UNCURVED, **changes)


@pytest.fixture(scope="module")
def dataset():
    return small_digits()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    prepare_process(SETTINGS)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def all_kept(monkeypatch):
    monkeypatch.setattr("trainables.worker.checkpoints.TrialFiles.keep_newest", lambda files, count: None)


@pytest.mark.usefixtures("all_kept")
@pytest.mark.parametrize(
    ("case", "packing"), [*((case, "sequential") for case in CASES), *((case, "lanes") for case in LANES)], ids=named
)
def test_a_trial_resumed_at_every_epoch_is_the_same(tmp_path, dataset, case, packing):
    """Reports after each epoch, so that there is a checkpoint after each; all are kept, and each is resumed from."""
    settings = settings_for(case, checkpoints=tmp_path, report_seconds=0.0, packing=packing)
    expected = finished(Trial(case, settings, dataset))
    assert [(report["epoch"], report["packing"]) for report in expected] == [(epoch, packing) for epoch in (1, 2, 3, 4)]
    for epoch in (3, 2, 1):
        for later in range(epoch + 1, 5):
            checkpoint_file(tmp_path / "c00007", later).unlink()
        resumed = Trial(case, settings, dataset)
        assert resumed.epoch == epoch
        assert timeless(finished(resumed)) == timeless(expected[epoch - 1 :]), f"from epoch {epoch}"


class Killed(BaseException):
    """Stands for a SIGKILL: nothing catches it."""


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_trial_killed_within_an_epoch_is_the_same(tmp_path, monkeypatch, dataset, case):
    """Each step has a checkpoint; the process is gone after the fifth, ninth, … of its life, in either replicate."""
    settings = settings_for(case, checkpoints=tmp_path, checkpoint_seconds=1e-9)
    expected = timeless(finished(Trial(case, replace(settings, checkpoints=None), dataset)))
    write, steps, found, deaths = Trial._after_step, 0, [], 0

    def until_killed(trial):
        nonlocal steps
        write(trial)
        trial._writer.settle()
        steps += 1
        if steps % 5 == 0:
            raise Killed

    monkeypatch.setattr(Trial, "_after_step", until_killed)
    while not found or json.loads(found[-1])["epoch"] < 4:
        trial = Trial(case, settings, dataset)
        try:
            while not trial.finished:
                (report,) = timeless([trial.advance().to_dict()])
                found += [report] if report not in found else []  # it repeats one that may have been lost
        except Killed:
            deaths += 1
    assert found == expected
    assert deaths == steps // 5 >= 4, "nothing was trained twice"
    assert not (tmp_path / "c00007" / PARTIAL).exists()


@pytest.mark.parametrize("damage", ["truncated", "absent"])
def test_without_a_sound_checkpoint_it_continues_from_the_epoch(tmp_path, monkeypatch, dataset, damage):
    settings = replace(SETTINGS, checkpoints=tmp_path, checkpoint_seconds=1e-9)
    expected = timeless(finished(Trial(assignment(), replace(settings, checkpoints=None), dataset)))
    write = Trial._after_step

    def until_the_second_epoch(trial):
        write(trial)
        trial._writer.settle()
        if trial.epoch == 1:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Trial, "_after_step", until_the_second_epoch)
        trial = Trial(assignment(), settings, dataset)
        trial.advance()
        with pytest.raises(Killed):
            trial.advance()
    partial = tmp_path / "c00007" / PARTIAL
    assert partial.exists()
    partial.unlink() if damage == "absent" else partial.write_bytes(partial.read_bytes()[:-1000])
    resumed = Trial(assignment(), settings, dataset)
    assert timeless(finished(resumed)) == expected


def test_how_often_it_reports_changes_no_measurement(dataset):
    reports, reference = (
        finished(Trial(assignment(), replace(SETTINGS, report_seconds=seconds), dataset)) for seconds in (0.0, 1e9)
    )
    assert [[r["epoch"] for r in each] for each in (reports, reference)] == [[1, 2, 3, 4], [1, 2, 4]]
    for each in (reports, reference):
        rows = [row for report in each for row in report["epochs"]]
        assert [(row["epoch"], row["replicate"]) for row in rows] == [(e, r) for e in (1, 2, 3, 4) for r in (0, 1)]
    assert timeless(reports)[-1][-200:] == timeless(reference)[-1][-200:]
    assert reports[-1]["objective"] == reference[-1]["objective"]


def test_a_replicate_is_the_same_alone_and_beside_another(dataset):
    both = finished(Trial(assignment(seeds=(11, 12)), SETTINGS, dataset))
    alone = finished(Trial(assignment(seeds=(12,)), SETTINGS, dataset))
    for report, single in zip(both, alone, strict=True):
        for table in ("epochs", "evaluations"):
            second = [{**row, "replicate": 0} for row in report[table] if row["replicate"] == 1]
            assert timeless([second]) == timeless([single[table]])


def test_the_objective_at_the_end_is_of_the_weights_that_are_kept(dataset):
    """The report orders trials by evaluations: had the journal judged other weights, it would name another best."""
    case = assignment(lr=1.0, schedule="constant", checkpoint="best_val_nll")
    reports = finished(Trial(case, SETTINGS, dataset))
    kept = [row["nll"] for row in reports[-1]["evaluations"] if row["split"] == "val"]
    last = [row["val_nll"] for row in reports[-1]["epochs"] if row["epoch"] == 4]
    assert reports[-1]["objective"] == pytest.approx(sum(kept) / 2, rel=1e-15)
    assert sum(kept) < 0.9 * sum(last), "else this shows nothing: the last epoch is each replicate's best"


@pytest.mark.parametrize("objective", ["val_nll", "val_ece", "val_brier", "test_nll"])
def test_the_objective_is_the_replicates_mean_where_it_is_measured(dataset, objective):
    settings = replace(SETTINGS, objective=objective, rungs=(2, 4), report_seconds=0.0)
    first, second = (Trial(assignment(), settings, dataset) for _ in range(2))
    early, at_rung = first.advance().to_dict(), [second.advance(), second.advance()][1].to_dict()
    assert (early["objective"] is None) == (objective in ("val_brier", "test_nll"))
    split, _, name = objective.partition("_")
    values = [row[name] for row in at_rung["evaluations"] if row["split"] == split]
    assert at_rung["objective"] == pytest.approx(sum(values) / 2, rel=1e-6)


def test_after_a_restore_the_last_report_is_repeated(tmp_path, dataset):
    settings = replace(SETTINGS, checkpoints=tmp_path)
    sent = Trial(assignment(), settings, dataset).advance().to_dict()
    resumed = Trial(assignment(), settings, dataset)
    assert resumed.epoch == 1
    assert json.dumps(resumed.advance().to_dict()) == json.dumps(sent), "to the last digit of its times"
    assert resumed.advance().epoch == 2


def test_a_finished_trial_repeats_its_last_report_and_trains_no_more(tmp_path, dataset):
    settings = replace(SETTINGS, checkpoints=tmp_path)
    last = finished(Trial(assignment(), settings, dataset))[-1]
    resumed = Trial(assignment(), settings, dataset)
    assert not resumed.finished
    assert json.dumps(finished(resumed)) == json.dumps([last])


def test_wall_time_continues_over_a_restore(tmp_path, dataset):
    ticks = iter(range(0, 10_000, 5))
    settings = replace(SETTINGS, checkpoints=tmp_path)
    first = Trial(assignment(), settings, dataset).advance(lambda: float(next(ticks)))
    resumed = Trial(assignment(), settings, dataset)
    resumed.advance()
    assert resumed.advance(lambda: float(next(ticks))).wall_seconds > first.wall_seconds > 0


def test_one_checkpoint_is_kept_once_the_next_report_was_asked_for(tmp_path, dataset):
    trial = Trial(assignment(), replace(SETTINGS, checkpoints=tmp_path), dataset)
    kept = [trial.advance() and checkpoint_epochs(tmp_path / "c00007") for _ in range(3)]
    assert kept == [[1], [2, 1], [4, 2]], "the former one stays until its successor is known to be journaled"


def test_a_checkpoint_of_other_seeds_is_not_continued(tmp_path, dataset):
    settings = replace(SETTINGS, checkpoints=tmp_path)
    Trial(assignment(seeds=(1, 2)), settings, dataset).advance()
    for seeds in ((1, 3), (1,), (1, 2, 3)):
        assert Trial(assignment(seeds=seeds), settings, dataset).epoch == 0


def test_a_loss_that_is_no_number_fails_at_once_with_its_place(tmp_path, dataset):
    settings = replace(SETTINGS, checkpoints=tmp_path, rungs=(4,))
    report = Trial(assignment(), settings, poisoned(dataset)).advance().to_dict()
    values = {"metric": "train_loss", "replicate": 0, "value": "nan", "epoch": 1}
    assert report["failure"] == Failure("non_finite", values).to_dict()
    assert math.isnan(report["objective"]) and report["epoch"] == 1
    assert len(report["epochs"]) == 2 and report["evaluations"] == []
    assert checkpoint_epochs(tmp_path / "c00007") == [], "nothing that could be resumed from"


def test_a_trial_that_takes_too_long_fails_after_its_epoch_and_has_its_time_again_when_resumed(tmp_path, dataset):
    seconds = iter(range(0, 10_000, 4))
    settings = replace(SETTINGS, checkpoints=tmp_path, timeout_seconds=10.0, report_seconds=0.0)

    def clock():
        return float(next(seconds))

    def until_it_ends():
        trial, reports = Trial(assignment(), settings, dataset), []
        while not trial.finished and not (reports and "failure" in reports[-1]):
            reports.append(trial.advance(clock).to_dict())
        return reports

    failed = until_it_ends()
    assert failed[-1]["failure"]["kind"] == "timed_out" and failed[-1]["failure"]["values"]["trial_timeout"] == 10
    assert 1 < failed[-1]["epoch"] < 4 and "failure" not in failed[0]
    resumed = until_it_ends()
    assert resumed[0]["epoch"] == failed[-2]["epoch"], "from the last checkpoint before"
    assert "failure" not in resumed[1] and resumed[1]["epoch"] == failed[-1]["epoch"]


def test_each_evaluations_predictions_and_bins_are_written_once(tmp_path, dataset):
    settings = replace(SETTINGS, tables=tmp_path)
    for _ in range(2):
        finished(Trial(assignment(), settings, dataset))
    names = [f"c00007-r{r}-e{e:05d}.parquet" for r in (0, 1) for e in (1, 2, 4)]
    for table in ("predictions", "reliability"):
        assert sorted(os.listdir(tmp_path / table)) == names
    assert not (tmp_path / "spectra").exists(), "not asked for"
    predictions = pq.read_table(tmp_path / "predictions" / names[0])
    assert predictions.num_rows == len(dataset.val) + len(dataset.test)
    accuracy = Trial(assignment(), SETTINGS, dataset).advance().evaluations[0]["accuracy"]
    rows = [row for row in predictions.to_pylist() if row["split"] == "val"]
    correct = [max(range(10), key=row["logits"].__getitem__) == row["target"] for row in rows]
    assert sum(correct) / len(correct) == accuracy


def test_a_spectrum_is_written_or_its_reason_is_and_the_trial_continues(tmp_path, dataset, monkeypatch):
    curvature = {"samples": 40, "lanczos_steps": 2, "trace_probes": 2, "spectrum": True, "spectrum_steps": 3}
    evaluation = EvaluationSettings.from_mapping({"curvature": curvature, "posthoc": [], "bootstrap": 0})
    settings = replace(SETTINGS, tables=tmp_path / "measured", evaluation=evaluation)
    reports = finished(Trial(assignment(), settings, dataset))
    parts = sorted((tmp_path / "measured" / "spectra").iterdir())
    assert [part.name for part in parts] == [f"c00007-r{r}-e{e:05d}.parquet" for r in (0, 1) for e in (1, 2, 4)]
    rows = pq.read_table(parts[0]).to_pylist()
    assert {(row["loss"], row["samples"]) for row in rows} == {("cross_entropy", 40), ("training", 40)}
    for label in ("cross_entropy", "training"):
        assert math.isclose(sum(row["weight"] for row in rows if row["loss"] == label), 1, rel_tol=1e-9)
    assert not any("spectrum_unavailable" in row for report in reports for row in report["evaluations"])

    def fail(*arguments, **options):
        raise CurvatureUnavailable("a Hessian-vector product has entries that are not finite")

    monkeypatch.setattr("trainables.training.evaluation.spectral_density", fail)
    reports = finished(Trial(assignment(), replace(settings, tables=tmp_path / "failed"), dataset))
    rows = [row for report in reports for row in report["evaluations"] if row["split"] == "val"]
    assert reports[-1]["epoch"] == 4 and len(rows) == 6
    assert all("not finite" in row["spectrum_unavailable"] and row["hessian_training_trace"] for row in rows)
    assert pq.read_table(tmp_path / "failed" / "spectra").num_rows == 0


def test_a_reused_process_is_set_up_again():
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    prepare_process(SETTINGS)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 1 and torch.get_default_dtype() == torch.float32


def test_an_added_seed_measures_curvature_but_no_spectrum_or_layers():
    detailed = replace(SETTINGS.evaluation.curvature, spectrum=True, blocks=True, statistics=("fisher",))
    settings = replace(SETTINGS, evaluation=replace(SETTINGS.evaluation, curvature=detailed))
    own = Assignment(0, "c00000", {}, (1,))
    assert settings.suited(own) == settings
    added = settings.suited(replace(own, replicate=3, final=True))
    assert added.evaluation.curvature == replace(detailed, spectrum=False, blocks=False, statistics=())
    assert added.rungs == (settings.max_epochs,) and added.evaluation.trajectory is None
    assert UNCURVED.suited(replace(own, final=True)).evaluation.curvature is None
