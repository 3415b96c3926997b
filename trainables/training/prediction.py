"""What a network says of whole splits, an epoch's cheap metrics, norms of its layers, and the way to the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.datasets.base import DataSet, Split, evaluation_batches
from trainables.datasets.splits import build_split
from trainables.losses import Loss
from trainables.metrics.base import log_softmax64
from trainables.metrics.binning import calibration_error


def on_host(*tensors: Tensor) -> list[Tensor]:
    """Return tensors on the host, those of a GPU by one transfer; what is there already stays as it is."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [*tensors]
    return parted(joined(tensors).cpu(), tensors)


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bytes of tensors of any type and shape, one after the other, uint8 [sum of their sizes]."""
    return torch.cat([tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in tensors])


def parted(together: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return what `joined` has put together, by the types and shapes of `like`."""
    parts = together.split([tensor.nbytes for tensor in like])
    # A copy begins where its type may begin; a part may not.
    return [part.clone().view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def placed(state: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a state with its tensors on `device`; other values as they are."""
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in state.items()}


@dataclass(frozen=True)
class ShiftedData:
    """What a network says of one split beyond the data set's own.

    Attributes:
        logits: float32 `[N, K]`.
        targets: classes, int64 `[N]`.
        same_classes: whether the targets are the network's classes.
        detected: whether it is told from the test split.
        kept: whether logits go into the tables.
    """

    logits: np.ndarray
    targets: np.ndarray
    same_classes: bool
    detected: bool
    kept: bool


def shifted_data(model: nn.Module, dataset: DataSet, shifts: Iterable[Mapping[str, Any]]) -> dict[str, ShiftedData]:
    """Return split → what a network says of it, for every split of the requested shifts."""
    found = {}
    for shift in map(build_split, shifts):
        for name in shift.names:
            split = shift.split(dataset, name)
            values = predict(model, split).float().cpu().numpy()
            told = (shift.same_classes, shift.detected, shift.logits)
            found[name] = ShiftedData(values, split.targets.cpu().numpy(), *told)
    return found


@torch.no_grad()
def predict(model: nn.Module, split: Split, batch_size: int = 1024) -> Tensor:
    """Return the logits `[N, K]` of a whole split, in evaluation mode, on the model's device."""
    model.eval()
    return torch.cat([model(inputs) for inputs, _ in evaluation_batches(split, batch_size)])


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


def epoch_metrics(logits: Tensor, targets: Tensor, bins: int) -> dict[str, float]:
    """Return an epoch's cheap validation metrics from logits `[N, K]`; not-a-number where these are not finite."""
    array, labels = logits.float().cpu().numpy(), targets.cpu().numpy()
    if not math.isfinite(float(array.sum())):
        return {"val_nll": math.nan, "val_accuracy": math.nan, "val_ece": math.nan}
    log_probabilities = log_softmax64(array)
    prediction = log_probabilities.argmax(axis=1)
    rows = np.arange(len(labels))
    correct = (prediction == labels).astype(np.float64)
    return {
        "val_nll": float(-log_probabilities[rows, labels].mean()),
        "val_accuracy": float(correct.mean()),
        "val_ece": calibration_error(np.exp(log_probabilities[rows, prediction]), correct, bins),
    }


def epoch_metrics_of_lanes(logits: Tensor, targets: Tensor, bins: Sequence[int]) -> list[dict[str, float]]:
    """Return `epoch_metrics` of every lane of `logits` [L, N, K], to the bit, for targets [N] and each lane's bins."""
    arrays, labels = logits.float().cpu().numpy(), targets.cpu().numpy()
    with np.errstate(invalid="ignore"):  # a diverged lane's are not looked at
        log_probabilities = log_softmax64(arrays)
    prediction = log_probabilities.argmax(axis=2)
    of_label = np.take_along_axis(log_probabilities, labels[None, :, None], axis=2)[:, :, 0]
    confidence = np.exp(np.take_along_axis(log_probabilities, prediction[:, :, None], axis=2)[:, :, 0])
    correct = (prediction == labels).astype(np.float64)
    return [
        {
            "val_nll": float(-of_label[lane].mean()),
            "val_accuracy": float(correct[lane].mean()),
            "val_ece": calibration_error(confidence[lane], correct[lane], count),
        }
        if math.isfinite(float(arrays[lane].sum()))
        else {"val_nll": math.nan, "val_accuracy": math.nan, "val_ece": math.nan}
        for lane, count in enumerate(bins)
    ]
