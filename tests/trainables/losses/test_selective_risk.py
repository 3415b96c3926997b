import math

import numpy as np
import pytest
import torch

from trainables.losses import build_loss
from trainables.losses.selective_risk import quantile


def naive_scores(rows, score):
    if score == "msp":
        return [max(p) for p in rows]
    if score == "margin":
        return [sorted(p)[-1] - sorted(p)[-2] for p in rows]
    return [1 + sum(u * math.log(u) for u in p if u > 0) / math.log(len(p)) for p in rows]


def sigmoid(t):
    return 1 / (1 + math.exp(-t)) if t >= 0 else math.exp(t) / (1 + math.exp(t))


def naive_counts(scores):
    counts = [0] * 64
    for s in scores:
        counts[min(int(s * 64), 63)] += 1
    return counts


def naive_survival(x, counts, nu):
    return sum(h * sigmoid(((k + 0.5) / 64 - x) / nu) for k, h in enumerate(counts)) / sum(counts)


def naive_weight(g, tau, counts, nu, n):
    return -math.log(min(max(naive_survival(min(g, tau), counts, nu), 1 / (n + 1)), n / (n + 1)))


def naive(coverage, nu, score, normalise):
    def values(rows, targets):
        scores = naive_scores(rows, score)
        tau, counts = np.quantile(scores, coverage), naive_counts(scores)
        betas = [naive_weight(g, tau, counts, nu, len(rows)) for g in scores]
        scale = 1 / coverage if normalise else 1
        return [-scale * b * math.log(p[y]) for b, p, y in zip(betas, rows, targets, strict=True)]

    return values


@pytest.mark.parametrize(
    ("coverage", "nu", "score", "normalise"),
    [
        (0.8, 0.1, "msp", False),
        (0.2, 0.05, "margin", True),
        (1.0, 0.01, "negative_entropy", False),
        (0.5, 1.0, "msp", True),
    ],
)
def test_equals_reference(reference, coverage, nu, score, normalise):
    loss = build_loss("selective_risk", coverage=coverage, nu=nu, score=score, normalise=normalise)
    reference.check(loss, naive(coverage, nu, score, normalise))


def analytic_gradient(logits, targets, coverage, nu):
    """Selective Eq. 27 for the msp score, sample by sample: τ and S(τ) constant, β differentiated below τ only."""
    p = torch.softmax(logits, -1).numpy()
    n, classes = p.shape
    scores = p.max(-1)
    tau, counts = np.quantile(scores, coverage), naive_counts(scores)
    gradient = np.zeros_like(p)
    for i, y in enumerate(targets.tolist()):
        beta = naive_weight(scores[i], tau, counts, nu, n)
        one_hot = np.eye(classes)[y]
        gradient[i] = beta * (p[i] - one_hot)
        survival = naive_survival(scores[i], counts, nu)
        if scores[i] < tau and 1 / (n + 1) < survival < n / (n + 1):
            sigmoids = [sigmoid((scores[i] - (k + 0.5) / 64) / nu) for k in range(64)]
            density = sum(h * s * (1 - s) for h, s in zip(counts, sigmoids, strict=True)) / nu / n
            top = p[i].argmax()
            score_gradient = p[i, top] * (np.eye(classes)[top] - p[i])
            gradient[i] += density / survival * score_gradient * -math.log(p[i, y])
    return torch.from_numpy(gradient / n)


def test_gradient_is_the_analytic_one(reference):
    for seed in range(24):
        logits, targets = reference.batch(seed)
        for coverage, nu in [(0.8, 0.1), (0.3, 0.02)]:
            leaf = logits.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(
                build_loss("selective_risk", coverage=coverage, nu=nu)(leaf, targets), leaf
            )
            torch.testing.assert_close(
                gradient, analytic_gradient(logits, targets, coverage, nu), rtol=1e-9, atol=1e-11
            )


def weights(loss, logits):
    """The weight β of each sample, which does not depend on its class: the least likely one has no NLL near 0."""
    worst = logits.argmin(-1)
    return loss.per_sample(logits, worst) / torch.nn.functional.cross_entropy(logits, worst, reduction="none")


