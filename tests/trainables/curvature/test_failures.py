"""Networks that mix samples are measured in one pass; what no measurement can be right for is refused."""

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, cross_entropy

from trainables.curvature import CurvatureSettings, CurvatureUnavailable, hessian as surface_module, measure_curvature
from trainables.curvature.failures import samples_mix

SETTINGS = CurvatureSettings(lanczos_steps=60, residual_tolerance=1e-6, trace_probes=60, batch_size=4)


class BatchStatistics(nn.Module):
    """Normalises by the batch, in evaluation mode, too."""

    def forward(self, inputs):
        return batch_norm(inputs, None, None, training=True)


class Random(nn.Module):
    def forward(self, inputs):
        return inputs + torch.randn_like(inputs)


class Tuple(nn.Module):
    def forward(self, inputs):
        return inputs, inputs


def network(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), *more, nn.Linear(5, 3)).double()


MIXING = {
    "without running statistics": lambda: network(nn.BatchNorm1d(5, track_running_stats=False), nn.ReLU()),
    "training statistics": lambda: network(BatchStatistics(), nn.ReLU()),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_network_that_mixes_samples_is_measured_in_one_pass(reference, monkeypatch, name):
    model, (inputs, targets) = MIXING[name](), reference.batch(24)
    truth = reference.dense_hessian(model.eval(), inputs, targets, cross_entropy)
    monkeypatch.setattr(surface_module, "_CPU_PLAN", 10_000)  # chunks of 8
    row = measure_curvature(model, inputs, targets, {"t": cross_entropy}, settings=SETTINGS, seed=0)["t"]
    assert row["lambda_max"] == pytest.approx(float(torch.linalg.eigvalsh(truth)[-1]), rel=1e-4)
    assert abs(row["trace"] - float(truth.trace())) <= 4 * row["trace_se"]
    monkeypatch.setattr(surface_module, "_CPU_PLAN", 1000)
    with pytest.raises(CurvatureUnavailable, match=r"mixes samples.*24 samples.*evaluation.curvature.samples"):
        measure_curvature(model, inputs, targets, {"t": cross_entropy}, settings=SETTINGS, seed=0)


@pytest.mark.parametrize(("layer", "words"), [(Random, "outputs vary between calls"), (Tuple, "returns a tuple")])
def test_what_is_no_function_of_the_weights_is_refused(reference, layer, words):
    model, (inputs, targets) = nn.Sequential(network(), layer()), reference.batch(24)
    with pytest.raises(CurvatureUnavailable, match=words):
        measure_curvature(model, inputs, targets, {"t": cross_entropy}, settings=SETTINGS, seed=0)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["mlp", "conv", "attention"])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_samples_of_ordinary_networks_stay_apart(reference, kind, count, precision):
    model = reference.build(kind).to(precision)
    assert not samples_mix(model, nn.Identity(), reference.batch(count)[0].to(precision))
