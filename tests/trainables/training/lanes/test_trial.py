"""A trial of lanes: the same rows as alone up to rounding, and a diverging lane ends alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.trainables.small_data import poisoned, small_digits
from tests.trainables.small_trials import assignment, finished, timeless
from tests.trainables.training.lanes.comparison import in_type
from tests.trainables.worker.test_trial import COUNTING, DROPOUT, SETTINGS as PLAIN_SETTINGS
from trainables.worker.trial import Trial
from trainables.worker.trial_reports import Failure
from trainables.worker.trial_settings import prepare_process

SETTINGS = replace(PLAIN_SETTINGS, rungs=(2, 4), report_seconds=0.0, packing="lanes")
CASE = assignment("adafocal", seeds=(11, 12, 13))
PACKINGS = pytest.mark.parametrize("packing", ["lanes", "sequential"])


@pytest.fixture(scope="module")
def dataset():
    return small_digits()


def diverged(replicate, epoch):
    values = {"metric": "train_loss", "replicate": replicate, "value": "nan", "epoch": epoch}
    return Failure("non_finite", values)


def test_a_trial_keeps_the_packing_it_began_with(tmp_path, dataset):
    for began, other in (("lanes", "sequential"), ("sequential", "auto")):
        settings = replace(SETTINGS, checkpoints=tmp_path / began, packing=began)
        Trial(CASE, settings, dataset).advance()
        reports = finished(Trial(CASE, replace(settings, packing=other), dataset))
        assert [report["packing"] for report in reports] == [began] * 4


def test_evaluations_are_those_of_the_same_weights_alone(double, dataset):
    data = in_type(dataset, double)
    for case in (COUNTING, assignment("focal", DROPOUT)):
        lanes, alone = (
            finished(Trial(case, replace(SETTINGS, packing=packing, max_epochs=2, rungs=(2,)), data))
            for packing in ("lanes", "sequential")
        )
        for one, other in zip(lanes, alone, strict=True):
            assert one["objective"] == pytest.approx(other["objective"], rel=1e-6)
            for row, expected in zip(one["evaluations"], other["evaluations"], strict=True):
                for column, value in expected.items():
                    close = (
                        value if not isinstance(value, float) else pytest.approx(value, rel=1e-5, abs=1e-7, nan_ok=True)
                    )
                    assert row[column] == close, column


@PACKINGS
@pytest.mark.parametrize("lane", [0, 1, 2])
def test_a_diverging_replicate_ends_alone(monkeypatch, dataset, packing, lane):
    """One replicate's first weight becomes infinite after an epoch; the others train as if it had never been."""
    case = assignment(seeds=(11, 12, 13), checkpoint="best_val_nll")
    settings = replace(SETTINGS, packing=packing)
    expected = finished(Trial(case, settings, dataset))
    trial = Trial(case, settings, dataset)
    reports = [trial.advance().to_dict()]
    with torch.no_grad():
        next(trial.replicates[lane].model.parameters()).fill_(torch.inf)
    reports += finished(trial)
    assert not any("failure" in report for report in reports) and len(reports) == 4
    assert "replicate_errors" not in reports[0]
    error = {str(lane): diverged(lane, 2).to_dict()}
    assert [report["replicate_errors"] for report in reports[1:]] == [error] * 3
    others = [number for number in range(3) if number != lane]
    for report, reference in zip(reports[1:], expected[1:], strict=True):
        assert {row["replicate"] for row in report["evaluations"]} in (set(), set(others))
        sound = [row for row in report["epochs"] if row["replicate"] != lane]
        matching = [row for row in reference["epochs"] if row["replicate"] != lane]
        for row, wanted in zip(sound, matching, strict=True):
            assert row["val_nll"] == pytest.approx(wanted["val_nll"], rel=1e-4)
            assert packing == "lanes" or row["val_nll"] == wanted["val_nll"]
        assert report["objective"] == pytest.approx(sum(row["val_nll"] for row in sound) / 2, rel=1e-12)


@PACKINGS
def test_a_trial_resumes_without_its_diverged_replicate(tmp_path, dataset, packing):
    settings = replace(SETTINGS, packing=packing, checkpoints=tmp_path)
    trial = Trial(CASE, settings, dataset)
    trial.advance()
    with torch.no_grad():
        next(trial.replicates[1].model.parameters()).fill_(torch.nan)
    second = trial.advance().to_dict()
    resumed = Trial(CASE, settings, dataset)
    assert [*resumed.replicates] == [0, 2]
    assert json.dumps(resumed.advance().to_dict()) == json.dumps(second)
    assert timeless(finished(resumed)) == timeless(finished(trial))


@PACKINGS
def test_a_trial_fails_when_its_last_replicate_diverges(dataset, packing):
    trial = Trial(CASE, replace(SETTINGS, packing=packing, rungs=(4,)), dataset)
    trial.advance()
    for dying in ([0, 2], [1]):
        for number in dying:
            with torch.no_grad():
                next(trial.replicates[number].model.parameters()).fill_(torch.nan)
        report = trial.advance().to_dict()
    assert report["failure"] == diverged(1, 3).to_dict() and math.isnan(report["objective"])
    assert [*report["replicate_errors"]] == ["0", "2", "1"]


@PACKINGS
def test_data_that_spoil_every_replicate_fail_the_trial_at_once(dataset, packing):
    report = Trial(CASE, replace(SETTINGS, packing=packing), poisoned(dataset)).advance().to_dict()
    assert report["failure"] == diverged(0, 1).to_dict()


CARD = SimpleNamespace(total_memory=80 * 2**30)


@pytest.mark.parametrize(
    ("device", "gpu", "cap"),
    [("cuda", 0.25, [0.25 - 0.5 / 80]), ("cuda", 1 / 128, [1 / 256]), ("cuda", 1.0, [1.0]), ("cpu", 0.0, [])],
)
def test_a_share_of_a_card_is_a_share_of_its_memory_less_what_cuda_takes(monkeypatch, device, gpu, cap):
    capped = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda card: CARD)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", capped.append)
    prepare_process(replace(SETTINGS, device=device, gpu=gpu))
    assert capped == pytest.approx(cap)
