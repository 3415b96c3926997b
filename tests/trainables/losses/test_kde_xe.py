import math

import pytest
import torch

from trainables.losses import build_loss
from trainables.losses.kde_xe import BANDWIDTHS, select_bandwidth


def log_dirichlet(f, centre, b):
    """Log density at f of the Dirichlet with concentrations centre/b + 1."""
    alpha = [c / b + 1 for c in centre]
    density = math.lgamma(math.fsum(alpha)) - math.fsum(math.lgamma(a) for a in alpha)
    return density + math.fsum((a - 1) * math.log(u) for a, u in zip(alpha, f, strict=True))


def naive(weight, variant, norm, b):
    def values(rows, targets):
        losses = [-math.log(p[y]) for p, y in zip(rows, targets, strict=True)]
        if len(rows) == 1:
            return losses
        clamp = [[min(max(u, 1e-9), 1 - 1e-9) for u in p] for p in rows]
        if variant == "canonical":
            f, outcomes = clamp, [[float(k == y) for k in range(len(p))] for p, y in zip(rows, targets, strict=True)]
        else:
            f = [[max(p), 1 - max(p)] for p in clamp]
            outcomes = [[float(p.index(max(p)) == y)] for p, y in zip(rows, targets, strict=True)]
        for j in range(len(f)):
            logs = {i: log_dirichlet(f[j], f[i], b) for i in range(len(f)) if i != j}
            top = max(logs.values())
            kernel = {i: math.exp(v - top) for i, v in logs.items()}
            for k in range(len(outcomes[j])):
                mean = sum(w * outcomes[i][k] for i, w in kernel.items()) / sum(kernel.values())
                losses[j] += weight * abs(mean - f[j][k]) ** norm
        return losses

    return values


@pytest.mark.parametrize(("weight", "norm", "b"), [(0.3, 1, 0.1), (0.5, 2, 1.0), (0.3, 1, 0.001)])
@pytest.mark.parametrize("variant", ["canonical", "top_label"])
def test_equals_reference_at_a_fixed_bandwidth(reference, variant, weight, norm, b):
    loss = build_loss("kde_xe", weight=weight, variant=variant, norm=norm, bandwidth=b)
    reference.check(loss, naive(weight, variant, norm, b))


@pytest.mark.parametrize("variant", ["canonical", "top_label"])
def test_gradient(reference, variant):
    for seed in range(6):
        logits, targets = reference.batch(seed, scale=1.0)
        frozen = build_loss("kde_xe", variant=variant).frozen(logits, targets)
        assert torch.autograd.gradcheck(lambda z, y=targets, f=frozen: f(z, y), (logits.requires_grad_(),))


def test_the_penalty_reaches_the_gradient(reference):
    logits, targets = reference.batch(4, shape=(12, 3))
    logits.requires_grad_()
    difference = build_loss("kde_xe")(logits, targets) - build_loss("cross_entropy")(logits, targets)
    (gradient,) = torch.autograd.grad(difference, logits)
    assert gradient.abs().max() > 1e-4


def test_bandwidth_maximises_the_leave_one_out_likelihood(reference):
    for seed in range(6):
        logits, _ = reference.batch(seed, shape=(9, 3), scale=1.0)
        rows = reference.rows(logits)
        likelihoods = []
        for b in BANDWIDTHS.tolist():
            total = 0.0
            for j, f in enumerate(rows):
                logs = [log_dirichlet(f, centre, b) for i, centre in enumerate(rows) if i != j]
                top = max(logs)
                total += top + math.log(sum(math.exp(v - top) for v in logs)) - math.log(len(rows) - 1)
            likelihoods.append(total)
        best = BANDWIDTHS[likelihoods.index(max(likelihoods))]
        assert select_bandwidth(torch.softmax(logits, -1)) == best


def test_the_candidates_are_the_papers():
    assert len(BANDWIDTHS) == 20
    assert BANDWIDTHS[[0, 14, 15, 19]].tolist() == pytest.approx([1e-5, 0.1, 0.2, 1.0])


def test_one_sample_alone_has_no_penalty():
    logits, targets = torch.tensor([[1.0, 2.0, 0.5]]), torch.tensor([1])
    assert build_loss("kde_xe")(logits, targets).item() == pytest.approx(
        build_loss("cross_entropy")(logits, targets).item(), rel=1e-6
    )


def test_frozen_keeps_the_bandwidth(reference):
    logits, targets = reference.batch(4, shape=(12, 3))
    loss = build_loss("kde_xe")
    frozen = loss.frozen(logits, targets)
    assert frozen(logits, targets) == loss(logits, targets)
    fixed = build_loss("kde_xe", bandwidth=select_bandwidth(torch.softmax(logits, -1)))
    assert frozen(logits * 5, targets) == fixed(logits * 5, targets)
