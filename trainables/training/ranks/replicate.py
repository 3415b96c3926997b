"""A replicate that several ranks train: its batches are shared out, its gradients summed, its predictions gathered.

Within `WholeBatch` batch normalisation takes its statistics over all ranks, and dropout and other draws of a value for
each sample are drawn for the whole batch, of which each rank uses its own rows: the random state is the same on every
rank, and on a CPU each sample's draws are those that one process would make. Both are replaced where the network calls
them, so that networks of torchvision, timm and users need no change and their states keep their names.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trainables.datasets.base import DataSet, Split
from trainables.losses import LOSSES, build_loss
from trainables.losses.hessian_trace import BatchNorm, composed_batch_norm
from trainables.models import ARCHITECTURES
from trainables.registry import Configuration
from trainables.training.acceleration import training_forward
from trainables.training.evaluation import Evaluation, EvaluationSettings
from trainables.training.fine_tuning import mixes
from trainables.training.loop import Replicate
from trainables.training.prediction import FEATURE_SAMPLES, EpochRow, State, logits_and_norms, predict
from trainables.training.ranks.group import Build, Crew, Load, Predict, Ranks, Train, summed_over_ranks


class RankedReplicate(Replicate):
    """One rank's twin of a replicate: every rank has the same weights, optimiser, loss and random states.

    All ranks call `train_epoch` together, and `predicted` together.
    """

    def __init__(self, configuration: Configuration, *, ranks: Ranks, **settings: Any) -> None:
        """Build the network, its loss and its optimiser, as `Replicate` does of its `settings`; `ranks` train it."""
        super().__init__(configuration, **settings)
        self.ranks = ranks
        self._whole = WholeBatchNetwork(
            self.model, ranks, normalisation=self.training.sync_batch_norm, fused=not self.loss.needs_model
        )
        self._forward = training_forward(self._whole, self.training, self.device)

    def part(self, rows: slice) -> slice:
        """Return this rank's rows of a batch; the targets are those of all."""
        return self.ranks.part(rows)

    def validation_logits(self) -> Tensor:
        """Return the validation logits [N, K], of which each rank computes its rows; statistics are rank 0's."""
        networks = {id(network): network for network in (self.model, self.measured)}
        self.ranks.take_from_first([b for network in networks.values() for b in network.buffers() if b.numel()])
        return self.predicted(self.dataset.val)

    def predicted(self, split: Split) -> Tensor:
        """Return the logits [N, K] of a split, of which each rank computes its rows."""
        if self.ranks.alone(len(split)):
            return predict(self.measured, split)
        return self.ranks.gather(predict(self.measured, split.part(self.ranks.rows(len(split)))), len(split)).detach()

    def _differentiate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self._whole.batch(len(targets)):
            value = super()._differentiate(inputs, targets)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if self.ranks.alone(len(targets)):
            self.ranks.take_from_first(gradients)
        elif self.loss.needs_model:
            value = value.clone()
            self.ranks.add_up([*gradients, value])
        else:
            self.ranks.add_up(gradients)
        return value

    def _loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        count = len(targets)
        if self.ranks.alone(count):
            return super()._loss_of(inputs, targets)
        if self.loss.needs_model:
            own = targets[self.ranks.rows(count)]
            return self.loss(self._whole, inputs, own, share=len(own) / count)  # type: ignore[call-arg, arg-type]
        return self.loss(self.ranks.gather(self._forward(inputs), count), targets)


class LeadingReplicate(RankedReplicate):
    """Rank 0's replicate: what it does with the others it tells them first."""

    def __init__(
        self, configuration: Configuration, *, crew: Crew, seed: int, dataset: DataSet, **settings: Any
    ) -> None:
        """Build the replicate, and have a twin built on every other rank.

        Args:
            configuration: as `Replicate` takes it.
            crew: the other ranks.
            seed: of everything random.
            dataset: on the device already.
            settings: the rest, as `Replicate` takes it; the other ranks have the same.
        """
        super().__init__(configuration, seed=seed, dataset=dataset, ranks=crew.ranks, **settings)
        self._crew, self._number = crew, crew.number()
        crew.tell(Build(self._number, configuration, seed, configuration.get("dataset")))

    def train_epoch(self, after_step: Callable[[], None] | None = None) -> EpochRow:
        """Train one epoch, or the rest of one, with all ranks and return its row."""
        with self._crew.together(Train(self._number)):
            return super().train_epoch(after_step)

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`'s result, on every rank."""
        super().load_state_dict(state)
        written = io.BytesIO()
        torch.save(dict(state), written)
        self._crew.tell(Load(self._number, written.getvalue()))

    def evaluate(self, settings: EvaluationSettings, stage: str) -> Evaluation:
        """Return the full measurement: the data set's splits are predicted by all ranks, the rest is rank 0's work."""
        names = {id(split.targets): name for name, split in self.dataset.splits.items()}

        def predicting(model: nn.Module, split: Split) -> tuple[Tensor, dict[str, float]]:
            with self._crew.together(Predict(self._number, names[id(split.targets)], stage)):
                logits = self.predicted(split)
            return logits.float(), logits_and_norms(model, split.first(FEATURE_SAMPLES))[1]

        return self._evaluated(settings, stage, predicting)


def ranks_fault(configuration: Configuration, workers: int) -> str | None:
    """Return why `workers` ranks cannot train a configuration, or `None`."""
    if workers < 2:
        return None
    size, network = configuration["optimizer"]["batch_size"], configuration["architecture"]["name"]
    if size < workers:
        return (
            f"workers = {workers} cannot share batches of batch_size = {size}: each needs a sample of every batch; "
            f"choose at most {size} workers"
        )
    if not ARCHITECTURES.is_own(network) and ARCHITECTURES.has_tag(network, "follows_data"):
        return (
            f"workers = {workers} cannot train {network}, whose batches are not divided into samples of one size; "
            "choose workers: 1"
        )
    if (mixed := mixes(configuration["optimizer"])) is not None:
        return f"workers = {workers} cannot train with {mixed}, which mixes whole batches; choose workers: 1"
    loss = configuration["loss"]["name"]
    if not LOSSES.is_own(loss):
        return None
    built = build_loss(**configuration["loss"])
    if built.needs_model and not built.takes_share:
        return (
            f"workers = {workers} cannot train {loss}, which takes the network itself and does not say what it "
            "is on a part of a batch; choose workers: 1"
        )
    return None


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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace batch normalisation in training mode, dropout and `bernoulli_`; leave all other calls unchanged."""
        given = kwargs or {}
        if func is functional.batch_norm and self._normalisation:
            return self._batch_norm(BatchNorm(*args, **given))
        if func is functional.dropout:
            return self._dropout(*args, **given)
        if func is Tensor.bernoulli_ and self._of_samples(args[0]):
            return self._drawn(*args, **given)
        return func(*args, **given)

    def _batch_norm(self, call: BatchNorm) -> Tensor:
        inputs, running_mean, running_var, weight, bias, training, momentum, eps = call
        if not (training and self._fused and inputs.is_cuda and weight is not None):
            return composed_batch_norm(call, partial(statistics, ranks=self._ranks))
        # What torch.nn.SyncBatchNorm calls.
        normalise = torch.nn.modules._functions.SyncBatchNorm.apply
        held = inputs if _is_channels_last(inputs) else inputs.contiguous()
        among = (torch.distributed.group.WORLD, self._ranks.size)
        found: Tensor = normalise(  # type: ignore[no-untyped-call]
            held, weight, bias, running_mean, running_var, eps, momentum, *among
        )
        return found

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
