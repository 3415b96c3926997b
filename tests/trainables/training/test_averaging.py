"""The average of weights is torch's, is what evaluations measure, and continues from a checkpoint."""

from __future__ import annotations

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.trainables.small_data import small_digits
from tests.trainables.training.lanes.comparison import configuration
from trainables.training.evaluation import EvaluationSettings
from trainables.training.fine_tuning import measured_weights
from trainables.training.loop import Replicate
from trainables.training.prediction import predict

DECAY = 0.8


@pytest.fixture(scope="module")
def dataset():
    return small_digits()


def _replicate(dataset, **optimizer):
    values = configuration(architecture={"name": "resnet8", "width": 0.25}, **optimizer)
    return Replicate(values, seed=3, dataset=dataset, max_epochs=2)


def test_the_average_is_torchs_and_a_plain_sums(dataset):
    found, plain = _replicate(dataset, ema=DECAY), _replicate(dataset)
    oracle = AveragedModel(plain.model, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=True)
    seen = []
    for _ in range(2):
        found.train_epoch()
        plain.begin_epoch()
        with plain.own_randomness():
            for inputs, targets in plain.training_batches():
                plain._step(inputs, targets)
                oracle.update_parameters(plain.model)
                seen.append([p.detach().double().clone() for p in plain.model.parameters()])
        plain.epoch += 1
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), plain.model.parameters(), strict=True))
    for name, tensor in found.measured.state_dict().items():
        assert torch.equal(tensor, oracle.module.state_dict()[name]), name
    for index, averaged in enumerate(found.measured.parameters()):
        steps = [weights[index] for weights in seen]
        total = DECAY ** (len(steps) - 1) * steps[0] + sum(
            (1 - DECAY) * DECAY ** (len(steps) - 1 - at) * weights for at, weights in enumerate(steps) if at
        )
        torch.testing.assert_close(averaged.detach().double(), total, rtol=1e-4, atol=1e-6)


def test_epochs_and_evaluations_measure_the_average(dataset):
    found = _replicate(dataset, ema=DECAY)
    row = found.train_epoch()
    logits = predict(found.measured, dataset.val)
    nll = torch.nn.functional.cross_entropy(logits.double(), dataset.val.targets)
    assert row["val_nll"] == pytest.approx(float(nll), rel=1e-6)
    evaluation = found.evaluate(EvaluationSettings(bootstrap=0), "rung")
    assert torch.equal(torch.from_numpy(evaluation.logits["val"]), logits)
    assert not torch.equal(logits, predict(found.model, dataset.val))


@pytest.mark.parametrize("rule", ["last", "best_val_nll"])
def test_the_weights_to_export_are_those_that_are_measured(dataset, rule):
    found = _replicate(dataset, ema=DECAY, checkpoint=rule)
    for _ in range(2):
        found.train_epoch()
    named = measured_weights(found.state_dict(), finished=True)
    settings = EvaluationSettings(bootstrap=0)
    told = torch.from_numpy(found.evaluate(settings, "end").logits["test"])
    third = _replicate(dataset)
    third.model.load_state_dict(named)
    assert torch.equal(predict(third.model, dataset.test), told)
