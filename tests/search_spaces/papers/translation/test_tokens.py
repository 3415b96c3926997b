"""Metrics of what is kept of a token against those of all its probabilities."""

import pytest
import torch

from search_spaces.papers.translation.tokens import (
    TOKEN_METRICS,
    column_at,
    joined,
    token_ece,
    token_metrics,
    token_statistics,
)
from trainables.metrics import evaluate_probabilities, softmax64

TEMPERATURES = (0.5, 1.0, 1.7)


def drawn(samples: int = 400, classes: int = 30, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(classes)
    logits = scale * torch.randn(samples, classes, generator=generator)
    targets = torch.where(
        torch.rand(samples, generator=generator) < 0.4,
        logits.argmax(1),
        torch.randint(classes, (samples,), generator=generator),
    )
    return logits, targets


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("classes", "scale"), [(3, 1.0), (30, 2.0), (200, 0.1), (30, 15.0)])
def test_they_are_those_of_all_probabilities(classes: int, scale: float, temperature: float) -> None:
    logits, targets = drawn(classes=classes, scale=scale)
    kept = token_metrics(token_statistics(logits, targets, TEMPERATURES), temperature)
    whole = evaluate_probabilities(softmax64(logits.double().numpy() / temperature), targets.numpy())
    for name, value in kept.items():
        assert value == pytest.approx(whole[name], rel=1e-9, abs=1e-12, nan_ok=True), name
    assert {*kept} == {*TOKEN_METRICS} and {"nll", "ece", "aurc"} <= {*kept} < {*whole}
    assert column_at("ece", 0.9) == "ece_at_0_9"


def test_tied_logits_count_as_the_first_class() -> None:
    logits = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 2.0, 2.0]]).repeat(6, 1)
    targets = torch.tensor([0, 1, 2]).repeat(6)
    assert token_statistics(logits, targets, [1.0]).correct.tolist() == [True, False, False] * 6


def test_parts_joined_are_the_whole() -> None:
    logits, targets = drawn()
    whole = token_statistics(logits, targets, TEMPERATURES)
    parts = [token_statistics(logits[rows], targets[rows], TEMPERATURES) for rows in (slice(0, 7), slice(7, 400))]
    assert token_metrics(joined(parts), 1.7) == pytest.approx(token_metrics(whole, 1.7), nan_ok=True)


def test_the_error_at_a_temperature_is_that_of_all_probabilities() -> None:
    logits, targets = drawn()
    tokens = token_statistics(logits, targets, [1.0, 2.0])
    whole = evaluate_probabilities(softmax64(logits.numpy() / 2), targets)["ece"]
    assert token_ece(tokens, 2.0) == pytest.approx(whole, rel=1e-6)


def test_a_temperature_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="no statistics at T = 3"):
        token_statistics(*drawn(), [1.0]).confidence(3.0)
