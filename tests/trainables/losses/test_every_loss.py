"""What every loss promises: finite numbers at the extremes, lanes under vmap, invariances, and its registry entry."""

from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from trainables.losses import LOSSES, build_loss
from trainables.losses.selective_risk import rank_weights


def in_range(h):
    """Three numbers that a hyperparameter can take: a lower one, its default (or .1 if it is off), and a larger one."""
    usual = h.default or 0.1
    lower = h.minimum if h.minimum is not None and not h.open_minimum else usual / 4
    return [lower, usual, 2 * usual if h.maximum is None else min(2 * usual, (usual + h.maximum) / 2)]


def cases_of(name):
    """Return label → (name, plain hyperparameters, hyperparameters with one value a lane), from what a loss declares.

    The numbers that its signature takes as tensors are lanes: those that are on by default, then all, with the last
    choice of how they act (`smoothing_form` of `smoothing`). Each other choice has a case of its own.
    """
    component = LOSSES[name]
    owner = next(base for base in component.build.__mro__ if "__init__" in vars(base))
    hints = get_type_hints(owner if "__dataclass_fields__" in vars(owner) else owner.__init__)
    lanes = {h.name: in_range(h) for h in component.hyperparameters if Tensor in get_args(hints[h.name])}
    on = {key: values for key, values in lanes.items() if component.hyperparameter(key).default}
    off, cases, acting = lanes.keys() - on.keys(), {name: (name, {}, on)}, {}
    for h in component.hyperparameters:
        values = {"boolean": [True, False], "integer": [h.maximum]}.get(h.kind, h.choices)
        for value in (value for value in values if value not in (h.default, None)):
            if any(h.name.startswith(key) for key in off):
                acting[h.name] = value
            else:
                cases[f"{name} {h.name}={value}"] = (name, {h.name: value}, on)
    return cases | ({f"{name} {' '.join(sorted(off))}": (name, acting, lanes)} if off else {})


# hessian_trace needs a network: `test_hessian_trace.py` tests it
CASES = {
    label: case for name in LOSSES if not LOSSES.has_tag(name, "needs_model") for label, case in cases_of(name).items()
}
FOCAL_TYPE = [name for name in LOSSES if name != "hessian_trace" and LOSSES[name].hyperparameter("smoothing")]
every_case = pytest.mark.parametrize("case", CASES)


def built(case):
    name, plain, lanes = CASES[case]
    return build_loss(name, **plain, **{key: values[1] for key, values in lanes.items()})


def extreme_batches(samples, classes):
    """Logits up to ±1e4: p_y → 1, p_y → 0, all equal, random, and one class at −1e4."""
    generator = torch.Generator().manual_seed(classes)
    targets = torch.randint(classes, (samples,), generator=generator)
    one_hot = torch.nn.functional.one_hot(targets, classes).float()
    noise = torch.randn(samples, classes, generator=generator)
    for logits in (
        one_hot * 2e4 - 1e4,
        1e4 - one_hot * 2e4,
        torch.zeros(samples, classes),
        (noise * 5e3).clamp(-1e4, 1e4),
        noise - one_hot * 1e4,
        noise + one_hot * 30,
        noise + one_hot * 100,
    ):
        yield logits, targets


@every_case
@pytest.mark.parametrize(("samples", "classes"), [(1, 2), (6, 10), (5, 1000)])
def test_values_and_gradients_are_finite_at_the_extremes(case, samples, classes):
    loss = built(case)
    for logits, targets in extreme_batches(samples, classes):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            leaf = logits.detach().to(dtype, copy=True).requires_grad_()
            value = loss(leaf, targets)
            assert value.shape == ()
            assert value.dtype == torch.promote_types(dtype, torch.float32)
            assert value.isfinite()
            value.backward()
            assert leaf.grad.isfinite().all(), (dtype, logits)


@every_case
def test_a_weighted_loss_is_the_loss_of_repeated_samples(case, reference):
    loss = built(case)
    logits, targets = reference.batch(3, shape=(9, 4), scale=2.0)
    weights = torch.tensor([1, 2, 3] * 3)
    if loss.batch_coupled:
        with pytest.raises(TypeError, match="function of the whole batch"):
            loss(logits, targets, weights)
        return
    repeated = loss(logits.repeat_interleave(weights, 0), targets.repeat_interleave(weights))
    # the released Brier score divides by the size of the batch, by its definition
    repeated = repeated * (18 / 9 if case == "brier form=released" else 1)
    torch.testing.assert_close(loss(logits, targets, weights), repeated)


