"""Predictions on whole splits, cheap metrics per epoch, curves against the epoch, and transfers to the host.

Curves are small measurements after each epoch, on training and test data: losses, entropies and norms (mukhoti Figs. 2,
3 and 10, for a linear model Fig. 7), and histograms of gradient norms at chosen epochs (Fig. 4b to d). They are columns
`<split>_<metric>` of the `epochs` table, which a sweep has only if it requests them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from trainables.curvature.loss_of_logits import ComposedSoftmax
from trainables.datasets.base import DataSet, Split, evaluation_batches
from trainables.datasets.splits.base import EvaluationSplit, build_split
from trainables.losses import Loss
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.base import finite_logits, log_softmax64
from trainables.metrics.binning import equal_width_bin, norm_of_gaps, sums_by_bin
from trainables.registry import Options

#: A row of the `epochs` table: column → value.
EpochRow = dict[str, Any]

#: Content of a checkpoint: tensors, numbers and states of parts by name.
State = Mapping[str, Any]


def on_host(*tensors: Tensor) -> list[Tensor]:
    """Return tensors on the host, with a single transfer from a GPU."""
    # Every transfer waits for the GPU to finish, so all tensors travel as one.
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [*tensors]
    return parted(joined(tensors).cpu(), tensors)


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate the bytes of tensors with any dtype and shape to one uint8 vector."""
    return torch.cat([tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in tensors])


