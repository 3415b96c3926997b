"""The ranks that train one network together, seen from one of them: who has which rows, and what they exchange.

The loss is that of the whole batch: every rank computes it from all logits, of which its own carry a gradient. So each
backward pass leaves the part of the gradient that goes through the rank's own samples, whatever the loss does with the
others, and the sum over ranks is the whole gradient. Losses that couple a batch need nothing of their own for this.

Every rank has a twin of each of rank 0's replicates, which rank 0's orders name by a number of its own. Between two
orders the others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from trainables.registry import Configuration, Options

#: Gradients are summed in buckets of about this size, as torch's DistributedDataParallel does by default.
BUCKET_BYTES = 25 * 2**20


def rows_of(count: int, rank: int, size: int) -> slice:
    """Return the rows of `count` that are rank's: consecutive ones, and the first ranks have one more where needed."""
    each, more = divmod(count, size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + (rank < more))


class Ranks:
    """One rank among those that train together; all of them call the same methods in the same order.

    Attributes:
        rank: this one's number; 0 leads.
        size: how many there are.
    """

    def __init__(self, rank: int, size: int) -> None:
        """Stand for rank `rank` of `size`, whose process group has been joined (`trainables.worker.ranks`)."""
        self.rank, self.size = rank, size

    def alone(self, batch: int) -> bool:
        """Return whether a batch has too few samples to give each rank one, so that every rank computes all of it."""
        return batch < self.size

    def part(self, rows: slice) -> slice:
        """Return this rank's rows of a batch that has `rows` of an epoch's order."""
        count = rows.stop - rows.start
        if self.alone(count):
            return rows
        own = self.rows(count)
        return slice(rows.start + own.start, rows.start + own.stop)

    def rows(self, count: int) -> slice:
        """Return which of `count` rows are this rank's."""
        return rows_of(count, self.rank, self.size)

    def gather(self, own: Tensor, count: int) -> Tensor:
        """Return the rows [count, ...] of all ranks in order; the gradient goes to this rank's `own` alone."""
        shares = [rows_of(count, rank, self.size) for rank in range(self.size)]
        most = max(share.stop - share.start for share in shares)
        sent = own.detach().contiguous()
        if len(own) < most:
            sent = torch.cat([sent, sent.new_zeros((most - len(own), *own.shape[1:]))])
        received = [torch.empty_like(sent) for _ in shares]
        dist.all_gather(received, sent)
        parts = [rows[: share.stop - share.start] for rows, share in zip(received, shares, strict=True)]
        parts[self.rank] = own
        return torch.cat(parts)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Put the sum over ranks into each tensor; the same bits on every rank, so that their weights stay the same."""
        _exchange(tensors, partial(dist.all_reduce, async_op=True))

    def take_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Put rank 0's values into each tensor."""
        _exchange(tensors, partial(dist.broadcast, src=0, async_op=True))


def _exchange(tensors: Sequence[Tensor], begin: Callable[[Tensor], Any]) -> None:
    """Put into each tensor what comes of its bucket's numbers, whose exchange `begin` begins."""
    waiting = []
    for bucket in buckets(tensors):
        together = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
        waiting.append((bucket, together, begin(together)))
    for bucket, together, work in waiting:
        work.wait()
        parts = together.split([tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.detach().copy_(part.view(tensor.shape))


def buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return tensors in groups of one type and of about `BUCKET_BYTES`, in order."""
    found: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        if not found or found[-1][0].dtype != tensor.dtype or size + tensor.nbytes > BUCKET_BYTES:
            found.append([])
            size = 0
        found[-1].append(tensor)
        size += tensor.nbytes
    return found


def summed_over_ranks(values: Tensor) -> Tensor:
    """Return the sum of the ranks' `values`, which can be differentiated as often as wanted.

    Each rank differentiates its own share of one objective, whose sum over ranks is meant: then the derivative by a
    rank's values is the sum of all ranks' derivatives by the result.
    """
    result: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return result


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        total = values.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return summed_over_ranks(gradients[0])


@dataclass(frozen=True)
class Build:
    """Build the twin of a replicate at its epoch 0; the fields are those of `Replicate`, and `dataset` its name.

    Attributes:
        replicate: its number from now on.
        dataset: the data set that its configuration names; `None` for the sweep's own.
    """

    replicate: int
    configuration: Configuration
    seed: int
    dataset: Options | None


@dataclass(frozen=True)
class Load:
    """Continue from a state, as `torch.save` writes it."""

    replicate: int
    state: bytes


@dataclass(frozen=True)
class Train:
    """Train one epoch together."""

    replicate: int


@dataclass(frozen=True)
class Predict:
    """Predict this rank's rows of a split together, with the weights that an evaluation at `stage` measures."""

    replicate: int
    split: str
    stage: str


@dataclass(frozen=True)
class Forget:
    """Let go of all twins: another trial begins."""


Order = Build | Load | Train | Predict | Forget


class Crew(Protocol):
    """The other ranks, as rank 0 sees them."""

    @property
    def ranks(self) -> Ranks:
        """The group, seen from rank 0."""

    def number(self) -> int:
        """Return a number that no replicate has had."""

    def tell(self, order: Order) -> None:
        """Send an order to every rank, without waiting."""

    def together(self, order: Order) -> AbstractContextManager[None]:
        """Send an order; what runs inside is rank 0's part of it. Raises RankLostError when a rank ends meanwhile."""