@every_case
def test_under_bfloat16_autocast_the_loss_is_computed_in_float32(case, reference):
    loss = built(case)
    inputs, targets = reference.batch(2, shape=(9, 8), scale=3.0)
    layer = torch.nn.Linear(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = layer(inputs.float())
        inside = loss(logits, targets)
    assert logits.dtype == torch.bfloat16
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, built(case)(logits.float(), targets), rtol=1e-6, atol=1e-6)
    inside.backward()
    assert layer.weight.grad.isfinite().all()


@every_case
def test_vmap_over_logits_and_hyperparameters_gives_what_a_loop_gives(case, reference):
    name, plain, lanes = CASES[case]
    logits = torch.stack([reference.batch(seed, shape=(11, 5), scale=2.0)[0] for seed in range(3)])
    targets = torch.stack([reference.batch(seed, shape=(11, 5), scale=2.0)[1] for seed in range(3)])
    columns = {key: torch.tensor(values, dtype=torch.float64) for key, values in lanes.items()}

    def one(z, y, options):
        return build_loss(name, **plain, **options)(z, y)

    values, gradients = torch.func.vmap(lambda *a: (one(*a), torch.func.grad(one)(*a)))(logits, targets, columns)
    for lane in range(3):
        loss = build_loss(name, **plain, **{key: v[lane] for key, v in lanes.items()})
        leaf = logits[lane].clone().requires_grad_()
        value = loss(leaf, targets[lane])
        value.backward()
        torch.testing.assert_close(values[lane], value.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients[lane], leaf.grad, rtol=1e-10, atol=1e-12)


def permuted(logits, targets, seed):
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(seed))
    return logits[order], targets[order]


@every_case
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), samples=st.integers(1, 9), classes=st.integers(2, 12), shift=st.floats(-10, 10))
def test_order_of_samples_and_a_shift_of_logits_change_nothing(case, seed, samples, classes, shift):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, classes, generator=generator, dtype=torch.float64) * 2
    targets = torch.randint(classes, (samples,), generator=generator)
    value = built(case)(logits, targets)
    torch.testing.assert_close(built(case)(*permuted(logits, targets, seed)), value, rtol=1e-9, atol=1e-9)
    if case == "logit_norm":
        return  # by its definition, the length of the logits counts
    shifts = shift * torch.rand(samples, 1, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(built(case)(logits + shifts, targets), value, rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(["focal", "inverse_focal", "dual_focal"]))
def test_gamma_towards_zero_gives_cross_entropy(seed, name):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, 5, generator=generator, dtype=torch.float64) * 2
    targets = torch.randint(5, (6,), generator=generator)
    cross_entropy = build_loss("cross_entropy")(logits, targets)
    torch.testing.assert_close(build_loss(name, gamma=0.0)(logits, targets), cross_entropy, rtol=1e-12, atol=1e-12)
    gaps = [(build_loss(name, gamma=g)(logits, targets) - cross_entropy).abs() for g in (1e-2, 1e-4, 1e-6)]
    assert gaps[0] >= gaps[1] >= gaps[2]
    assert gaps[2] < 1e-4
    smoothed = build_loss("label_smoothing", alpha=0.2, form="others")(logits, targets)
    same = build_loss(name, gamma=0.0, smoothing=0.2, smoothing_form="others")(logits, targets)
    torch.testing.assert_close(same, smoothed, rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=300))
def test_aurc_weights_have_mean_one_at_every_batch_size(scores):
    weights = rank_weights(torch.tensor(scores, dtype=torch.float64) / 20)
    assert weights.mean().item() == pytest.approx(1, rel=1e-12)
    assert weights.min() > 0


