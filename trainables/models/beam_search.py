"""Translating by beam search (Wu et al. 2016, section 7; Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.models.transformer import BEGIN, LONGER, PADDING, Transformer

END = 3
"""The id that ends a sentence, of `trainables.datasets.translation`."""

NEVER = -1e30
"""The score of what is not there; finite, so that sums of it stay so."""


def length_penalty(length: Tensor | int, alpha: float) -> Tensor:
    """Return ((5 + length) / 6)^α, which divides log probabilities (Wu et al. 2016, Eq. 14, without coverage)."""
    return ((5 + torch.as_tensor(length, dtype=torch.float32)) / 6) ** alpha


@torch.no_grad()
def beam_search(
    model: Transformer, inputs: Tensor, *, beams: int = 4, alpha: float = 0.6, temperature: float = 1.0
) -> list[list[int]]:
    """Translate sentences.

    `beams` unfinished translations of a sentence grow by a token a step; those that end compete by their log
    probability over the length penalty. A sentence is done when no unfinished translation can still beat its best
    `beams` finished ones, or at LONGER tokens more than its source.

    Args:
        model: in evaluation mode.
        inputs: pairs [N, 2, L], of which the sources are read.
        beams: translations of each sentence that are followed.
        alpha: strength of the length penalty; 0 for none.
        temperature: the logits are divided by it.

    Returns:
        The best translation of each sentence, token ids without the end.
    """
    count, device = len(inputs), inputs.device
    written = model.begin(inputs).select(torch.arange(count, device=device).repeat_interleave(beams))
    limits = (inputs[:, 0] != PADDING).sum(1) + LONGER
    longest = int(limits.max())
    first = torch.arange(count, device=device)[:, None] * beams
    alive = torch.full((count, beams), NEVER, device=device)
    alive[:, 0] = 0.0  # all beams begin alike: one of them counts
    tokens = torch.full((count, beams, longest + 1), PADDING, device=device)
    tokens[:, :, 0] = BEGIN
    finished = torch.full((count, beams), NEVER, device=device)
    endings = tokens.clone()
    unfinished = tokens[:, 0].clone()  # the best one at a sentence's limit
    for length in range(1, longest + 1):
        logits, written = model.write(tokens[:, :, length - 1].reshape(-1), written)
        steps = torch.log_softmax(logits.float() / temperature, 1).view(count, beams, -1)
        steps[:, :, (PADDING, BEGIN)] = NEVER
        classes = steps.shape[2]
        # A beam can end in one way only: of twice as many at least `beams` do not end.
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
        reachable = alive[:, 0] / length_penalty(limits, alpha).to(device)
        if bool(((finished[:, -1] >= reachable) | (length >= limits)).all()):
            break
    best = torch.where(finished[:, :1] > NEVER, endings[:, 0], unfinished)
    return [_until_end(row) for row in best[:, 1:].tolist()]


def _until_end(row: list[int]) -> list[int]:
    ends = [place for place, token in enumerate(row) if token in (END, PADDING)]
    return row[: ends[0]] if ends else row
