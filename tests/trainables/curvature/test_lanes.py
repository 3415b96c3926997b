"""Lanes measured together beside the same networks one by one."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trainables.curvature import CurvatureSettings, measure_curvature
from trainables.curvature.lanes import Lane, measure_lanes
from trainables.losses import build_loss
from trainables.models import build_model

EXACT = {"matvecs", "samples", "trace_se"}
TRAINING = [
    ("focal", {"gamma": 2.0}), ("focal", {"gamma": 0.5}), ("cross_entropy", {}), ("brier", {}),
    ("selective_risk", {"coverage": 0.6}), ("adafocal", {}), ("logit_norm", {}),
]  # fmt: skip


def networks(kind, count, reference):
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        if kind in ("mlp", "conv", "tanh", "attention"):
            model = reference.build(kind)
            for parameter in model.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
        else:
            model = build_model("mlp", (1, 6, 6), 3, **kind).double()
        found.append(model)
    return found


def lanes(models, training=TRAINING):
    losses = [build_loss(name, **options) for name, options in training[: len(models)]]
    plain = build_loss("cross_entropy")
    return [
        Lane(model, {"cross_entropy": plain, "training": loss}, seed)
        for seed, (model, loss) in enumerate(zip(models, losses, strict=True))
    ]


def one_by_one(lane, data, settings):
    return measure_curvature(lane.model, *data, lane.losses, settings=settings, seed=lane.seed)


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for label, values in expected.items():
        own, rows = found[label]
        assert list(own) == list(values)
        assert rows == []
        for name, value in values.items():
            # A residual below the tolerance is a difference of large numbers.
            close = math.isclose(own[name], value, rel_tol=1e-9, abs_tol=1e-12)
            assert own[name] == value if name in EXACT else close, (label, name)


@pytest.mark.parametrize(
    "kind",
    ["mlp", {"depth": 1, "width": 7}, {"depth": 0, "bias": False}, {"depth": 3, "width": 4, "bias": False}],
    ids=str,
)
@pytest.mark.parametrize("settings", [{}, {"lanczos_steps": 5, "batch_size": 6}, {"samples": 12}])
def test_equals_one_by_one(reference, kind, settings):
    given, data = CurvatureSettings(**settings), reference.batch()
    held = lanes(networks(kind, len(TRAINING), reference))
    together = measure_lanes(held, *data, settings=given)
    assert None not in together
    for lane, found in zip(held, together, strict=True):
        assert_equal(found, one_by_one(lane, data, given))


def stacks(kind, inputs):
    size, relu = inputs[0].numel(), nn.ReLU()
    layers = {
        "ReLU first": lambda: [nn.ReLU(), nn.Linear(size, 5), nn.ReLU(), nn.Linear(5, 3)],
        "ReLU last": lambda: [nn.Linear(size, 5), nn.Linear(5, 3), nn.ReLU()],
        "ReLU twice": lambda: [nn.Linear(size, 5), nn.ReLU(), nn.ReLU(), nn.Linear(5, 3, bias=False)],
        "one ReLU in two places": lambda: [nn.Linear(size, 6), relu, nn.Linear(6, 4), relu, nn.Linear(4, 3)],
    }[kind]
    torch.manual_seed(0)
    return [nn.Sequential(nn.Flatten(), *layers()).double() for _ in range(3)]


@pytest.mark.parametrize("kind", ["ReLU first", "ReLU last", "ReLU twice", "one ReLU in two places"])
def test_every_stack_equals_one_by_one_or_is_left_to_it(reference, kind):
    settings, data = CurvatureSettings(lanczos_steps=6), reference.batch()
    held = lanes(stacks(kind, data[0]))
    together = measure_lanes(held, *data, settings=settings)
    assert (None in together) == (kind == "one ReLU in two places")
    for lane, found in zip(held, together, strict=True):
        if found is not None:
            assert_equal(found, one_by_one(lane, data, settings))


@pytest.mark.parametrize("kind", ["conv", "tanh", "attention"])
def test_other_networks_are_measured_one_by_one(reference, kind):
    settings, data = CurvatureSettings(lanczos_steps=4, trace_probes=2), reference.batch()
    held = lanes(networks(kind, 2, reference))
    assert measure_lanes(held, *data, settings=settings) == [None, None]


@pytest.mark.parametrize("settings", [{"blocks": True}, {"statistics": ("sharpness",)}])
def test_what_needs_graphs_of_its_own_is_measured_one_by_one(reference, settings):
    given, data = CurvatureSettings(lanczos_steps=4, trace_probes=2, **settings), reference.batch()
    held = lanes(networks("mlp", 3, reference))
    assert measure_lanes(held, *data, settings=given) == [None] * 3


def test_a_lane_that_cannot_be_stacked_leaves_the_others_as_they_are(reference):
    settings, data = CurvatureSettings(), reference.batch()
    models = networks("mlp", 4, reference)
    models[1][1].weight.data[0, 0] = math.nan
    held = lanes(models, [("focal", {}), ("focal", {}), ("mmce", {}), ("brier", {})])
    together = measure_lanes(held, *data, settings=settings)
    assert [found is None for found in together] == [False, True, True, False]
    for number in (0, 3):
        assert_equal(together[number], one_by_one(held[number], data, settings))


def test_lanes_that_do_not_fit_in_memory_together_are_measured_in_groups(reference, monkeypatch):
    settings, data = CurvatureSettings(), reference.batch()
    held = lanes(networks("mlp", 5, reference))
    whole = measure_lanes(held, *data, settings=settings)
    budgets = []

    def half(device):
        budgets.append(device)
        return 2.5 * bytes_of_graphs

    from trainables.curvature import lanes as module

    with module.second_order(torch.device("cpu")):
        bytes_of_graphs = module.surface_of(held[0].model, *data, settings, settings.lanczos_steps).graph_bytes
    monkeypatch.setattr(module, "graph_budget", half)
    for found, expected in zip(measure_lanes(held, *data, settings=settings), whole, strict=True):
        assert_equal(found, {label: values for label, (values, _) in expected.items()})
    assert budgets


def test_leaves_networks_and_random_state_alone(reference):
    models = networks("mlp", 2, reference)
    before, state = copy.deepcopy([model.state_dict() for model in models]), torch.get_rng_state()
    modes = [model.training for model in models]
    measure_lanes(lanes(models), *reference.batch(), settings=CurvatureSettings())
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [model.training for model in models]
    for model, held in zip(models, before, strict=True):
        assert all(torch.equal(value, held[name]) for name, value in model.state_dict().items())
        assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_plain_functions_are_losses_too(reference):
    held = [Lane(model, {"training": cross_entropy}, 3) for model in networks("mlp", 2, reference)]
    data, settings = reference.batch(), CurvatureSettings()
    together = measure_lanes(held, *data, settings=settings)
    for lane, found in zip(held, together, strict=True):
        assert_equal(found, one_by_one(lane, data, settings))


def test_a_linear_loss_has_no_curvature(reference):
    held = [Lane(model, {"training": lambda z, y: z.mean()}, 3) for model in networks({"depth": 0}, 2, reference)]
    data, settings = reference.batch(), CurvatureSettings(lanczos_steps=3)
    for lane, found in zip(held, measure_lanes(held, *data, settings=settings), strict=True):
        assert found["training"][0]["lambda_max"] == 0
        assert_equal(found, one_by_one(lane, data, settings))
