"""Norms inside a network: its last layer's weights, the features that enter it, and the samples' gradients there.

They show what a loss does to a network while it trains (mukhoti Figs. 3e, 4, 7 and 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.datasets.base import Split, evaluation_batches
from trainables.losses import Loss

FEATURE_SAMPLES = 1024
"""An evaluation's mean feature norm is taken over the split's first so many samples, one batch."""

GRADIENT_NORM_EDGES: NDArray[np.float64] = np.concatenate([[0.0], np.logspace(-6, 3, 91), [np.inf]])
"""Edges of the histogram of gradient norms: ten bins a decade from 1e-6 to 1e3, one below, one above; bins [l, u)."""


def last_linear(model: nn.Module) -> nn.Linear | None:
    """Return the network's last linear layer, or `None` where it has none."""
    layers: Sequence[nn.Linear] = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return layers[-1] if layers else None


@torch.no_grad()
def features_and_logits(
    model: nn.Module, layer: nn.Linear | None, split: Split, batch_size: int = 1024
) -> Iterator[tuple[Tensor | None, Tensor, Tensor]]:
    """Yield features [B, D] entering a linear layer, logits [B, K] and targets [B] of a split's batches.

    The network is in evaluation mode, without augmentation; without a layer the features are `None`.
    """
    model.eval()
    entered: list[Tensor] = []
    handle = None
    if layer is not None:
        handle = layer.register_forward_pre_hook(lambda _, arguments: entered.append(arguments[0]))
    try:
        for inputs, targets in evaluation_batches(split, batch_size):
            logits = model(inputs)
            # A network may call the layer once for every node of a tree: the last call makes the logits.
            features = entered[-1].flatten(1) if entered else None
            entered.clear()
            yield features, logits, targets
    finally:
        if handle is not None:
            handle.remove()


Predicting = Callable[[nn.Module, Split], tuple[Tensor, dict[str, float]]]
"""A network and a split → its logits [N, K] in float32 and norms, as `logits_and_norms` gives them."""


def logits_and_norms(model: nn.Module, split: Split) -> tuple[Tensor, dict[str, float]]:
    """Return a split's logits [N, K] in float32 and, from the same pass, `last_layer_weight_norm` and `feature_norm`.

    The latter is the mean over the first `FEATURE_SAMPLES`. There are no norms where there is no linear layer.
    """
    layer = last_linear(model)
    parts, norm = [], None
    for features, logits, _ in features_and_logits(model, layer, split, FEATURE_SAMPLES):
        parts.append(logits)
        if features is not None and norm is None:
            norm = float(features.norm(dim=1).mean())
    norms = {} if layer is None else {"last_layer_weight_norm": float(layer.weight.detach().norm())}
    return torch.cat(parts).float(), norms if norm is None else {**norms, "feature_norm": norm}


def last_layer_gradient_norms(features: Tensor, logits: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """Return each sample's gradient norm of the loss by the last layer's weights [B].

    The weights' gradient of one sample is the outer product of ∂ℓ/∂z and its features, so its norm is the product of
    theirs. ∂ℓ/∂z is B times the mean loss's: for a loss that couples the batch, the sample's whole share of it.

    Args:
        features: [B, D], entering the last layer.
        logits: [B, K].
        targets: [B].
        loss: the training loss; a regulariser around a loss counts as the loss alone.
    """
    base = getattr(loss, "base", loss)
    with torch.enable_grad():
        free = logits.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(base(free, targets), free)
    norms: Tensor = len(targets) * gradient.norm(dim=1) * features.norm(dim=1)
    return norms


def gradient_norm_counts(norms: Any) -> list[int]:
    """Return how many of the norms [N] fall into each bin of GRADIENT_NORM_EDGES; one that is not finite is in none."""
    values = np.asarray(norms, dtype=np.float64)
    counts, _ = np.histogram(values[np.isfinite(values)], GRADIENT_NORM_EDGES)
    return [int(count) for count in counts]
