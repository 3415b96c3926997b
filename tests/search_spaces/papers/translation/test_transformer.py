"""The Transformer against torch's own layers, its parameter count by hand, and writing a token at a time."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from search_spaces.papers.translation import transformer as searching
from search_spaces.papers.translation.transformer import (
    BEGIN,
    END,
    Attention,
    Layer,
    Transformer,
    beam_search,
    sinusoids,
)

SMALL = {"layers": 2, "width": 16, "heads": 4, "inner": 24, "dropout": 0.0}
CLASSES, LENGTH = 11, 7


def small(**changes: float) -> Transformer:
    torch.manual_seed(0)
    return Transformer((2, LENGTH), CLASSES, **{**SMALL, **changes}).eval()  # type: ignore[arg-type]


def pairs(count: int = 5, seed: int = 0) -> Tensor:
    """Draw sentences of different lengths, each ended by id 3 and padded with 0."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.zeros((count, 2, LENGTH), dtype=torch.int32)
    for row in rows.view(-1, LENGTH):
        words = int(torch.randint(1, LENGTH, (), generator=generator))
        row[:words] = torch.randint(4, CLASSES, (words,), generator=generator)
        row[words] = 3
    return rows


def _copied(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.data = torch.cat([part.weight for part in parts])
    theirs.in_proj_bias.data = torch.cat([part.bias for part in parts])
    theirs.out_proj.load_state_dict(ours.out.state_dict())


def _of_torch(layer: Layer, kind: type[nn.Module]) -> nn.Module:
    theirs = kind(16, 4, 24, 0.0, batch_first=True).eval()
    _copied(layer.own, theirs.self_attn)
    if layer.other is not None:
        _copied(layer.other, theirs.multihead_attn)
    theirs.linear1.load_state_dict(layer.feed[0].state_dict())
    theirs.linear2.load_state_dict(layer.feed[2].state_dict())
    for number, norm in enumerate(layer.norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    return theirs


@torch.no_grad()
def test_it_computes_what_torchs_layers_compute() -> None:
    model, inputs = small(), pairs()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))  # biases and norms begin at 0 and 1
    source, target = inputs[:, 0].long(), inputs[:, 1].long()
    padded = source == 0

    def embedded(tokens: Tensor) -> Tensor:
        return model.embedding(tokens) * math.sqrt(16) + model.positions[: tokens.shape[1]]

    encoded = embedded(source)
    for layer in model.encoder:
        encoded = _of_torch(layer, nn.TransformerEncoderLayer)(encoded, src_key_padding_mask=padded)
    shifted = torch.cat([torch.full((len(inputs), 1), BEGIN), target[:, :-1]], 1)
    hidden, later = embedded(shifted), nn.Transformer.generate_square_subsequent_mask(LENGTH)
    for layer in model.decoder:
        theirs = _of_torch(layer, nn.TransformerDecoderLayer)
        hidden = theirs(hidden, encoded, tgt_mask=later, memory_key_padding_mask=padded)
    logits = hidden @ model.embedding.weight.T
    torch.testing.assert_close(model(inputs), logits[target != 0], rtol=1e-4, atol=1e-5)


def test_the_base_model_has_the_parameters_of_the_paper() -> None:
    attention = 4 * (512 * 512 + 512)
    feed = 512 * 2048 + 2048 + 2048 * 512 + 512
    encoder, decoder = attention + feed + 2 * 2 * 512, 2 * attention + feed + 3 * 2 * 512
    model = Transformer((2, 128), 1_000)
    counted = sum(weights.numel() for weights in model.parameters())
    assert counted == 1_000 * 512 + 6 * encoder + 6 * decoder, (
        "one matrix embeds both languages and reads the logits out"
    )
    assert counted + 36_000 * 512 == 63_082_496  # Table 3: 65 million, with a vocabulary of about 37,000


@torch.no_grad()
def test_writing_token_by_token_gives_the_logits_of_the_whole_sentence() -> None:
    model, inputs = small(), pairs()
    together = model(inputs)
    written, tokens = model.begin(inputs), torch.full((len(inputs),), BEGIN)
    steps = []
    for place in range(LENGTH):
        logits, written = model.write(tokens, written)
        steps.append(logits)
        tokens = inputs[:, 1, place].long()
    apart = torch.stack(steps, 1)[inputs[:, 1] != 0]
    torch.testing.assert_close(apart, together, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_sentence_does_not_depend_on_those_beside_it() -> None:
    model, inputs = small(), pairs()
    alone = torch.cat([model(row[None]) for row in inputs])
    torch.testing.assert_close(model(inputs), alone, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_token_is_predicted_from_those_before_it() -> None:
    model, inputs = small(), pairs()
    changed = inputs.clone()
    changed[:, 1, 0] = 4 + (inputs[:, 1, 0] - 3) % (CLASSES - 4)
    starts = torch.cumsum(torch.tensor([0, *(inputs[:-1, 1] != 0).sum(1).tolist()]), 0)
    torch.testing.assert_close(model(changed)[starts], model(inputs)[starts])
    assert not torch.allclose(model(changed)[starts + 1], model(inputs)[starts + 1])


def test_supervised_tokens_are_those_of_the_targets_in_order() -> None:
    model, inputs = small(), pairs()
    assert model.supervised(inputs).tolist() == [int(t) for row in inputs[:, 1] for t in row if t]
    assert model(inputs).shape == (len(model.supervised(inputs)), CLASSES)


def test_positions_are_the_papers_sinusoids() -> None:
    found = sinusoids(9, 6)
    for place in range(9):
        for index in range(3):
            angle = place / 10_000 ** (2 * index / 6)
            assert found[place, 2 * index].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert found[place, 2 * index + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "options", "said"),
    [
        ((3, 32, 32), {}, "takes pairs of sentences"),
        ((64,), {}, "takes pairs of sentences"),
        ((2, 8), {"width": 30, "heads": 4}, "multiple of heads = 4"),
    ],
)
def test_what_does_not_fit_is_refused(shape: tuple[int, ...], options: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Transformer(shape, 10, **options)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(1)
    built = Transformer((2, 7), CLASSES, layers=1, width=16, heads=2, inner=16, dropout=0.0)
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


def test_a_beam_of_everything_finds_the_best(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
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
