import math

import pytest
import torch

from trainables.losses import build_loss


def rival(p, k, variant):
    """p_j for class k of a probability row."""
    if variant == "competitor":
        return max(u for i, u in enumerate(p) if i != k)
    if variant == "conditional":  # selective Eqs. 25 and 26
        other = max(u for i, u in enumerate(p) if i != k)
        return other if p[k] >= other else 0.0
    return max((u for u in p if u < p[k]), default=0.0)


def naive(gamma, variant, smoothing=0.0):
    def values(rows, targets):
        out = []
        for p, y in zip(rows, targets, strict=True):
            total = 0.0
            for k, u in enumerate(p):
                v = (1 - smoothing) * (k == y) + smoothing / len(p)
                if v > 0:
                    total -= v * (1 - u + rival(p, k, variant)) ** gamma * math.log(u)
            out.append(total)
        return out

    return values


@pytest.mark.parametrize("variant", ["ranked_below", "competitor", "conditional"])
@pytest.mark.parametrize(("gamma", "smoothing"), [(0.0, 0.0), (1.0, 0.0), (5.0, 0.0), (2.0, 0.15)])
def test_equals_reference(reference, gamma, smoothing, variant):
    loss = build_loss("dual_focal", gamma=gamma, variant=variant, smoothing=smoothing)
    reference.check(loss, naive(gamma, variant, smoothing))
    reference.check_gradient(loss, range(4))


def test_a_tie_keeps_the_competitor_of_equation_25():
    p = torch.tensor([[0.4, 0.4, 0.2]], dtype=torch.float64)
    for smoothing in (0.0, torch.tensor(0.0)):
        loss = build_loss("dual_focal", gamma=1.0, variant="conditional", smoothing=smoothing)
        weights = [(loss.per_sample(p.log(), torch.tensor([y])) / -p[0, y].log()).item() for y in range(3)]
        assert weights == pytest.approx([1.0, 1.0, 0.8])


def test_ties_are_not_strictly_below():
    p = torch.tensor([[0.25, 0.25, 0.4, 0.1]], dtype=torch.float64)
    for smoothing in (0.0, torch.tensor(0.0)):
        loss = build_loss("dual_focal", gamma=1.0, smoothing=smoothing)
        weights = [(loss.per_sample(p.log(), torch.tensor([y])) / -p[0, y].log()).item() for y in range(4)]
        assert weights == pytest.approx([0.85, 0.85, 0.85, 0.9])
