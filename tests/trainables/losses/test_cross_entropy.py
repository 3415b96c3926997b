"""LogitNorm against its plain definition; the length of the logits changes nothing.

MbLS against a loop, and CALS: its penalty, its updates, its state, and that it holds logits together.
"""

from __future__ import annotations

import math

import pytest
import torch

from trainables.losses import build_loss


def naive_cross_entropy(rows, targets):
    return [-math.log(p[y]) for p, y in zip(rows, targets, strict=True)]


def naive_label_smoothing(alpha, form):
    def values(rows, targets):
        out = []
        for p, y in zip(rows, targets, strict=True):
            classes, total = len(p), 0.0
            for k in range(classes):
                if form == "others":
                    v = 1 - alpha if k == y else alpha / (classes - 1)
                else:
                    v = (1 - alpha if k == y else 0.0) + alpha / classes
                total -= v * math.log(p[k])
            out.append(total)
        return out

    return values


def naive_brier(rows, targets):
    return [sum((p[k] - (k == y)) ** 2 for k in range(len(p))) for p, y in zip(rows, targets, strict=True)]


def test_cross_entropy_equals_reference(reference):
    reference.check(build_loss("cross_entropy"), naive_cross_entropy)
    reference.check_gradient(build_loss("cross_entropy"))


@pytest.mark.parametrize("form", ["others", "uniform"])
@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.3])
def test_label_smoothing_equals_reference(reference, alpha, form):
    loss = build_loss("label_smoothing", alpha=alpha, form=form)
    reference.check(loss, naive_label_smoothing(alpha, form))
    reference.check_gradient(loss, range(3))


def test_brier_equals_reference(reference):
    reference.check(build_loss("brier"), naive_brier)
    reference.check_gradient(build_loss("brier"))


def test_uniform_label_smoothing_is_torchs_own(reference):
    for seed in range(8):
        logits, targets = reference.batch(seed)
        own = build_loss("label_smoothing", alpha=0.1, form="uniform")(logits, targets)
        torchs = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)
        torch.testing.assert_close(own, torchs, rtol=1e-12, atol=1e-12)


def test_released_brier_summed_over_a_batch_has_the_gradients_of_the_mean(reference):
    for seed in range(8):
        logits, targets = reference.batch(seed)
        paper, released = (logits.clone().requires_grad_() for _ in range(2))
        build_loss("brier")(paper, targets).backward()
        loss = build_loss("brier", form="released")
        (len(targets) * loss(released, targets)).backward()  # what `reduction: sum` makes of a loss
        torch.testing.assert_close(released.grad, paper.grad)
        assert loss.frozen(logits, targets)(logits, targets) == build_loss("brier")(logits, targets)


def test_it_is_the_cross_entropy_of_scaled_logits(reference):
    for seed in range(8):
        logits, targets = reference.batch(seed)
        scaled = logits / logits.norm(dim=-1, keepdim=True) / 0.5
        loss = build_loss("logit_norm", temperature=0.5)
        torch.testing.assert_close(loss(logits, targets), build_loss("cross_entropy")(scaled, targets))
        torch.testing.assert_close(loss(7 * logits, targets), loss(logits, targets))
    reference.check_gradient(build_loss("logit_norm", temperature=0.5))


def trailing(row, margin):
    logs = [math.log(p) for p in row]
    return [max(logs) - z - margin for z in logs]


@pytest.mark.parametrize("margin", [0.5, 3.0])
def test_margin_smoothing_equals_the_loop(reference, margin):
    def loop(rows, targets):
        return [
            -math.log(row[y]) + 0.3 * sum(max(0.0, d) for d in trailing(row, margin)) / len(row)
            for row, y in zip(rows, targets, strict=True)
        ]

    reference.check(build_loss("margin_smoothing", weight=0.3, margin=margin), loop)
    reference.check_gradient(build_loss("margin_smoothing", weight=0.3, margin=margin))


def test_cals_equals_the_loop_and_updates_by_hand(reference):
    loss = build_loss("cals", margin=2.0)

    def loop(rows, targets, rates, stiffness):
        total = []
        for row, y in zip(rows, targets, strict=True):
            value = -math.log(row[y])
            for k, d in enumerate(trailing(row, 0.0)):
                h = d / 2.0 - 1
                inside = rates[k] + stiffness[k] * h >= 0
                value += rates[k] * h + stiffness[k] * h * h / 2 if inside else -(rates[k] ** 2) / (2 * stiffness[k])
            total.append(value)
        return total

    logits, targets = reference.batch(1, shape=(30, 4), scale=3.0)
    rates, stiffness, before = [1e-6] * 4, [1.0] * 4, [math.inf] * 4
    for _ in range(3):
        wanted = loop(reference.rows(logits), targets.tolist(), rates, stiffness)
        assert loss.per_sample(logits, targets).tolist() == pytest.approx(wanted, abs=1e-10)
        loss.end_epoch(logits, targets)
        h = [[d / 2 - 1 for d in trailing(row, 0.0)] for row in reference.rows(logits)]
        columns = list(zip(*h, strict=True))
        mean = [sum(column) / 30 for column in columns]
        updated = [sum(max(0.0, r + s * v) for v in c) / 30 for r, s, c in zip(rates, stiffness, columns, strict=True)]
        rates = [max(1e-6, value) for value in updated]
        stiffness = [s * 1.2 if m > max(0.0, b) else s for s, m, b in zip(stiffness, mean, before, strict=True)]
        before = mean
        assert loss.multipliers.tolist() == pytest.approx(rates)
        assert loss.stiffness.tolist() == pytest.approx(stiffness)
        logits = logits * 1.3
    assert max(stiffness) > 1
    again = build_loss("cals", margin=2.0)
    again.load_state_dict(loss.state_dict())
    torch.testing.assert_close(again(logits, targets), loss(logits, targets))
    reference.check_gradient(build_loss("cals", margin=2.0))