def parted(data: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split the bytes from `joined` into tensors with the dtypes and shapes of `like`.

    Example:
        >>> tensors = [torch.tensor([1.5]), torch.tensor([[2, 3]])]
        >>> parted(joined(tensors), like=tensors)
        [tensor([1.5000]), tensor([[2, 3]])]
    """
    parts = data.split([tensor.nbytes for tensor in like])
    # Copies are aligned for their dtype; a slice of the bytes may start anywhere, and `view` refuses that.
    return [part.clone().view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def placed(state: State, device: torch.device) -> State:
    """Return `state` with its tensors on `device` and other values unchanged."""
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in state.items()}


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's global generators that are used on `device`."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor]) -> None:
    """Restore a result of `random_state`."""
    torch.set_rng_state(state["cpu"])
    # A trial may continue on a machine without a GPU.
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def shifted_data(
    model: nn.Module, dataset: DataSet, shifts: Iterable[Options]
) -> dict[str, tuple[np.ndarray, np.ndarray, EvaluationSplit]]:
    """Return split → float32 logits [N, K], classes [N] and its shift, for every split of the shifts."""
    predictions = {}
    for shift in map(build_split, shifts):
        for name in shift.names:
            split = shift.split(dataset, name)
            predictions[name] = (predict(model, split).float().cpu().numpy(), split.targets.cpu().numpy(), shift)
    return predictions


@torch.no_grad()
def predict(model: nn.Module, split: Split, batch_size: int = 1024) -> Tensor:
    """Return logits [N, K] for a whole split, in evaluation mode, on the model's device.

    Example:
        >>> split = Split(torch.eye(2), torch.tensor([0, 1]))
        >>> predict(nn.Identity(), split)
        tensor([[1., 0.],
                [0., 1.]])
    """
    model.eval()
    return torch.cat([model(inputs) for inputs, _ in evaluation_batches(split, batch_size)])


#: Number of samples for an evaluation's mean feature norm: one batch, the first of the split.
FEATURE_SAMPLES = 1024

#: Bin edges for gradient norms: ten bins [l, u) per decade from 1e-6 to 1e3, one below and one above.
GRADIENT_NORM_EDGES: NDArray[np.float64] = np.concatenate([[0.0], np.logspace(-6, 3, 91), [np.inf]])


def last_linear(model: nn.Module) -> nn.Linear | None:
    """Return the network's last linear layer, or `None` if it has none."""
    layers: Sequence[nn.Linear] = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return layers[-1] if layers else None


@torch.no_grad()
def features_and_logits(
    model: nn.Module, layer: nn.Linear | None, split: Split, batch_size: int = 1024
) -> Iterator[tuple[Tensor | None, Tensor, Tensor]]:
    """Yield the features [B, D] that enter a linear layer, logits [B, K] and targets [B] for a split's batches.

    The network is in evaluation mode, without augmentation. Without a layer, features are `None`.
    """
    model.eval()
    entered: list[Tensor] = []
    handle = None

    def keep(_: nn.Module, arguments: tuple[Tensor, ...], given: dict[str, Tensor]) -> None:
        entered[:] = [next(iter((*arguments, *given.values()))).clone()]  # the network can change it in place

    if layer is not None:
        handle = layer.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        for inputs, targets in evaluation_batches(split, batch_size):
            logits = model(inputs)
            # A Tree-LSTM calls the layer once per node of a tree; the last call computes the logits.
            features = entered[-1].flatten(1) if entered else None
            entered.clear()
            yield features, logits, targets
    finally:
        if handle is not None:
            handle.remove()


#: Function from a network and a split to float32 logits [N, K] and norms, such as `logits_and_norms`.
Predicting = Callable[[nn.Module, Split], tuple[Tensor, dict[str, Tensor]]]


def logits_and_norms(model: nn.Module, split: Split) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a split's float32 logits [N, K] and, from the same pass, `last_layer_weight_norm` and `feature_norm`.

    The feature norm is the mean over the first `FEATURE_SAMPLES`. A network without a linear layer has no norms.
    """
    layer = last_linear(model)
    parts, norm = [], None
    for features, logits, _ in features_and_logits(model, layer, split, FEATURE_SAMPLES):
        parts.append(logits)
        if features is not None and norm is None:
            norm = features.norm(dim=1).mean()
    norms = {} if layer is None else {"last_layer_weight_norm": layer.weight.detach().norm()}
    return torch.cat(parts).float(), norms if norm is None else {**norms, "feature_norm": norm}


def last_layer_gradient_norms(features: Tensor, logits: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """Return the norm [B] of each sample's loss gradient by the last layer's weights.

    Args:
        features: features [B, D] that enter the last layer.
        logits: logits [B, K].
        targets: class indices [B].
        loss: training loss; a regulariser around a loss is left out.
    """
    # A sample's weight gradient is the outer product of ∂ℓ/∂z and its features, so its norm is the product of their
    # norms. ∂ℓ/∂z is B times the mean loss's derivative, also for a loss that couples the samples of a batch.
    base = getattr(loss, "base", loss)
    with torch.enable_grad(), ComposedSoftmax():
        free = logits.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(base(free, targets), free)
    norms: Tensor = len(targets) * gradient.norm(dim=1) * features.norm(dim=1)
    return norms


def gradient_norm_counts(norms: ArrayLike) -> list[int]:
    """Count the finite norms [N] per bin of GRADIENT_NORM_EDGES."""
    values = np.asarray(norms, dtype=np.float64)
    counts, _ = np.histogram(values[np.isfinite(values)], GRADIENT_NORM_EDGES)
    return [int(count) for count in counts]


#: Columns measured after every epoch.
EVERY_EPOCH = ("val_nll", "val_accuracy", "val_ece")


def epoch_metrics(logits: Tensor, targets: Tensor, bins: int) -> dict[str, float]:
    """Return an epoch's cheap validation metrics for logits [N, K]; NaN if any logit is not finite.

    Example:
        >>> epoch_metrics(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]), bins=15)["val_accuracy"]
        0.5
    """
    return epoch_metrics_of_lanes(logits[None], targets, bins)[0]


def epoch_metrics_of_lanes(logits: Tensor, targets: Tensor, bins: int) -> list[dict[str, float]]:
    """Return `epoch_metrics` for every lane of `logits` [L, N, K], with targets [N]."""
    arrays, labels = finite_logits(logits.float().cpu().numpy()), targets.cpu().numpy()
    with np.errstate(invalid="ignore"):  # rows of diverged lanes are replaced by NaN below
        log_probabilities = log_softmax64(arrays)
    prediction = log_probabilities.argmax(axis=2)
    of_label = np.take_along_axis(log_probabilities, labels[None, :, None], axis=2)[:, :, 0]
    confidence = np.exp(np.take_along_axis(log_probabilities, prediction[:, :, None], axis=2)[:, :, 0])
    correct = (prediction == labels).astype(np.float64)
    index = equal_width_bin(confidence, bins)
    sums, counts = (sums_by_bin(index, values, bins) for values in (confidence - correct, np.ones_like(confidence)))
    columns = (-of_label.mean(axis=1), correct.mean(axis=1), norm_of_gaps(sums, counts, "mean"))
    finite = np.isfinite(arrays.sum(axis=(1, 2)))
    rows = np.where(finite[:, None], np.stack(columns, axis=1), math.nan).tolist()
    return [dict(zip(EVERY_EPOCH, row, strict=True)) for row in rows]


#: Metrics per split; those in `EVERY_EPOCH` are part of every epoch row.
TRAJECTORY_METRICS = (
    "nll", "nll_correct", "nll_wrong", "entropy_correct", "entropy_wrong", "accuracy", "ece", "confidence_wrong"
)  # fmt: skip

#: Mean norms over a split of the samples' logits and of their features before the last linear layer.
TRAJECTORY_NORMS = ("logit_norm", "feature_norm")

WEIGHT_NORM = "last_layer_weight_norm"
#: Columns for the training split at the requested epochs; counts are per bin of `GRADIENT_NORM_EDGES`.
GRADIENT_MEAN, GRADIENT_COUNTS = "gradient_norm_mean", "gradient_norm_counts"


@dataclass(frozen=True)
class TrajectorySettings:
    """Settings for curves against the epoch.

    Attributes:
        splits: names of the data set's splits.
        every: epochs between measurements.
        gradient_norms: epochs after which the training samples' gradient norms are counted.
        bins: number of bins for the calibration error.
    """

    splits: tuple[str, ...] = ("train", "test")
    every: int = 1
    gradient_norms: tuple[int, ...] = ()
    bins: int = 15

    @staticmethod
    def from_mapping(values: Options, bins: int = 15) -> TrajectorySettings:
        """Return settings from a checked search space."""
        splits, epochs = values.get("splits", ("train", "test")), values.get("gradient_norms", ())
        return TrajectorySettings(tuple(splits), values.get("every", 1), tuple(epochs), bins)


def trajectory_columns(values: Options) -> dict[str, type]:
    """Return column → type for the columns that settings `values` add to the `epochs` table.

    Example:
        >>> "test_nll" in trajectory_columns({"splits": ["test"]})
        True
    """
    settings = TrajectorySettings.from_mapping(values)
    measured = [f"{split}_{name}" for split in settings.splits for name in (*TRAJECTORY_METRICS, *TRAJECTORY_NORMS)]
    columns: dict[str, type] = dict.fromkeys([*(n for n in measured if n not in EVERY_EPOCH), WEIGHT_NORM], float)
    return {**columns, GRADIENT_MEAN: float, GRADIENT_COUNTS: list} if settings.gradient_norms else columns


def trajectory_row(
    model: nn.Module, loss: Loss, dataset: DataSet, settings: TrajectorySettings, epoch: int
) -> EpochRow:
    """Return the requested measurements after `epoch` completed epochs; `{}` if none is due.

    The network's parameters, buffers and mode stay unchanged. A split has no values if an output is not finite. A
    network without a linear layer has no norms of features, weights and gradients.
    """
    gradients = epoch in settings.gradient_norms
    if epoch % settings.every and not gradients:
        return {}
    was_training, layer = model.training, last_linear(model)
    row: EpochRow = {}
    for name in settings.splits if epoch % settings.every == 0 else ():
        measured = _measured(model, layer, dataset.splits[name], settings.bins)
        row |= {f"{name}_{key}": value for key, value in measured.items()}
    if row and layer is not None:
        row[WEIGHT_NORM] = float(layer.weight.detach().norm())
    if gradients and layer is not None:
        row |= _gradient_columns(model, layer, loss, dataset.train)
    model.train(was_training)
    return {key: value for key, value in row.items() if key not in EVERY_EPOCH}


def _measured(model: nn.Module, layer: nn.Linear | None, split: Split, bins: int) -> dict[str, float]:
    logits, norms = [], []
    for features, own, _ in features_and_logits(model, layer, split):
        logits.append(own.float())
        norms += [features.norm(dim=1)] if features is not None else []
    outputs, classes, *feature_norms = on_host(torch.cat(logits), split.targets, *([torch.cat(norms)] if norms else []))
    targets = classes.numpy()
    if not torch.isfinite(outputs).all():
        return {}
    scores = outputs.numpy()
    # A split with fewer samples than bins still gets a calibration error.
    metrics = evaluate_probabilities(softmax64(scores), targets, min(bins, len(targets)), logits=scores)
    row = {name: metrics[name] for name in TRAJECTORY_METRICS}
    row["logit_norm"] = float(outputs.norm(dim=1).mean())
    return {**row, "feature_norm": float(feature_norms[0].mean())} if feature_norms else row


def _gradient_columns(model: nn.Module, layer: nn.Linear, loss: Loss, split: Split) -> EpochRow:
    parts = [
        last_layer_gradient_norms(features, logits.float(), targets, loss).cpu().numpy()
        for features, logits, targets in features_and_logits(model, layer, split)
        if features is not None
    ]
    norms = np.concatenate(parts)
    return {GRADIENT_MEAN: float(norms.mean()), GRADIENT_COUNTS: gradient_norm_counts(norms)}
