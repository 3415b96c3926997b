"""What a network says of whole splits, an epoch's cheap metrics, curves against the epoch, and the way to the host.

Curves are the small part of an evaluation that is made after each epoch, on training and test data: losses, entropies
and norms (mukhoti Figs. 2, 3 and 10, for a linear model Fig. 7), and histograms of gradient norms at chosen epochs
(Fig. 4b to d). Their values are columns of the `epochs` table, `<split>_<metric>`; a sweep that does not ask for them
has no such columns.
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

#: What a checkpoint keeps: tensors, numbers and states of parts by name.
State = Mapping[str, Any]


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


def placed(state: State, device: torch.device) -> State:
    """Return a state with its tensors on `device`; other values as they are."""
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in state.items()}


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's global generators that computing on `device` draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor]) -> None:
    """Continue from what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def shifted_data(
    model: nn.Module, dataset: DataSet, shifts: Iterable[Options]
) -> dict[str, tuple[np.ndarray, np.ndarray, EvaluationSplit]]:
    """Return split → logits [N, K] in float32, classes [N] and what it belongs to, for every split of the shifts."""
    found = {}
    for shift in map(build_split, shifts):
        for name in shift.names:
            split = shift.split(dataset, name)
            found[name] = (predict(model, split).float().cpu().numpy(), split.targets.cpu().numpy(), shift)
    return found


@torch.no_grad()
def predict(model: nn.Module, split: Split, batch_size: int = 1024) -> Tensor:
    """Return the logits `[N, K]` of a whole split, in evaluation mode, on the model's device."""
    model.eval()
    return torch.cat([model(inputs) for inputs, _ in evaluation_batches(split, batch_size)])


#: An evaluation's mean feature norm is taken over the split's first so many samples, one batch.
FEATURE_SAMPLES = 1024

#: Edges of the histogram of gradient norms: ten bins a decade from 1e-6 to 1e3, one below, one above; bins [l, u).
GRADIENT_NORM_EDGES: NDArray[np.float64] = np.concatenate([[0.0], np.logspace(-6, 3, 91), [np.inf]])


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

    def keep(_: nn.Module, arguments: tuple[Tensor, ...], given: dict[str, Tensor]) -> None:
        entered[:] = [next(iter((*arguments, *given.values()))).clone()]  # the network may go on with it in place

    if layer is not None:
        handle = layer.register_forward_pre_hook(keep, with_kwargs=True)
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


#: A network and a split → its logits [N, K] in float32 and norms, as `logits_and_norms` gives them.
Predicting = Callable[[nn.Module, Split], tuple[Tensor, dict[str, float]]]


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
    with torch.enable_grad(), ComposedSoftmax():
        free = logits.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(base(free, targets), free)
    norms: Tensor = len(targets) * gradient.norm(dim=1) * features.norm(dim=1)
    return norms


def gradient_norm_counts(norms: ArrayLike) -> list[int]:
    """Return how many of the norms [N] fall into each bin of GRADIENT_NORM_EDGES; one that is not finite is in none."""
    values = np.asarray(norms, dtype=np.float64)
    counts, _ = np.histogram(values[np.isfinite(values)], GRADIENT_NORM_EDGES)
    return [int(count) for count in counts]


#: What is measured after every epoch.
EVERY_EPOCH = ("val_nll", "val_accuracy", "val_ece")


def epoch_metrics(logits: Tensor, targets: Tensor, bins: int) -> dict[str, float]:
    """Return an epoch's cheap validation metrics from logits `[N, K]`; not-a-number where these are not finite."""
    return epoch_metrics_of_lanes(logits[None], targets, bins)[0]


def epoch_metrics_of_lanes(logits: Tensor, targets: Tensor, bins: int) -> list[dict[str, float]]:
    """Return `epoch_metrics` of every lane of `logits` [L, N, K], for targets [N]."""
    arrays, labels = finite_logits(logits.float().cpu().numpy()), targets.cpu().numpy()
    with np.errstate(invalid="ignore"):  # a diverged lane's are not looked at
        log_probabilities = log_softmax64(arrays)
    prediction = log_probabilities.argmax(axis=2)
    of_label = np.take_along_axis(log_probabilities, labels[None, :, None], axis=2)[:, :, 0]
    confidence = np.exp(np.take_along_axis(log_probabilities, prediction[:, :, None], axis=2)[:, :, 0])
    correct = (prediction == labels).astype(np.float64)
    index = equal_width_bin(confidence, bins) + bins * np.arange(len(arrays))[:, None]
    places, size = index.ravel(), bins * len(arrays)
    sums = sums_by_bin(places, (confidence - correct).ravel(), size).reshape(-1, bins)
    counts = np.bincount(places, minlength=size).reshape(-1, bins)
    columns = (-of_label.mean(axis=1), correct.mean(axis=1), norm_of_gaps(sums, counts, "mean"))
    finite = np.isfinite(arrays.sum(axis=(1, 2)))
    rows = np.where(finite[:, None], np.stack(columns, axis=1), math.nan).tolist()
    return [dict(zip(EVERY_EPOCH, row, strict=True)) for row in rows]


