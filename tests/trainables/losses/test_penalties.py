"""MDCA against a loop over classes."""

from __future__ import annotations

import math

import pytest
import torch

from trainables.losses import build_loss
from trainables.losses.penalties import BANDWIDTHS, select_bandwidth


def naive_plain(rows, right):
    n = len(rows)
    total = 0.0
    for p, r in zip(rows, right, strict=True):
        for q, s in zip(rows, right, strict=True):
            total += (r - max(p)) * (s - max(q)) * math.exp(-abs(max(p) - max(q)) / 0.4) / n**2
    return math.sqrt(max(total, 0.0))


def naive_weighted(rows, right):
    """The three double sums of the weighted form, an empty group's terms being 0."""
    correct = [max(p) for p, r in zip(rows, right, strict=True) if r]
    wrong = [max(p) for p, r in zip(rows, right, strict=True) if not r]

    def kernel(c, d):
        return math.exp(-abs(c - d) / 0.4)

    total = 0.0
    if correct:
        total += sum((1 - c) * (1 - d) * kernel(c, d) for c in correct for d in correct) / len(correct) ** 2
    if wrong:
        total += sum(c * d * kernel(c, d) for c in wrong for d in wrong) / len(wrong) ** 2
    if correct and wrong:
        cross = sum((1 - c) * d * kernel(c, d) for c in correct for d in wrong)
        total -= 2 * cross / (len(correct) * len(wrong))
    return math.sqrt(max(total, 0.0))


def naive_released(rows, right):
    """Focal_calibration's weighted form: means over the pairs, divided by the numbers of pairs once more."""
    correct = [max(p) for p, r in zip(rows, right, strict=True) if r]
    wrong = [max(p) for p, r in zip(rows, right, strict=True) if not r]
    m, n = len(correct), len(wrong)
    if m == 0 or n == 0:
        return 0.0

    def mean(weight, left, others):
        pairs = [weight(c, d) * math.exp(-abs(c - d) / 0.4) for c in left for d in others]
        return sum(pairs) / len(pairs)

    total = mean(lambda c, d: (1 - c) * (1 - d), correct, correct) / (m * m + 1e-5)
    total += mean(lambda c, d: c * d, wrong, wrong) / (n * n + 1e-5)
    total -= 2 * mean(lambda c, d: (1 - c) * d, correct, wrong) / (m * n + 1e-5)
    return math.sqrt(max(total, 0.0) + 1e-10)


def naive(penalty, weight):
    def value(rows, targets):
        right = [p.index(max(p)) == y for p, y in zip(rows, targets, strict=True)]
        cross_entropy = -sum(math.log(p[y]) for p, y in zip(rows, targets, strict=True)) / len(rows)
        return cross_entropy + weight * penalty(rows, right)

    return value


@pytest.mark.parametrize(("variant", "penalty"), [("plain", naive_plain), ("weighted", naive_weighted)])
@pytest.mark.parametrize("weight", [2.0, 8.0])
def test_equals_reference(reference, variant, penalty, weight):
    loss = build_loss("mmce", variant=variant, weight=weight)
    reference.check(loss, naive(penalty, weight), per_sample=False)
    reference.check_gradient(loss)


def test_the_released_weighted_form_equals_its_double_sums(reference):
    loss = build_loss("mmce", form="released", weight=2.0)
    for seed in range(20):
        logits, targets = reference.batch(seed, shape=(12, 3))
        right = (logits.argmax(-1) == targets).tolist()
        penalty = loss(logits, targets) - torch.nn.functional.cross_entropy(logits, targets)
        expected = 2 * naive_released(logits.softmax(-1).tolist(), right)
        assert penalty.item() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    reference.check_gradient(loss)


def test_the_released_plain_form_is_the_square(reference):
    logits, targets = reference.batch(4, shape=(12, 3))
    cross_entropy = torch.nn.functional.cross_entropy(logits, targets)
    paper, released = (build_loss("mmce", variant="plain", form=form, weight=1.0) for form in ("paper", "released"))
    square = (paper(logits, targets) - cross_entropy) ** 2
    torch.testing.assert_close(released(logits, targets) - cross_entropy, square)


def test_with_half_a_batch_right_the_released_penalty_is_weaker_by_half_the_batch(reference):
    logits, _ = reference.batch(5, shape=(128, 10))
    targets = torch.where(torch.arange(128) < 64, logits.argmin(-1), logits.argmax(-1))
    cross_entropy = torch.nn.functional.cross_entropy(logits, targets)
    paper, released = (build_loss("mmce", form=form)(logits, targets) - cross_entropy for form in ("paper", "released"))
    assert (paper / released).item() == pytest.approx(64)


@pytest.mark.parametrize("variant", ["plain", "weighted"])
def test_a_perfect_batch_has_no_penalty_and_no_gradient_from_it(variant):
    logits = (1000 * torch.eye(3)).requires_grad_()
    value = build_loss("mmce", variant=variant)(logits, torch.arange(3))
    value.backward()
    assert value.item() == 0
    assert logits.grad.abs().max() == 0


def test_frozen_has_the_same_value_and_hessian_and_keeps_who_was_right(reference):
    logits, targets = reference.batch(3, shape=(6, 3), scale=1.0)
    loss = build_loss("mmce")
    frozen = loss.frozen(logits, targets)
    assert frozen(logits, targets) == loss(logits, targets)
    hessians = [torch.func.hessian(lambda z, f=f: f(z, targets))(logits) for f in (loss, frozen)]
    torch.testing.assert_close(*hessians)
    assert not torch.equal(frozen(-logits, targets), loss(-logits, targets))


def log_dirichlet(f, centre, b):
    """Log density at f of the Dirichlet with concentrations centre/b + 1."""
    alpha = [c / b + 1 for c in centre]
    density = math.lgamma(math.fsum(alpha)) - math.fsum(math.lgamma(a) for a in alpha)
    return density + math.fsum((a - 1) * math.log(u) for a, u in zip(alpha, f, strict=True))


def naive_mdca(weight, variant, norm, b):
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
    reference.check(loss, naive_mdca(weight, variant, norm, b))


@pytest.mark.parametrize("variant", ["canonical", "top_label"])
def test_gradient(reference, variant):
    for seed in range(6):
        logits, targets = reference.batch(seed, scale=1.0)
        frozen = build_loss("kde_xe", variant=variant).frozen(logits, targets)
        assert torch.autograd.gradcheck(lambda z, y=targets, f=frozen: f(z, y), (logits.requires_grad_(),))


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


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_it_equals_the_loop(reference, gamma):
    def loop(rows, targets):
        n, classes = len(rows), len(rows[0])
        focal = sum((1 - row[y]) ** gamma * -math.log(row[y]) for row, y in zip(rows, targets, strict=True)) / n
        gaps = [abs(sum(row[k] for row in rows) / n - targets.count(k) / n) for k in range(classes)]
        return focal + 3 * sum(gaps) / classes

    reference.check(build_loss("mdca", weight=3.0, gamma=gamma), loop, per_sample=False)
