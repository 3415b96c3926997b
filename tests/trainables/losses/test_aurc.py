import math

import pytest
import torch
from scipy.special import digamma

from trainables.losses import build_loss
from trainables.losses.selective_risk import rank_weights


def naive_scores(rows, score):
    out = []
    for p in rows:
        ordered = sorted(p, reverse=True)
        if score == "msp":
            out.append(ordered[0])
        elif score == "margin":
            out.append(ordered[0] - ordered[1])
        else:
            out.append(1 + sum(u * math.log(u) for u in p if u > 0) / math.log(len(p)))
    return out


def naive_weights(scores):
    n = len(scores)
    out = []
    for s in scores:
        first = sum(t < s for t in scores) + 1
        ranks = range(first, first + sum(t == s for t in scores))
        out.append(sum(digamma(n + 1) - digamma(n - r + 1) for r in ranks) / len(ranks))
    return out


def naive(score):
    def values(rows, targets):
        weights = naive_weights(naive_scores(rows, score))
        return [-w * math.log(p[y]) for w, p, y in zip(weights, rows, targets, strict=True)]

    return values


@pytest.mark.parametrize("score", ["msp", "margin", "negative_entropy"])
def test_equals_reference(reference, score):
    loss = build_loss("aurc", score=score)
    reference.check(loss, naive(score))
    reference.check_gradient(loss, range(4))


def test_ties_share_their_mean_weight():
    scores = torch.tensor([0.5, 0.2, 0.5, 0.9, 0.5, 0.2], dtype=torch.float64)
    torch.testing.assert_close(rank_weights(scores), torch.tensor(naive_weights(scores.tolist()), dtype=torch.float64))


def test_the_weights_carry_no_gradient(reference):
    logits, targets = reference.batch(4)
    logits.requires_grad_()
    weights = rank_weights(torch.softmax(logits.detach(), -1).max(-1).values)
    (gradient,) = torch.autograd.grad(build_loss("aurc")(logits, targets), logits)
    weighted = (weights * torch.nn.functional.cross_entropy(logits, targets, reduction="none")).mean()
    (expected,) = torch.autograd.grad(weighted, logits)
    torch.testing.assert_close(gradient, expected)


def test_frozen_keeps_the_weights(reference):
    logits, targets = reference.batch(4)
    loss = build_loss("aurc")
    frozen = loss.frozen(logits, targets)
    torch.testing.assert_close(frozen(logits, targets), loss(logits, targets))
    torch.testing.assert_close(
        frozen(-logits, targets),
        (
            torch.tensor(naive_weights(naive_scores(reference.rows(logits), "msp")))
            * torch.nn.functional.cross_entropy(-logits, targets, reduction="none")
        ).mean(),
    )
    with pytest.raises(ValueError, match="do not fit a batch of 2"):
        frozen(logits[:2], targets[:2])
