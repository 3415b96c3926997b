"""Normalisation layers composed of elementary operations: the same values, and right third derivatives."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from trainables.curvature.trace import generator_on, random_signs
from trainables.losses import build_loss
from trainables.losses.hessian_trace import ComposedNormalisation, HessianTrace

LAYERS = {
    "batch norm": lambda: nn.BatchNorm1d(4),
    "batch norm, plain": lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
    "batch norm, images": lambda: nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.BatchNorm2d(4), nn.Flatten()),
    "layer norm": lambda: nn.LayerNorm(4),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "instance norm": lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, affine=True), nn.Flatten()),
    "root mean square": lambda: nn.RMSNorm(4),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "instance norm, running": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()
    ),
}
every_layer = pytest.mark.parametrize("label", LAYERS)


def _layer(label):
    torch.manual_seed(1)
    layer = LAYERS[label]().double()
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return layer


@every_layer
@pytest.mark.parametrize("training", [True, False])
def test_values_and_running_statistics_are_the_layers_own(label, training):
    composed, native = _layer(label).train(training), _layer(label).train(training)
    for seed in range(3):
        inputs = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        with ComposedNormalisation():
            value = composed(inputs)
        torch.testing.assert_close(value, native(inputs), rtol=1e-12, atol=1e-12)
    for name, tensor in native.state_dict().items():
        torch.testing.assert_close(composed.state_dict()[name], tensor, rtol=1e-12, atol=1e-12)


@every_layer
def test_the_gradient_of_the_trace_matches_central_differences(label):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(3, 4), _layer(label).float(), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs, targets = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])

    def value(weight):
        network = copy.deepcopy(model)
        network[0].weight.data = weight
        loss = build_loss("hessian_trace", weight=1.0, seed=7)
        return loss(network, inputs, targets), network[0].weight

    at = model[0].weight.detach().clone()
    total, weight = value(at)
    total.backward()
    for row, column in ((0, 0), (1, 2), (3, 1)):
        step = torch.zeros_like(at)
        step[row, column] = 1e-5
        slope = (value(at + step)[0] - value(at - step)[0]).item() / 2e-5
        assert weight.grad[row, column].item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


class WeightNormed(nn.Module):
    """A linear layer of weights g·v/‖v‖, with its parameters in the order of torch's."""

    def __init__(self, layer):
        super().__init__()
        parts = layer.parametrizations.weight
        self.bias, self.g, self.v = layer.bias, parts.original0, parts.original1

    def forward(self, inputs):
        return nn.functional.linear(inputs, self.v * (self.g / self.v.norm(dim=1, keepdim=True)), self.bias)


def test_the_trace_of_weight_normalised_layers_is_that_of_its_formula():
    torch.manual_seed(3)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))
    inputs, targets = torch.randn(8, 6), torch.arange(8) % 4
    found, expected = (
        build_loss("hessian_trace", weight=1.0, probes=4, seed=7)(nn.Sequential(first, nn.ReLU()), inputs, targets)
        for first in (layer, WeightNormed(layer))
    )
    assert float(found) == pytest.approx(float(expected), rel=1e-4)


def small_network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def apply(parameters, inputs):
    """The same network as a function of its parameters."""
    hidden = torch.tanh(inputs @ parameters["0.weight"].T + parameters["0.bias"])
    return hidden @ parameters["2.weight"].T + parameters["2.bias"]


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (7,), generator=generator)


def dense_hessian(network, base, inputs, targets):
    shapes = [p.shape for p in network.parameters()]
    flat = nn.utils.parameters_to_vector(network.parameters()).detach()

    def value(vector):
        pieces = vector.split([s.numel() for s in shapes])
        names = [name for name, _ in network.named_parameters()]
        parameters = {k: p.reshape(s) for k, p, s in zip(names, pieces, shapes, strict=True)}
        return base(apply(parameters, inputs), targets)

    return torch.func.hessian(value)(flat), flat, value


def signs(loss, network):
    probes = loss.draw([*network.parameters()])
    loss.reseed(0)
    return [nn.utils.parameters_to_vector(probe) for probe in probes]


@pytest.mark.parametrize("base", [{"base": "cross_entropy"}, {"base": "focal", "gamma": 2.0}, {"base": "brier"}])
@pytest.mark.parametrize("probes", [1, 3])
def test_value_and_gradient_equal_the_dense_hessian(base, probes):
    for seed in range(20):
        network, (inputs, targets) = small_network(seed), data(seed)
        loss = build_loss("hessian_trace", weight=0.1, probes=probes, **base)
        vectors = signs(loss, network)
        value = loss(network, inputs, targets)
        hessian, flat, plain = dense_hessian(network, loss.base, inputs, targets)
        expected = plain(flat) + 0.1 * sum(v @ hessian @ v for v in vectors) / probes
        assert value.item() == pytest.approx(expected.item(), rel=1e-10, abs=1e-10)
        loss.reseed(0)
        single = small_network(seed).float()
        assert loss(single, inputs.float(), targets).item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
        if seed < 2:
            gradient = torch.autograd.grad(value, list(network.parameters()))
            estimate = nn.utils.parameters_to_vector(gradient)

            def penalised(vector, plain=plain, vectors=vectors):
                matrix = torch.func.hessian(plain)(vector)
                return plain(vector) + 0.1 * sum(v @ matrix @ v for v in vectors) / probes

            for index in (0, 9, 20, 30):
                step = torch.zeros_like(flat)
                step[index] = 1e-5
                slope = (penalised(flat + step) - penalised(flat - step)) / 2e-5
                assert estimate[index].item() == pytest.approx(slope.item(), rel=1e-4, abs=1e-7)


