"""The Transformer for translation (Vaswani et al. 2017) with torch's attention, and beam search.

Layers normalise after adding, one matrix embeds both languages and computes the logits (section 3.4), positions are
sinusoids (section 3.5), and dropout follows section 5.4. `torch.nn.Transformer` computes the same, but cannot keep keys
and values while a sentence is written; these layers do, so each token is computed once. The search follows Wu et al.
2016, section 7, and Vaswani et al. 2017, section 6.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from search_spaces.papers.translation.pairs import BEGIN, END, PADDING

#: Most tokens of a translation beyond its source's (Vaswani et al. 2017, section 6.1).
LONGER = 50

#: Keys and values of one attention, [N, heads, tokens, width / heads] each.
KeysAndValues = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Multi-head attention (section 3.2.2) with torch's `scaled_dot_product_attention`."""

    def __init__(self, width: int, heads: int) -> None:
        """Create the four projections."""
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def keys(self, attended: Tensor) -> KeysAndValues:
        """Return keys and values of the attended inputs [N, S, width]."""
        return self._by_head(self.key(attended)), self._by_head(self.value(attended))

    def forward(self, inputs: Tensor, keys: KeysAndValues, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Return attention [N, T, width] of inputs to `keys`; `mask` [N, 1, 1, S] is true at positions to attend."""
        read = functional.scaled_dot_product_attention(
            self._by_head(self.query(inputs)), *keys, attn_mask=mask, is_causal=causal
        )
        mixed: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return mixed

    def _by_head(self, values: Tensor) -> Tensor:
        split: Tensor = values.unflatten(2, (self.heads, -1))
        return split.transpose(1, 2)


class Layer(nn.Module):
    """An encoder or decoder layer: self-attention, in a decoder attention to the source, and a feed-forward network."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, *, decodes: bool) -> None:
        """Create the parts."""
        super().__init__()
        self.own = Attention(width, heads)
        self.other = Attention(width, heads) if decodes else None
        self.feed = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if decodes else 2))
        self.dropout = nn.Dropout(dropout)

    def source_keys(self, encoded: Tensor) -> KeysAndValues:
        """Return a decoder layer's keys and values of the encoder's output [N, S, width]."""
        if self.other is None:
            raise TypeError("an encoder's layer has no attention to a source")
        return self.other.keys(encoded)

    def forward(
        self,
        inputs: Tensor,
        keys: KeysAndValues,
        mask: Tensor | None,
        source: KeysAndValues | None = None,
        source_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Return [N, T, width]; `keys` are those of the layer's own inputs, `source` those of the encoder's output."""
        hidden = self.norms[0](inputs + self.dropout(self.own(inputs, keys, mask, causal)))
        if self.other is not None and source is not None:
            hidden = self.norms[1](hidden + self.dropout(self.other(hidden, source, source_mask)))
        last: Tensor = self.norms[-1](hidden + self.dropout(self.feed(hidden)))
        return last


@dataclass
class Written:
    """The state of translations while they are written, one row per translation.

    Attributes:
        tokens: number of written tokens.
        own: keys and values of the written tokens, by layer; empty before the first.
        source: keys and values of the encoder's output, by layer.
        mask: true where the source has a token, [N, 1, 1, S].
    """

    tokens: int
    own: list[KeysAndValues]
    source: list[KeysAndValues]
    mask: Tensor

    def select(self, rows: Tensor) -> Written:
        """Return the state of some rows, which may repeat."""
        own, source = ([(k[rows], v[rows]) for k, v in layers] for layers in (self.own, self.source))
        return Written(self.tokens, own, source, self.mask[rows])


class Transformer(nn.Module):
    """Transformer encoder and decoder for translation.

    It maps pairs [N, 2, L] to the logits of all target tokens [tokens, K], row by row. The defaults are the base model
    of Vaswani et al. 2017, Table 3.

    Source: Vaswani et al. 2017, arXiv:1706.03762.

    Args:
        input_shape: (2, length) of a pair of sentences.
        classes: number of word pieces K.
        layers: layers of the encoder, and of the decoder [Vaswani et al. 2017, Table 3, base].
        width: width of a token, d_model [Vaswani et al. 2017, Table 3, base].
        heads: heads of each attention [Vaswani et al. 2017, Table 3, base].
        inner: width of the feed-forward networks, d_ff [Vaswani et al. 2017, Table 3, base].
        dropout: rate after each layer [Vaswani et al. 2017, Table 3, base].

    Raises:
        ValueError: the inputs are not pairs of sentences, or the width cannot be shared among the heads.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        layers: Annotated[int, "[1, inf)"] = 6,
        width: Annotated[int, "[2, inf)"] = 512,
        heads: Annotated[int, "[1, inf)"] = 8,
        inner: Annotated[int, "[1, inf)"] = 2048,
        dropout: Annotated[float, "[0, 1)"] = 0.1,
    ) -> None:
        """Create encoder and decoder."""
        super().__init__()
        if len(input_shape) != 2 or input_shape[0] != 2:
            raise ValueError(
                f"transformer takes pairs of sentences of shape (2, length), but the data set's samples have shape "
                f"{tuple(input_shape)}; choose wmt14_en_de or number_words"
            )
        if width % heads or width % 2:
            raise ValueError(f"width = {width} must be even and a multiple of heads = {heads}")
        self.width = width
        self.embedding = nn.Embedding(classes, width)
        self.encoder = nn.ModuleList(Layer(width, heads, inner, dropout, decodes=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, heads, inner, dropout, decodes=True) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, classes, bias=False)
        for weights in self.parameters():
            if weights.dim() > 1:
                nn.init.xavier_uniform_(weights)
        # `_embedded` multiplies by √width, so embeddings have unit variance; the logits share the matrix.
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.classifier.weight = self.embedding.weight  # after the initialisation: one matrix (section 3.4)
        self.register_buffer("positions", sinusoids(input_shape[1] + LONGER + 1, width), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of every target token, given the source and the target's earlier tokens."""
        logits: Tensor = self.classifier(self.token_features(inputs))
        return logits

    def token_features(self, inputs: Tensor) -> Tensor:
        """Return the last layer's input for every target token, [tokens, width]."""
        source, target = self._sides(inputs)
        mask = (source != PADDING)[:, None, None]
        encoded = self.encode(source, mask)
        hidden = self._embedded(functional.pad(target[:, :-1], (1, 0), value=BEGIN), 0)
        for layer in _layers(self.decoder):
            # The target's padding needs no mask: it is at the end, and a causal layer never looks ahead.
            hidden = layer(hidden, layer.own.keys(hidden), None, layer.source_keys(encoded), mask, causal=True)
        features: Tensor = hidden[target != PADDING]
        return features

    def supervised(self, inputs: Tensor) -> Tensor:
        """Return the target tokens, int64 [tokens], in the order of `forward`'s logits."""
        _, target = self._sides(inputs)
        return target[target != PADDING].long()

    def encode(self, source: Tensor, mask: Tensor) -> Tensor:
        """Return the encoder's output [N, S, width] for token ids [N, S]."""
        hidden = self._embedded(source, 0)
        for layer in _layers(self.encoder):
            hidden = layer(hidden, layer.own.keys(hidden), mask)
        return hidden

    def begin(self, inputs: Tensor) -> Written:
        """Return the state before the first token is written, for inputs [N, 2, L]. Their targets are not read."""
        source = _trimmed(inputs[:, 0])
        mask = (source != PADDING)[:, None, None]
        encoded = self.encode(source, mask)
        return Written(0, [], [layer.source_keys(encoded) for layer in _layers(self.decoder)], mask)

    def write(self, tokens: Tensor, written: Written) -> tuple[Tensor, Written]:
        """Return the logits [N, K] of the token after `tokens` [N], and the state that includes `tokens`."""
        hidden, own = self._embedded(tokens[:, None], written.tokens), []
        for number, layer in enumerate(_layers(self.decoder)):
            keys = layer.own.keys(hidden)
            # Keys and values of earlier tokens do not change, so only those of the new token are computed.
            if written.own:
                before = written.own[number]
                keys = torch.cat([before[0], keys[0]], 2), torch.cat([before[1], keys[1]], 2)
            own.append(keys)
            hidden = layer(hidden, keys, None, written.source[number], written.mask)
        return self.classifier(hidden[:, 0]), Written(written.tokens + 1, own, written.source, written.mask)

    def _embedded(self, tokens: Tensor, first: int) -> Tensor:
        positions = self.positions[first : first + tokens.shape[1]]  # type: ignore[index]  # a buffer
        embedded: Tensor = self.dropout(self.embedding(tokens) * math.sqrt(self.width) + positions)
        return embedded

    def _sides(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return _trimmed(inputs[:, 0]), _trimmed(inputs[:, 1])


def _layers(side: nn.ModuleList) -> list[Layer]:
    return cast("list[Layer]", [*side])


def _trimmed(tokens: Tensor) -> Tensor:
    """Return token ids [N, L] without the columns that are padding in every row."""
    return tokens[:, : int((tokens != PADDING).sum(1).max())]


def sinusoids(count: int, width: int) -> Tensor:
    """Return the positions' encodings [count, width]: sin and cos of pos / 10000^(2i / width), side by side."""
    frequencies = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(count)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)


#: Score of an impossible beam; finite, so that sums and quotients with it stay finite.
NEVER = -1e30


def length_penalty(length: Tensor | int, alpha: float) -> Tensor:
    """Return ((5 + length) / 6)^α, which divides log probabilities (Wu et al. 2016, Eq. 14, without coverage)."""
    return ((5 + torch.as_tensor(length, dtype=torch.float32)) / 6) ** alpha


@torch.no_grad()
def beam_search(
    model: Transformer, inputs: Tensor, *, beams: int = 4, alpha: float = 0.6, temperature: float = 1.0
) -> list[list[int]]:
    """Translate sentences.

    `beams` unfinished translations of a sentence grow by one token per step; finished ones compete by log probability
    over the length penalty. A sentence is done when no unfinished translation can beat its best `beams` finished ones,
    or when its translations are LONGER tokens longer than its source.

    Args:
        model: network in evaluation mode.
        inputs: pairs [N, 2, L]; only the sources are read.
        beams: number of translations that are followed per sentence.
        alpha: strength of the length penalty; 0 for none.
        temperature: divisor of the logits.

    Returns:
        The best translation of each sentence, token ids without the end.
    """
    count, device = len(inputs), inputs.device
    written = model.begin(inputs).select(torch.arange(count, device=device).repeat_interleave(beams))
    # Each sentence has its own limit; finished beams longer than it are discarded below.
    limits = (inputs[:, 0] != PADDING).sum(1) + LONGER
    longest = int(limits.max())
    first = torch.arange(count, device=device)[:, None] * beams
    alive = torch.full((count, beams), NEVER, device=device)
    alive[:, 0] = 0.0  # all beams start equal, so only one of them may grow in the first step
    tokens = torch.full((count, beams, longest + 1), PADDING, device=device)
    tokens[:, :, 0] = BEGIN
    finished = torch.full((count, beams), NEVER, device=device)
    endings = tokens.clone()
    unfinished = tokens[:, 0].clone()  # the best one at a sentence's limit
    for length in range(1, longest + 1):
        logits, written = model.write(tokens[:, :, length - 1].reshape(-1), written)
        steps = torch.log_softmax(logits.float() / temperature, 1).view(count, beams, -1)
        # A translation consists of word pieces and END only.
        steps[:, :, (PADDING, BEGIN)] = NEVER
        classes = steps.shape[2]
        # Each beam has only one continuation that ends it, so at least `beams` of the best 2 · beams do not end.
        scores, places = (alive[:, :, None] + steps).flatten(1).topk(min(2 * beams, beams * classes), 1)
        beam, token = places // classes, places % classes
        grown = tokens.gather(1, beam[:, :, None].expand(-1, -1, longest + 1)).clone()
        grown[:, :, length] = token
        ends = token == END
        ended = torch.where(ends & (scores > NEVER / 2), scores / length_penalty(length, alpha).to(device), NEVER)
        ended[length > limits] = NEVER
        pool, kept = torch.cat([finished, ended], 1).topk(beams, 1)
        both = torch.cat([endings, grown], 1)
        finished, endings = pool, both.gather(1, kept[:, :, None].expand(-1, -1, longest + 1))
        alive, chosen = torch.where(ends, NEVER, scores).topk(beams, 1)
        tokens = grown.gather(1, chosen[:, :, None].expand(-1, -1, longest + 1))
        written = written.select((first + beam.gather(1, chosen)).reshape(-1))
        unfinished = torch.where((length <= limits)[:, None], tokens[:, 0], unfinished)
        # The best score that an unfinished beam can reach: no further loss, at the longest length.
        reachable = alive[:, 0] / length_penalty(limits, alpha).to(device)
        if bool(((finished[:, -1] >= reachable) | (length >= limits)).all()):
            break
    best = torch.where(finished[:, :1] > NEVER, endings[:, 0], unfinished)
    return [_until_end(row) for row in best[:, 1:].tolist()]


def _until_end(row: list[int]) -> list[int]:
    ends = [place for place, token in enumerate(row) if token in (END, PADDING)]
    return row[: ends[0]] if ends else row