#: The metrics of each split; those `EVERY_EPOCH` are in every epoch row anyway.
TRAJECTORY_METRICS = (
    "nll", "nll_correct", "nll_wrong", "entropy_correct", "entropy_wrong", "accuracy", "ece", "confidence_wrong"
)  # fmt: skip

#: Means over a split of the norm of a sample's logits and of its features before the last linear layer.
TRAJECTORY_NORMS = ("logit_norm", "feature_norm")

WEIGHT_NORM = "last_layer_weight_norm"
#: Of the training split, at the requested epochs; the counts are of the bins of `GRADIENT_NORM_EDGES`.
GRADIENT_MEAN, GRADIENT_COUNTS = "gradient_norm_mean", "gradient_norm_counts"


#: What `trajectory.curvature` measures, see `edge_of_stability`.
SHARPNESS_COLUMNS = {
    "sharpness": float, "sharpness_residual": float, "sharpness_times_lr": float, "sharpness_samples": int
}  # fmt: skip


@dataclass(frozen=True)
class SharpnessSettings:
    """How λ_max of the training loss is measured along training.

    Attributes:
        every: epochs from one measurement to the next.
        samples: how many training samples; `None` takes as many as cost at most a tenth of an epoch.
        products: the most Hessian-vector products.
    """

    every: int = 1
    samples: int | None = None
    products: int = 3


@dataclass(frozen=True)
class TrajectorySettings:
    """What is measured after which epochs.

    Attributes:
        splits: names of the data set's splits.
        every: epochs from one measurement to the next.
        gradient_norms: epochs after which the training samples' gradient norms are counted.
        bins: of the calibration error.
        curvature: how sharpness is measured; `None` for not at all.
    """

    splits: tuple[str, ...] = ("train", "test")
    every: int = 1
    gradient_norms: tuple[int, ...] = ()
    bins: int = 15
    curvature: SharpnessSettings | None = None

    @staticmethod
    def from_mapping(values: Options, bins: int = 15) -> TrajectorySettings:
        """Read the settings of a checked search space."""
        splits, epochs = values.get("splits", ("train", "test")), values.get("gradient_norms", ())
        sharpness = values.get("curvature")
        curvature = None if sharpness is None else SharpnessSettings(**sharpness)
        return TrajectorySettings(tuple(splits), values.get("every", 1), tuple(epochs), bins, curvature)


def trajectory_columns(values: Options) -> dict[str, type]:
    """Return the columns that the settings `values` add to the `epochs` table, with the type of their values."""
    settings = TrajectorySettings.from_mapping(values)
    measured = [f"{split}_{name}" for split in settings.splits for name in (*TRAJECTORY_METRICS, *TRAJECTORY_NORMS)]
    columns: dict[str, type] = dict.fromkeys([*(n for n in measured if n not in EVERY_EPOCH), WEIGHT_NORM], float)
    columns |= SHARPNESS_COLUMNS if settings.curvature is not None else {}
    return {**columns, GRADIENT_MEAN: float, GRADIENT_COUNTS: list} if settings.gradient_norms else columns


def trajectory_row(
    model: nn.Module, loss: Loss, dataset: DataSet, settings: TrajectorySettings, epoch: int
) -> EpochRow:
    """Return what the settings ask for after `epoch` completed epochs; `{}` where it is not their turn.

    The network's parameters, buffers and mode are left as they were found. A split on which the network's outputs
    are not finite gives no values, a network without a linear layer no norms of features, weights and gradients.
    """
    gradients = epoch in settings.gradient_norms
    if epoch % settings.every and not gradients:
        return {}
    was_training, layer = model.training, last_linear(model)
    row: EpochRow = {}
    for name in settings.splits if epoch % settings.every == 0 else ():
        found = _measured(model, layer, dataset.splits[name], settings.bins)
        row |= {f"{name}_{key}": value for key, value in found.items()}
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
    found = evaluate_probabilities(softmax64(scores), targets, min(bins, len(targets)), logits=scores)
    row = {name: found[name] for name in TRAJECTORY_METRICS}
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
