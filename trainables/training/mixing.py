"""Mixed samples: mixup (Zhang et al. 2018, arXiv:1710.09412) and CutMix (Yun et al. 2019, arXiv:1905.04899).

Each sample x of a batch gets a partner x', the batch in another order, and the batch a share λ ~ Beta(α, α), as in both
papers' code. Mixup trains on λx + (1 − λ)x'; CutMix pastes a box of x' with 1 − λ of the image's area into x, and λ is
then what is left of x. With both, each batch is one of the two, by a fair coin, as in timm.

The target is v = λe_y + (1 − λ)e_y', and the loss λ·L(y) + (1 − λ)·L(y'), which is what papers define at soft targets:

* cross-entropy, with label smoothing or without, is linear in v;
* focal-type losses are Σ_k v_k·L(k) (posterior §6.1), γ of a class chosen by that class's own probability;
* the Brier score at v is 2λ(1 − λ) less where y ≠ y', whatever the network says: gradients are the same;
* the weights of `aurc` and `selective_risk` follow from the scores alone.

Losses that ask which samples are right (`mmce`, `kde_xe`), that keep counts of the samples that they saw, or that take
the network itself have no such form, and are refused.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trainables.datasets.base import DataSet
from trainables.losses import Loss, build_loss
from trainables.registry import Configuration, Options

IMAGE_DIMENSIONS = 3


class Mixing:
    """Mixes a replicate's batches. Batch b of epoch e is drawn by (seed, e, b) alone: no state is to be saved."""

    def __init__(self, configuration: Configuration, seed: int, loss: Loss, dataset: DataSet) -> None:
        """Prepare for batches of `dataset`. Raises ValueError where these, or the loss, cannot be mixed."""
        if (fault := mixing_fault(configuration, dataset)) is not None:
            raise ValueError(fault)
        recipe = configuration["optimizer"]
        self._kinds = [(kind, float(recipe[name])) for name, kind in KINDS.items() if recipe.get(name)]
        self._seed, self._loss = [seed & 0xFFFFFFFF, seed >> 32], loss
        self._order, self._share = torch.empty(0, dtype=torch.int64), 1.0

    def __call__(self, inputs: Tensor, epoch: int, batch: int) -> Tensor:
        """Return a batch's inputs [B, ...] mixed, and remember how for its `loss`."""
        random = np.random.RandomState([*self._seed, epoch, batch])
        mix, alpha = self._kinds[random.randint(len(self._kinds))]
        self._order = torch.from_numpy(random.permutation(len(inputs))).to(inputs.device)
        mixed, self._share = mix(inputs, inputs[self._order], random.beta(alpha, alpha), random)
        return mixed

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of the batch that was mixed last, at logits [B, K] and its own targets [B]."""
        own, partners = self._loss(logits, targets), self._loss(logits, targets[self._order])
        return self._share * own + (1 - self._share) * partners


def mixup(own: Tensor, partners: Tensor, share: float, random: np.random.RandomState) -> tuple[Tensor, float]:
    """Return λx + (1 − λ)x' and λ."""
    return own * share + partners * (1 - share), share


def cutmix(own: Tensor, partners: Tensor, share: float, random: np.random.RandomState) -> tuple[Tensor, float]:
    """Return x [B, C, H, W] with a box of x', and what is left of x's area: the box ends at the image's edge."""
    height, width = own.shape[-2:]
    slices = []
    for size in (height, width):
        half, centre = int(size * np.sqrt(1 - share)) // 2, random.randint(size)
        slices.append(slice(max(centre - half, 0), min(centre + half, size)))
    mixed = own.clone()
    mixed[..., slices[0], slices[1]] = partners[..., slices[0], slices[1]]
    pasted = (slices[0].stop - slices[0].start) * (slices[1].stop - slices[1].start)
    return mixed, 1 - pasted / (height * width)


#: Hyperparameter of a recipe, α of its Beta distribution, and what it does.
KINDS = {"mixup": mixup, "cutmix": cutmix}


def mixes(recipe: Options) -> str | None:
    """Return which hyperparameter asks for mixed samples; `None` where none does, or α is 0."""
    return next((name for name in KINDS if recipe.get(name)), None)


def mixing_fault(configuration: Configuration, dataset: DataSet) -> str | None:
    """Return why a configuration cannot have mixed samples of these data, or `None`; for use before a run."""
    recipe, loss = configuration["optimizer"], build_loss(**configuration["loss"])
    if (name := mixes(recipe)) is None:
        return None
    if not loss.takes_soft_targets:
        return f"{name} needs a loss with soft targets, and {loss.name} has none; choose another loss, or {name}: 0"
    if dataset.vocabulary is not None or dataset.train.inputs.dtype == torch.int64:
        return f"{name} cannot mix samples of {dataset.name}, which are tokens; choose {name}: 0"
    if recipe.get("cutmix") and len(dataset.input_shape) != IMAGE_DIMENSIONS:
        return f"cutmix needs images, and samples of {dataset.name} are {[*dataset.input_shape]}; choose cutmix: 0"
    return None
