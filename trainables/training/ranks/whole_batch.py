"""What a network computes or draws over a batch, made to be that of the whole batch while each rank has a part of it.

Within `WholeBatch` batch normalisation takes its statistics over all ranks, and dropout and other draws of a value for
each sample are drawn for the whole batch, of which each rank uses its own rows: the random state is the same on every
rank, and on a CPU each sample's draws are those that one process would make. Both are replaced where the network calls
them, so that networks of torchvision, timm and users need no change and their states keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trainables.losses.composed_normalisation import normalised_by, take_in_statistics
from trainables.training.ranks.group import Ranks, summed_over_ranks


class WholeBatch(TorchFunctionMode):
    """Within this context a network's batch normalisation and draws are those of a batch of `count` samples."""

    def __init__(self, ranks: Ranks, count: int, *, normalisation: bool, fused: bool) -> None:
        """Prepare for one batch.

        Args:
            ranks: that share it.
            count: samples of the whole batch.
            normalisation: whether statistics are those of the whole batch, not of each rank's part.
            fused: whether torch's own kernels may take them on a card: these can be differentiated only once.
        """
        super().__init__()
        self._ranks, self._count, self._fused = ranks, count, fused
        self._rows = ranks.rows(count)
        self._normalisation = normalisation

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Replace batch normalisation in training mode, dropout and `bernoulli_`; leave all other calls unchanged."""
        given = dict(kwargs or {})
        if func is functional.batch_norm and self._normalisation:
            return self._batch_norm(*args, **given)  # type: ignore[arg-type]
        if func is functional.dropout:
            return self._dropout(*args, **given)  # type: ignore[arg-type]
        if func is Tensor.bernoulli_ and self._of_samples(args[0]):
            return self._drawn(*args, **given)  # type: ignore[arg-type]
        return func(*args, **given)

    def _batch_norm(
        self,
        inputs: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return functional.batch_norm(inputs, running_mean, running_var, weight, bias, False, momentum, eps)
        if self._fused and inputs.is_cuda and weight is not None:
            # What torch.nn.SyncBatchNorm calls.
            normalise = torch.nn.modules._functions.SyncBatchNorm.apply
            held = inputs if _is_channels_last(inputs) else inputs.contiguous()
            among = (torch.distributed.group.WORLD, self._ranks.size)
            found: Tensor = normalise(  # type: ignore[no-untyped-call]
                held, weight, bias, running_mean, running_var, eps, momentum, *among
            )
            return found
        mean, variance, count = statistics(inputs, self._ranks)
        take_in_statistics(running_mean, running_var, mean, variance, count, momentum)
        return normalised_by(inputs.to(mean.dtype), mean, variance, weight, bias, eps).to(inputs.dtype)

    def _dropout(self, inputs: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not 0 < p < 1 or not self._of_samples(inputs):
            return functional.dropout(inputs, p, training, inplace)
        kept = self._drawn(torch.empty_like(inputs, memory_format=torch.contiguous_format), 1 - p).div_(1 - p)
        return inputs.mul_(kept) if inplace else inputs * kept

    def _drawn(self, values: Tensor, p: float | Tensor = 0.5, generator: torch.Generator | None = None) -> Tensor:
        """Put this rank's rows of draws for the whole batch into `values`."""
        whole = values.new_empty((self._count, *values.shape[1:]))
        return values.copy_(whole.bernoulli_(p, generator=generator)[self._rows])

    def _of_samples(self, values: object) -> bool:
        """Return whether a tensor has one row for each of this rank's samples."""
        assert isinstance(values, Tensor)
        return values.dim() > 0 and len(values) == self._rows.stop - self._rows.start


def statistics(inputs: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean [C], biased variance [C] and count of all ranks' inputs [N, C, ...], in float32 or wider.

    One exchange: every rank's mean, sum of squared deviations and count, combined as Chan et al. 1979 (Eq. 2.1), which
    loses no digits where the mean is large. All of it can be differentiated as often as wanted.
    """
    wide = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    dimensions = [d for d in range(wide.dim()) if d != 1]
    mean = wide.mean(dimensions)
    count = mean.new_full((1,), wide.numel() / wide.shape[1])
    squares = wide.var(dimensions, unbiased=False) * count
    own = torch.cat([mean, squares, count])
    place = own.new_zeros((ranks.size, 1))
    place[ranks.rank] = 1
    means, deviations, counts = summed_over_ranks(place * own).split([len(mean), len(mean), 1], dim=1)
    total = counts.sum()
    overall = (counts * means).sum(0) / total
    variance = (deviations + counts * (means - overall).square()).sum(0) / total
    return overall, variance, total.detach()


class WholeBatchNetwork(nn.Module):
    """A network whose training passes are those of the whole batch; its parameters are the network's."""

    def __init__(self, network: nn.Module, ranks: Ranks, *, normalisation: bool, fused: bool) -> None:
        """Wrap `network`; see `WholeBatch` for the rest."""
        super().__init__()
        self.network = network
        self._ranks, self._normalisation, self._fused = ranks, normalisation, fused
        self._count: int | None = None

    @contextmanager
    def batch(self, count: int) -> Iterator[None]:
        """Within this context inputs are this rank's part of a batch of `count`; without it they are whole batches."""
        self._count = None if self._ranks.alone(count) else count
        try:
            yield
        finally:
            self._count = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the network's outputs for this rank's inputs."""
        if self._count is None:
            return self.network(inputs)  # type: ignore[no-any-return]
        with WholeBatch(self._ranks, self._count, normalisation=self._normalisation, fused=self._fused):
            return self.network(inputs)  # type: ignore[no-any-return]


def _is_channels_last(inputs: Tensor) -> bool:
    return inputs.dim() == 4 and inputs.is_contiguous(memory_format=torch.channels_last)