@every_case
def test_frozen_has_the_same_value_at_its_own_logits(case, reference):
    logits, targets = reference.batch(3, shape=(12, 6), scale=2.0)
    loss = built(case)
    if case == "brier form=released":
        return  # its curvature is that of the mean, see there
    torch.testing.assert_close(loss.frozen(logits, targets)(logits, targets), built(case)(logits, targets))
    torch.testing.assert_close(
        loss.frozen(logits.float(), targets)(logits.float(), targets).double(),
        built(case)(logits, targets),
        rtol=1e-4,
        atol=1e-5,
    )


@every_case
def test_second_derivatives_of_the_frozen_loss_are_finite(case, reference):
    logits, targets = reference.batch(3, shape=(4, 3), scale=2.0)
    frozen = built(case).frozen(logits, targets)
    hessian = torch.func.hessian(lambda z: frozen(z, targets))(logits).reshape(12, 12)
    assert hessian.isfinite().all()
    torch.testing.assert_close(hessian, hessian.T, rtol=1e-8, atol=1e-10)


@every_case
def test_tags_tell_the_truth(case):
    loss, tags = built(case), LOSSES[CASES[case][0]].tags
    assert loss.batch_coupled == ("batch_coupled" in tags)
    assert loss.needs_model == ("needs_model" in tags)
    assert loss.stateful <= ("stateful" in tags)
    assert loss.stateful == bool(loss.state_dict())
    assert loss.name == CASES[case][0]


@every_case
def test_independent_samples_where_a_loss_is_not_batch_coupled(case, reference):
    logits, targets = reference.batch(3, shape=(12, 6), scale=2.0)
    loss = built(case)
    if not loss.batch_coupled:
        alone = torch.stack([loss(logits[i : i + 1], targets[i : i + 1]) for i in range(12)])
        torch.testing.assert_close(loss.per_sample(logits, targets), alone)


def test_every_hyperparameter_has_a_default_within_its_range_a_source_and_a_reason():
    for component in LOSSES.values():
        assert component.summary and component.source, component.name
        defaults = {h.name: h.default for h in component.hyperparameters if h.default is not None}
        assert component.faults(defaults) == []
        for h in component.hyperparameters:
            assert h.source, (component.name, h.name)
            assert h.reason or (h.minimum is None and h.maximum is None), (component.name, h.name)
        if component.name != "hessian_trace":
            build_loss(component.name, **defaults)


@pytest.mark.parametrize("name", FOCAL_TYPE)
def test_label_smoothing_combines_with_every_focal_type_loss(name, reference):
    logits, targets = reference.batch(3, shape=(12, 6), scale=2.0)
    plain = build_loss(name)(logits, targets)
    soft = torch.tensor(0.0, dtype=torch.float64)  # a tensor takes the path of soft targets even at 0
    torch.testing.assert_close(build_loss(name, smoothing=soft)(logits, targets), plain, rtol=1e-10, atol=1e-12)
    assert build_loss(name, smoothing=0.2)(logits, targets) != plain


def test_wrong_shapes_names_and_values_are_refused():
    loss = build_loss("cross_entropy")
    for logits, targets in [
        (torch.zeros(3), torch.zeros(3).long()),
        (torch.zeros(3, 1), torch.zeros(3).long()),
        (torch.zeros(0, 4), torch.zeros(0).long()),
        (torch.zeros(3, 4), torch.zeros(2).long()),
        (torch.zeros(3, 4), torch.zeros(3)),
    ]:
        with pytest.raises(ValueError, match="must be"):
            loss(logits, targets)
    with pytest.raises(ValueError, match="did you mean 'focal'"):
        build_loss("fokal")
    with pytest.raises(ValueError, match=r"takes no hyperparameter 'gama'.*did you mean 'gamma'"):
        build_loss("focal", gama=1)


@pytest.mark.parametrize("name", [name for name in LOSSES if LOSSES[name].cross_entropy_at_zero])
def test_a_loss_is_cross_entropy_where_it_says_so(name: str) -> None:
    logits, targets = 3 * torch.randn(16, 5, dtype=torch.float64), torch.arange(16) % 5
    loss = build_loss(name, **dict.fromkeys(LOSSES[name].cross_entropy_at_zero, 0.0))
    if isinstance(getattr(loss, "gamma", None), float):
        loss.begin_epoch(0, 10)  # two_stage has its γ from the first epoch on
    assert torch.allclose(loss(logits, targets), torch.nn.functional.cross_entropy(logits, targets))
