import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from trainables.losses.base import SCORE_NAMES, confidence_score, score_from_log_probabilities


def naive(name, row):
    top = max(row)
    exponentials = [math.exp(z - top) for z in row]
    p = sorted((e / sum(exponentials) for e in exponentials), reverse=True)
    if name == "msp":
        return p[0]
    if name == "margin":
        return p[0] - p[1]
    return 1 + sum(u * math.log(u) for u in p if u > 0) / math.log(len(p))


@pytest.mark.parametrize("name", SCORE_NAMES)
def test_equals_reference(name):
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(6, 2 + seed, generator=generator, dtype=torch.float64) * 3
        expected = [naive(name, row) for row in logits.tolist()]
        assert confidence_score(name, logits).tolist() == pytest.approx(expected, abs=1e-12)
        assert confidence_score(name, logits.float()).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", SCORE_NAMES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), classes=st.integers(2, 50), scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]))
def test_lies_between_0_and_1(name, seed, classes, scale):
    logits = torch.randn(8, classes, generator=torch.Generator().manual_seed(seed)) * scale
    scores = confidence_score(name, logits.clamp(-1e4, 1e4))
    assert scores.dtype == torch.float32
    assert ((scores >= 0) & (scores <= 1)).all()


def test_the_softmax_is_applied_once():
    logits = torch.tensor([[2.0, 0.0, -1.0]])
    log_p = torch.log_softmax(logits, -1)
    for name in SCORE_NAMES:
        assert confidence_score(name, logits) == score_from_log_probabilities(name, log_p)
    assert confidence_score("msp", logits).item() == pytest.approx(0.8438, abs=1e-4)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"unknown confidence score 'entropy'; known: msp, margin, negative_entropy"):
        confidence_score("entropy", torch.zeros(1, 2))
