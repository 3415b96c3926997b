"""A replicate that several ranks train: its batches are shared out, its gradients summed, its predictions gathered."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainables.datasets.base import DataSet, Split, batches
from trainables.losses import LOSSES, build_loss
from trainables.models import ARCHITECTURES
from trainables.training.acceleration import PLAIN, TrainingSettings, laid_out, training_forward
from trainables.training.evaluation import Evaluation, EvaluationSettings
from trainables.training.loop import Replicate
from trainables.training.prediction import FEATURE_SAMPLES, logits_and_norms, predict
from trainables.training.ranks.group import Ranks
from trainables.training.ranks.orders import Build, Crew, Load, Predict, Train
from trainables.training.ranks.whole_batch import WholeBatchNetwork


class RankedReplicate(Replicate):
    """One rank's twin of a replicate: every rank has the same weights, optimiser, loss and random states.

    All ranks call `train_epoch` together, and `predicted` together.
    """

    def __init__(
        self,
        configuration: Mapping[str, Any],
        *,
        seed: int,
        dataset: DataSet,
        max_epochs: int,
        ranks: Ranks,
        device: torch.device | str = "cpu",
        training: TrainingSettings = PLAIN,
        bins: int = EvaluationSettings.bins,
    ) -> None:
        """Build the network, its loss and its optimiser, as `Replicate` does; `ranks` train it."""
        super().__init__(
            configuration,
            seed=seed,
            dataset=dataset,
            max_epochs=max_epochs,
            device=device,
            training=training,
            bins=bins,
        )
        self.ranks = ranks
        self._whole = WholeBatchNetwork(
            self.model, ranks, normalisation=training.sync_batch_norm, fused=not self.loss.needs_model
        )
        self._forward = training_forward(self._whole, training, self.device)

    def training_batches(self, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's inputs of the next epoch's batches but for the first `skip`, and whole batches' targets."""
        for inputs, targets in batches(
            self.dataset.train, self.recipe["batch_size"], self._order, part=self.ranks.part, skip=skip
        ):
            yield laid_out(inputs, self.training), targets

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
        self,
        configuration: Mapping[str, Any],
        *,
        crew: Crew,
        seed: int,
        dataset: DataSet,
        **settings: Any,
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

    def train_epoch(self, after_step: Callable[[], None] | None = None) -> dict[str, Any]:
        """Train one epoch, or the rest of one, with all ranks and return its row."""
        with self._crew.together(Train(self._number)):
            return super().train_epoch(after_step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
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


def ranks_fault(configuration: Mapping[str, Any], workers: int) -> str | None:
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
