"""Beam search against a plain one that keeps lists and computes each prefix anew, and against all translations."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tests.trainables.models.test_transformer import pairs
from trainables.models import beam_search as searching
from trainables.models import build_model
from trainables.models.beam_search import END, beam_search
from trainables.models.transformer import Transformer

CLASSES = 11


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(1)
    built = build_model("transformer", (2, 7), CLASSES, layers=1, width=16, heads=2, inner=16, dropout=0.0)
    assert isinstance(built, Transformer)
    with torch.no_grad():
        for weights in built.parameters():
            weights.mul_(1.5)  # sharper than an untrained network, so that translations differ
    return built.eval()


@torch.no_grad()
def log_probabilities(model: Transformer, source: Tensor, prefix: list[int], temperature: float) -> Tensor:
    """Return the next token's log probabilities, from the whole prefix; padding and begin never come."""
    length = len(prefix) + 1
    inputs = torch.zeros((1, 2, max(length, source.shape[0])), dtype=torch.int64)
    inputs[0, 0, : source.shape[0]] = source
    inputs[0, 1, :length] = torch.tensor([*prefix, END])
    found = torch.log_softmax(model(inputs)[-1] / temperature, 0)
    found[[0, 2]] = -torch.inf
    return found


def penalty(length: int, alpha: float) -> float:
    return float(((5 + length) / 6) ** alpha)


def plain_search(
    model: Transformer, source: Tensor, beams: int, alpha: float, temperature: float, longer: int
) -> list[int]:
    """Search as Vaswani et al.'s code does, a sentence and a prefix at a time."""
    limit = int((source != 0).sum()) + longer
    alive: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        grown = []
        for score, prefix in alive:
            steps = log_probabilities(model, source, prefix, temperature)
            grown += [(score + float(steps[token]), [*prefix, token]) for token in range(CLASSES)]
        grown = sorted(grown, key=lambda each: -each[0])[: 2 * beams]
        ended = [(score / penalty(length, alpha), prefix[:-1]) for score, prefix in grown if prefix[-1] == END]
        finished = sorted([*finished, *ended], key=lambda each: -each[0])[:beams]
        alive = [each for each in grown if each[1][-1] != END][:beams]
        if len(finished) == beams and finished[-1][0] >= alive[0][0] / penalty(limit, alpha):
            break
    return finished[0][1] if finished else alive[0][1]


@pytest.mark.parametrize(("beams", "alpha", "temperature"), [(1, 0.0, 1.0), (4, 0.6, 1.0), (3, 1.0, 1.7)])
def test_it_finds_what_a_plain_search_finds(
    model: Transformer, monkeypatch: pytest.MonkeyPatch, beams: int, alpha: float, temperature: float
) -> None:
    monkeypatch.setattr(searching, "LONGER", 3)
    inputs = pairs(6)
    found = beam_search(model, inputs, beams=beams, alpha=alpha, temperature=temperature)
    expected = [plain_search(model, row[0], beams, alpha, temperature, 3) for row in inputs]
    assert found == expected
    assert len({tuple(each) for each in found}) > 1


def test_a_beam_of_everything_finds_the_best_translation_of_all(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "LONGER", 1)
    source = torch.tensor([[[5, 3, 0], [4, 3, 0]]], dtype=torch.int32)  # a word: at most three tokens with the end
    tokens = [token for token in range(CLASSES) if token not in (0, 2, END)]
    scores = {}
    for length in range(3):
        for words in itertools.product(tokens, repeat=length):
            total = sum(
                float(log_probabilities(model, source[0, 0], [*words[:place]], 1.0)[token])
                for place, token in enumerate([*words, END])
            )
            scores[words] = total / penalty(length + 1, 0.6)
    best = max(scores, key=lambda words: scores[words])
    assert beam_search(model, source, beams=100, alpha=0.6) == [[*best]]


def test_sentences_do_not_depend_on_those_beside_them(model: Transformer) -> None:
    inputs = pairs(5, seed=2)
    alone = [beam_search(model, row[None])[0] for row in inputs]
    assert beam_search(model, inputs) == alone