def test_no_gradient_flows_through_the_weights_above_the_threshold(reference):
    logits, targets = reference.batch(0, shape=(40, 4), scale=1.5)
    loss = build_loss("selective_risk", coverage=0.5)
    scores = torch.softmax(logits, -1).max(-1).values
    above = scores >= torch.quantile(scores, 0.5)
    leaf = logits.clone().requires_grad_()
    (whole,) = torch.autograd.grad(loss(leaf, targets), leaf)
    leaf = logits.clone().requires_grad_()
    plain = torch.nn.functional.cross_entropy(leaf, targets, reduction="none")
    (constant,) = torch.autograd.grad((weights(loss, logits) * plain).mean(), leaf)
    leaf = logits.clone().requires_grad_()
    (frozen,) = torch.autograd.grad(loss.frozen(logits, targets)(leaf, targets), leaf)
    torch.testing.assert_close(frozen, whole)  # what is frozen has no gradient in training either
    torch.testing.assert_close(whole[above], constant[above])
    assert (whole - constant)[~above].abs().max() > 1e-4


def test_the_threshold_is_the_interpolated_quantile():
    generator = torch.Generator().manual_seed(0)
    for n in (1, 2, 5, 128):
        values = torch.rand(n, generator=generator, dtype=torch.float64)
        for level in (0.01, 0.3, 0.8, 1.0):
            expected = torch.quantile(values, level)
            torch.testing.assert_close(quantile(values, level), expected)
            torch.testing.assert_close(quantile(values, torch.tensor(level, dtype=torch.float64)), expected)


def test_approaches_aurc_for_small_nu_and_full_coverage():
    """With many samples the 64 bins are the only difference left: weights differ by under one bin's mass."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4000, 10, generator=generator, dtype=torch.float64) * 1.5
    targets = torch.randint(10, (4000,), generator=generator)
    aurc = build_loss("aurc")(logits, targets)
    gaps = []
    for nu, coverage in [(0.1, 0.8), (0.01, 0.95), (0.0005, 1.0)]:
        loss = build_loss("selective_risk", nu=nu, coverage=coverage, normalise=True)
        gaps.append(abs(loss(logits, targets) / aurc - 1).item())
    assert gaps[2] < 0.01
    assert gaps[0] > gaps[2]


def test_history_accumulates_over_an_epoch_and_is_cleared(reference):
    loss = build_loss("selective_risk", history="epoch", nu=0.05)
    for _ in range(2):
        loss.begin_epoch(0, 1)
        seen = [0] * 64
        for seed in range(4):
            logits, targets = reference.batch(seed, shape=(20, 3))
            rows = reference.rows(logits)
            scores = naive_scores(rows, "msp")
            seen = [a + b for a, b in zip(seen, naive_counts(scores), strict=True)]
            tau = np.quantile(scores, 0.8)
            expected = [
                -naive_weight(g, tau, seen, 0.05, 20) * math.log(p[y])
                for g, p, y in zip(scores, rows, targets.tolist(), strict=True)
            ]
            frozen = loss.frozen(logits, targets)(logits, targets)
            values = loss.per_sample(logits, targets)
            value = loss(logits, targets).item()
            assert value == pytest.approx(sum(expected) / 20, rel=1e-10) == frozen.item()
            assert values.tolist() == pytest.approx(expected, rel=1e-10)
        assert loss.state_dict()["counts"].tolist() == seen


def test_history_is_restored_observed_outside_vmap_and_untouched_without_gradients(reference):
    logits, targets = reference.batch(1, shape=(20, 3))
    loss, other = (build_loss("selective_risk", history="epoch") for _ in range(2))
    with torch.no_grad():
        loss(logits, targets)
    torch.func.vmap(loss)(logits.expand(2, 20, 3), targets.expand(2, 20))
    torch.func.grad(loss)(logits, targets)
    assert loss.state_dict()["counts"].sum() == 0
    loss(logits, targets)
    other.observe(logits)
    assert torch.equal(loss.counts, other.counts)
    other.load_state_dict(loss.state_dict())
    assert other(logits, targets) == loss(logits, targets)
    assert build_loss("selective_risk").state_dict() == {}


@pytest.mark.parametrize("threshold", [0.3, 0.8])
def test_equation_12_is_equation_11_but_for_the_share_of_low_scores(threshold):
    """Selective Prop. 4.6 for scores spread evenly, G(x) = x: the mean over x̃ < τ divides by P(g < τ), here τ."""
    drawn = (np.arange(200_000) + 0.5) / 200_000 * threshold
    for score in (0.1, 0.5, 0.9):
        by_definition = np.where(score >= drawn, 1 / (1 - drawn), 0).mean()  # Eq. 11
        as_printed = -math.log(1 - min(score, threshold))  # Eq. 12
        assert by_definition == pytest.approx(as_printed / threshold, rel=1e-4)