def test_weight_zero_is_the_base_loss():
    network, (inputs, targets) = small_network(), data()
    base = build_loss("cross_entropy")(network(inputs), targets)
    assert build_loss("hessian_trace", weight=0.0)(network, inputs, targets) == base
    assert build_loss("hessian_trace", weight=torch.tensor(0.0))(network, inputs, targets) == base


def test_probes_are_unbiased():
    network, (inputs, targets) = small_network(), data()
    loss = build_loss("hessian_trace", weight=1.0, probes=2000)
    hessian, _, _ = dense_hessian(network, loss.base, inputs, targets)
    vectors = torch.stack(signs(loss, network))
    assert set(vectors.unique().tolist()) == {-1.0, 1.0}
    estimates = ((vectors @ hessian) * vectors).sum(-1)
    error = estimates.std() / len(vectors) ** 0.5
    assert abs(estimates.mean() - hessian.trace()) < 4 * error


def test_own_generator_repeats_and_leaves_the_global_one_alone():
    network, (inputs, targets) = small_network(), data()
    first, second = (build_loss("hessian_trace", seed=5) for _ in range(2))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    values = [first(network, inputs, targets).item() for _ in range(3)]
    assert torch.equal(before, torch.get_rng_state())
    saved = second.state_dict()
    assert [second(network, inputs, targets).item() for _ in range(3)] == values
    second.load_state_dict(saved)
    assert second(network, inputs, targets).item() == values[0]
    assert len(set(values)) == 3


def test_hooks_and_state_reach_the_base(reference):
    loss = build_loss("hessian_trace", base="focal_scheduled")
    loss.begin_epoch(9, 10)
    assert loss.base.gamma == 2.0
    other = build_loss("hessian_trace", base="focal_scheduled")
    other.load_state_dict(loss.state_dict())
    assert other.base.gamma == 2.0
    adaptive = build_loss("hessian_trace", base="adafocal")
    logits, targets = reference.batch(7, shape=(60, 5))
    adaptive.end_epoch(logits, targets)
    assert adaptive.base.state_dict()["gammas"].std() > 0
    assert adaptive.frozen(logits, targets).name == "signed_focal"


@pytest.mark.parametrize("base", ["mmce", "kde_xe", "aurc", "selective_risk", "hessian_trace"])
def test_bases_that_are_no_mean_over_samples_are_refused(base):
    with pytest.raises(ValueError, match=f"cannot wrap {base}: .*choose a base"):
        build_loss("hessian_trace", base=base)
    if base != "hessian_trace":
        with pytest.raises(ValueError, match="cannot wrap"):
            HessianTrace(build_loss(base))


def test_faults_of_the_base_are_reported():
    for options, message in [
        ({"base": "focul"}, "did you mean 'focal'"),
        ({"base": "focal", "gamma": -1}, "outside"),
        ({"base": "cross_entropy", "gamma": 1.0}, "cross_entropy takes no hyperparameter 'gamma'"),
        ({"base": "inverse_focal", "gamma": 4.0}, "turns positive"),
    ]:
        with pytest.raises(ValueError, match=message):
            build_loss("hessian_trace", **options)


def test_batch_norm_and_untrainable_models():
    torch.manual_seed(0)
    inputs, targets = data()
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()
    loss = build_loss("hessian_trace", weight=0.1)
    loss(network, inputs, targets).backward()
    assert network[1].num_batches_tracked == 1
    assert all(p.grad.isfinite().all() for p in network.parameters())
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="trainable parameters"):
        loss(network, inputs, targets)


def test_on_a_card_probes_are_drawn_there_from_the_state_that_checkpoints_keep(monkeypatch):
    made = []

    def generator(device="cpu"):
        made.append(torch.device(device).type)
        return Generator()

    Generator = torch.Generator
    source = Generator().manual_seed(3)
    monkeypatch.setattr(torch, "Generator", generator)
    state = source.get_state()
    first, second = (generator_on(torch.device("cuda"), source) for _ in range(2))
    assert made == ["cuda", "cuda"]
    drawn = [random_signs((1000,), torch.zeros(1), each) for each in (first, second)]
    assert not torch.equal(*drawn) and all(abs(float(signs.mean())) < 0.2 for signs in drawn)
    source.set_state(state)
    again = [random_signs((1000,), torch.zeros(1), generator_on(torch.device("cuda"), source)) for _ in range(2)]
    assert all(map(torch.equal, drawn, again))
    assert generator_on(torch.device("cpu"), source) is source
