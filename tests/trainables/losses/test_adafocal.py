import math

import pytest
import torch

from trainables.losses import build_loss
from trainables.losses.adafocal import bin_gaps, updated_gammas


def naive(edges, gammas, smoothing=0.0):
    def values(rows, targets):
        out = []
        for p, y in zip(rows, targets, strict=True):
            gamma = gammas[sum(p[y] >= edge for edge in edges)]
            total = 0.0
            for k, u in enumerate(p):
                v = (1 - smoothing) * (k == y) + smoothing / len(p)
                weight = (1 - u) ** gamma if gamma >= 0 else (1 + u) ** -gamma
                total -= v * weight * math.log(u) if v > 0 else 0.0
            out.append(total)
        return out

    return values


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_reference(reference, smoothing):
    edges, gammas = [0.05, 0.1, 0.3, 0.6], [5.0, -0.4, 1.0, -2.0, 0.2]
    loss = build_loss("adafocal", bins=5, smoothing=smoothing)
    loss.load_state_dict(
        {"edges": torch.tensor(edges, dtype=torch.float64), "gammas": torch.tensor(gammas, dtype=torch.float64)}
    )
    reference.check(loss, naive(edges, gammas, smoothing))
    reference.check_gradient(loss, range(4))


def test_gamma_is_clipped_and_flips_back():
    one = torch.ones(1, dtype=torch.float64)
    assert updated_gammas(19 * one, 1.0, 0.9 * one).item() == 20.0
    assert updated_gammas(-1.9 * one, 1.0, -0.9 * one).item() == -2.0
    assert updated_gammas(-0.2 * one, 1.0, 0.1 * one).item() == pytest.approx(0.2)
    assert updated_gammas(0.7 * one, 1.0, 0 * one).item() == pytest.approx(0.7)


def test_end_epoch_equals_a_plain_update(reference):
    logits, targets = reference.batch(1, shape=(50, 4))
    loss = build_loss("adafocal", rate=0.5, bins=7)
    rows = reference.rows(logits)
    gammas = [1.0] * 7
    for _ in range(3):
        loss.end_epoch(logits.float(), targets)
        pairs = sorted((max(p), p.index(max(p)) == y) for p, y in zip(rows, targets.tolist(), strict=True))
        bins = [pairs[:8]] + [pairs[8 + 7 * i : 15 + 7 * i] for i in range(6)]  # 50 = 8 + 6·7
        for b, members in enumerate(bins):
            gap = sum(c for c, _ in members) / len(members) - sum(r for _, r in members) / len(members)
            sign = 1 if gammas[b] >= 0 else -1
            moved = min(max(gammas[b] * math.exp(sign * 0.5 * gap), -2), 20)
            gammas[b] = -sign * 0.2 if abs(moved) < 0.2 else moved
        state = loss.state_dict()
        assert state["gammas"].tolist() == pytest.approx(gammas, rel=1e-9)
        assert state["edges"].tolist() == pytest.approx([members[0][0] for members in bins[1:]], rel=1e-6)


def test_empty_bins_have_gap_zero_and_no_samples():
    gaps, edges = bin_gaps(torch.tensor([0.75, 0.5]), torch.tensor([1.0, 0.0]), 4)
    assert gaps.tolist() == pytest.approx([0.5, -0.25, 0, 0])
    assert edges.tolist() == [0.75, math.inf, math.inf]


def test_state_survives_a_restart(reference):
    logits, targets = reference.batch(7, shape=(60, 5))
    loss, other = build_loss("adafocal"), build_loss("adafocal")
    loss.end_epoch(logits, targets)
    other.load_state_dict(loss.state_dict())
    assert other(logits, targets) == loss(logits, targets)
    with pytest.raises(ValueError, match="keeps"):
        other.load_state_dict({"gammas": torch.ones(15)})


def test_frozen_keeps_every_samples_gamma(reference):
    logits, targets = reference.batch(7, shape=(30, 5))
    loss = build_loss("adafocal", rate=8.0)
    for _ in range(3):
        loss.end_epoch(logits, targets)
    frozen = loss.frozen(logits, targets)
    torch.testing.assert_close(frozen(logits, targets), loss(logits, targets))
    before = frozen(logits * 2, targets)
    loss.end_epoch(logits * 2, targets)
    assert frozen(logits * 2, targets) == before
