"""What is measured on a card is what a sweep does there: training steps and a whole evaluation, and nothing is kept."""

from __future__ import annotations

import dataclasses

import pytest

from tests.trainables.small_data import small_digits
from trainables.curvature import hessian
from trainables.training.evaluation import EvaluationSettings
from trainables.worker import workers
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import Assignment, TrialSettings
from trainables.worker.workers import STEPS, rehearse

VALUES = {
    "loss": {"name": "cross_entropy"},
    "architecture": {"name": "mlp", "width": 8},
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "batch_size": 16},
}
SETTINGS = TrialSettings(
    dataset={"name": "digits"}, max_epochs=300, rungs=(3, 300), objective="val_nll", timeout_seconds=1e-9,
    evaluation=EvaluationSettings.from_mapping({"posthoc": [], "curvature": False, "bootstrap": 0}),
)  # fmt: skip


@pytest.mark.parametrize("packing", ["sequential", "fused", "trials"])
def test_a_rehearsal_takes_a_few_steps_and_a_whole_evaluation_and_leaves_nothing(tmp_path, packing, monkeypatch):
    dataset, sizes = small_digits(), []

    class Counted(Trial):
        def __init__(self, assignment, settings, data):
            sizes.append((len(data.train), len(data.val), len(data.test)))
            super().__init__(assignment, settings, data)

    monkeypatch.setattr(workers, "Trial", Counted)
    settings = dataclasses.replace(SETTINGS, packing=packing, tables=tmp_path / "t", checkpoints=tmp_path / "c")
    seeds = [1] if packing == "trials" else [1, 2, 3]
    report = rehearse(Assignment(0, "c00000", VALUES, seeds), settings, dataset)
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
    settings = dataclasses.replace(SETTINGS, evaluation=measured)
    dataset, assignment = small_digits(), Assignment(0, "c00000", VALUES, [1])
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
