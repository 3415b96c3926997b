"""Try the user's own components and training loop on a few samples before a sweep starts.

These checks cover properties that a signature does not show: shapes, types, finite values, a gradient that reaches the
network, and a state that survives a checkpoint. Each fault begins with the component's name. An exception in the user's
code is reported with its file and line.

A loop is trained for an epoch on one configuration, saved as a checkpoint and loaded into a second loop. Then both are
trained for another epoch. If the two loops differ afterwards, a resumed trial would differ from an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.columns import evaluation_columns
from sweeper.core.domains.values import join_path
from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.core.schemas import EPOCHS_SCHEMA, EVALUATION_KEYS
from sweeper.space.components import WORD
from sweeper.space.configurations import examples
from sweeper.space.spec import SweepSpec
from trainables.datasets.base import DataSet, Split
from trainables.extensions.targets import describe_error
from trainables.losses import LOSSES, Loss
from trainables.metrics import RECALIBRATED
from trainables.metrics.base import METRICS, are_probabilities, softmax64
from trainables.models import ARCHITECTURES, build_for
from trainables.posthoc import POSTHOC, PosthocUnavailable, fit
from trainables.registry import FITTED_ON, LABEL, OWN
from trainables.registry.hyperparameters import hyperparameter_values
from trainables.training.evaluation import FITTED_ON as MEASURED_SPLIT
from trainables.training.own_loop import STANDARD, LoopError, LoopReplicate

#: Number of configurations tried per own component: enough to reach its branches. Ranges were checked with the space.
TRIED = 8

#: Number of samples of random predictions: enough for typical values, and few enough to check in milliseconds.
SAMPLES = 64

Values = Mapping[str, Any]

#: Raises `_Fault` if a component with these values does not suit the data set.
Check = Callable[[Values, DataSet], None]


class _Fault(Exception):  # noqa: N818 - converted to a sweeper.core.errors.Fault
    """A rule that a user's own component breaks."""


def own_faults(spec: SweepSpec, drawn: Sequence[Values], dataset: DataSet) -> list[Fault]:
    """Return the first fault of each of a search space's own components.

    Args:
        spec: the checked search space.
        drawn: configurations of the space.
        dataset: data set of the sweep, on the CPU.
    """
    checks = [
        ("space.loss", LOSSES, [values["loss"] for values in drawn], _check_loss),
        ("space.architecture", ARCHITECTURES, [values["architecture"] for values in drawn], _check_architecture),
    ]
    checks += [
        (join_path(f"evaluation.{part}", index), registry, [entry], check)
        for part, registry, check in (("metrics", METRICS, _check_metric), ("posthoc", POSTHOC, _check_posthoc))
        for index, entry in enumerate(getattr(spec.evaluation, part))
    ]
    faults: list[Fault] = []
    for place, registry, entries, check in checks:
        for name in dict.fromkeys(entry["name"] for entry in entries if registry.is_own(entry["name"])):
            faults += _faults(place, name, [entry for entry in entries if entry["name"] == name], check, dataset)
    return faults


def _faults(place: str, name: str, entries: Sequence[Values], check: Check, dataset: DataSet) -> Iterator[Fault]:
    for values in entries[:TRIED]:
        given = ", ".join(f"{key} = {value!r}" for key, value in values.items() if key != "name")
        subject = f"{name} with {given}" if given else name
        try:
            # The user's code may draw random numbers. This must not change the sweep's own random numbers.
            with torch.random.fork_rng(devices=[]):
                check(values, dataset)
        except Exception as error:
            rule = error if isinstance(error, _Fault) else describe_error(error, name)
            yield Fault(place, f"{subject}: {rule}")
            return


def _split(values: Values) -> tuple[str, dict[str, object]]:
    """Return a component's name and options, without the keys that the evaluation adds to a post-hoc method."""
    options = {key: value for key, value in values.items() if key not in (LABEL, FITTED_ON)}
    return str(options.pop("name")), options


def _check_loss(values: Values, dataset: DataSet) -> None:
    name, options = _split(values)
    loss = LOSSES.build(name, **options)
    if not isinstance(loss, Loss):
        raise _Fault(f"it builds a {type(loss).__name__}, which must be a trainables.losses.Loss")
    generator = torch.Generator().manual_seed(0)
    # A spread of 2 gives confident and unsure predictions without saturating a softmax in float32.
    logits = (2 * torch.randn(SAMPLES, dataset.classes, generator=generator)).requires_grad_()
    targets = torch.randint(dataset.classes, (SAMPLES,), generator=generator)
    loss.begin_epoch(0, 2)  # some losses change their hyperparameters by epoch, and fail before the first
    if loss.needs_model:
        network = nn.Linear(4, dataset.classes)
        value = loss(network, torch.randn(SAMPLES, 4, generator=generator), targets)  # type: ignore[arg-type]
        _check_value(value, list(network.parameters()))
    else:
        _check_value(loss(logits, targets), [logits])
    loss.end_epoch(logits.detach(), targets)
    if not (loss.batch_coupled or loss.needs_model):
        _check_independent(loss, logits.detach(), targets)
    _check_state(loss, lambda: LOSSES.build(name, **options))


def _check_value(value: object, leaves: Sequence[Tensor]) -> None:
    if not isinstance(value, Tensor) or value.shape != () or not value.is_floating_point():
        shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise _Fault(f"it returns {shown} for {SAMPLES} samples; it must return one number, or one per sample")
    if not torch.isfinite(value):
        raise _Fault(f"its value is {float(value)} for typical logits")
    if not value.requires_grad:
        raise _Fault("its value does not depend on the logits through operations that torch can differentiate")
    # A loss that wraps a model may leave some parameters without a gradient. It is a fault only if all have none.
    gradients = torch.autograd.grad(value, leaves, allow_unused=True)
    if all(gradient is None or not gradient.any() for gradient in gradients):
        raise _Fault("its gradient is zero everywhere: nothing would be trained")
    if not all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients):
        raise _Fault("its gradient is not finite for typical logits")


def _check_independent(loss: Loss, logits: Tensor, targets: Tensor) -> None:
    """Check a loss that declares itself to be a mean of independent values."""
    # Lanes, last batches and curvature on subsets rely on the declaration. If it were wrong, training would silently be
    # wrong.
    whole, part = loss.per_sample(logits, targets), loss.per_sample(logits[:8], targets[:8])
    if whole.shape != targets.shape:
        raise _Fault(f"its per_sample gives shape {tuple(whole.shape)} for {len(targets)} samples")
    # Float32 sums in another order differ by about 1e-6; dependence on the batch shows in the first digits.
    if not torch.allclose(whole[:8], part, rtol=1e-4, atol=1e-6):
        raise _Fault("a sample's value depends on the others in its batch: set batch_coupled = True")
    if not torch.isclose(whole.mean(), loss(logits, targets), rtol=1e-4):
        raise _Fault("its value is not the mean of its per-sample values: set batch_coupled = True")


def read_back(state: object) -> Any:
    """Return a state after saving and loading it as a checkpoint.

    Raises:
        Exception: torch cannot save or load the state.
    """
    held = io.BytesIO()
    torch.save(state, held)
    held.seek(0)
    # Checkpoints are loaded with `weights_only`. Without it here, a pickled object of the user would fail only on
    # resume.
    return torch.load(held, map_location="cpu", weights_only=True)


def _check_state(loss: Loss, build: Callable[[], Loss]) -> None:
    state = loss.state_dict()
    if state and not loss.stateful:
        raise _Fault(f"it keeps the state {', '.join(state)}: set stateful = True")
    try:
        read = read_back(state)
    except Exception as error:
        words = str(error).partition("\n")[0]
        raise _Fault(f"its state_dict cannot be read from a checkpoint; keep tensors and numbers ({words})") from error
    other = build()
    other.load_state_dict(read)
    if (changed := difference(state, other.state_dict())) is not None:
        raise _Fault(f"its state {changed} changes after load_state_dict")


def _check_architecture(values: Values, dataset: DataSet) -> None:
    model = build_for(dataset, values)
    if not isinstance(model, nn.Module):
        raise _Fault(f"it builds a {type(model).__name__}, which must be a torch.nn.Module")
    inputs = dataset.train.prepare(dataset.train.inputs[:2])
    logits = model.train()(inputs)  # training mode: batch-norm refuses inputs that evaluation accepts
    if not isinstance(logits, Tensor) or tuple(logits.shape) != (2, dataset.classes):
        shown = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        classes = dataset.classes
        raise _Fault(f"it gives {shown} for 2 samples of {classes} classes, which must be (2, {classes})")
    if not logits.is_floating_point() or not torch.isfinite(logits).all():
        raise _Fault(f"its logits are not finite floating-point numbers ({logits.dtype})")
    if are_probabilities(logits.detach()):
        raise _Fault(
            "its outputs are probabilities, each row sums to 1: remove its softmax, because losses take logits"
        )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained or not logits.requires_grad:
        raise _Fault("it has no parameters that its logits depend on: nothing would be trained")


def _check_metric(values: Values, dataset: DataSet) -> None:
    name, options = _split(values)
    logits, targets = _predictions(dataset.classes)
    try:
        value = METRICS.build(name, softmax64(logits), targets, **options)
    except ValueError as error:
        raise _Fault(str(error)) from error
    if not math.isfinite(value):
        raise _Fault(f"it gives {value} for {SAMPLES} typical predictions")


def _check_posthoc(values: Values, dataset: DataSet) -> None:
    name, options = _split(values)
    columns = POSTHOC[name].columns
    for column in columns:
        if not WORD.fullmatch(column) or column in (*RECALIBRATED, "unavailable"):
            raise _Fault(f"its PARAMETERS name {column!r}, which cannot be a column: choose another name")
    logits, targets = _predictions(dataset.classes)
    try:
        fit(name, logits, targets, **hyperparameter_values(options))(logits)
    except PosthocUnavailable as error:
        raise _Fault(str(error)) from error


def _predictions(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logits [N, K] and targets [N] of a network that is right most of the time."""
    # Every class occurs, because class-wise methods cannot be fitted otherwise.
    random = np.random.default_rng(0)
    targets = np.arange(max(SAMPLES, classes)) % classes
    logits = random.normal(size=(len(targets), classes))
    logits[np.arange(len(targets)), targets] += 2.0
    return logits, targets.astype(np.int64)


#: Key of the manifest's entry on a user's training loop.
MANIFEST_KEY = "loop"

#: Relative tolerance for two runs on a GPU, where sums have no fixed order. On CPUs, two runs are equal bit for bit.
ON_A_GPU = 1e-2


@dataclass(frozen=True)
class LoopData(DataSet):
    """The data for which a loop returns predictions, used instead of a data set.

    Attributes:
        columns: further columns that the loop measures in each epoch.
        measures: columns that the loop itself measures in an evaluation.
        epoch_seconds: measured time of an epoch.
        evaluation_seconds: measured time of an evaluation.
    """

    columns: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    epoch_seconds: float = 0.0
    evaluation_seconds: float = 0.0


def loop_entry(dataset: DataSet) -> dict[str, object]:
    """Return the manifest's entry on a user's training loop, empty if there is none."""
    if not isinstance(dataset, LoopData):
        return {}
    return {MANIFEST_KEY: {"columns": list(dataset.columns), "measures": list(dataset.measures)}}


def loop_columns(manifest: Values) -> list[str] | None:
    """Return the further columns that a user's training loop measures in each epoch, `None` if unknown."""
    columns: list[str] | None = (manifest.get(MANIFEST_KEY) or {}).get("columns")
    return columns


def measured_columns(manifest: Values) -> list[str]:
    """Return the columns of `evaluations` that a user's training loop measures itself."""
    return list((manifest.get(MANIFEST_KEY) or {}).get("measures", ()))


def data_stand_in(manifest: Values) -> DataSet:
    """Return a stand-in for the data of a loop that was tried when its sweep began, with its classes and sizes."""
    facts = manifest["dataset"]
    return _in_place_of(facts["samples"], facts["classes"], facts["split_hash"])


def _in_place_of(sizes: Mapping[str, int], classes: int, split_hash: str) -> DataSet:
    # The service uses classes and sizes only; the loop itself reads its data.
    splits = {name: Split(torch.zeros(size, 1), torch.zeros(size, dtype=torch.int64)) for name, size in sizes.items()}
    train, val, test = (splits.pop(name) for name in ("train", "val", "test"))
    return DataSet(OWN, train, val, test, classes, (1,), split_hash, further=splits)


def try_loop(spec: SweepSpec, data: DataSet) -> LoopData:
    """Try the loop of `spec` on its first configuration.

    Args:
        spec: a search space with a loop.
        data: its data set, which the loop can request.

    Returns:
        The data for which the loop returns predictions; if it has no `predict`, a stand-in with the sizes of `data`.

    Raises:
        InvalidSearchSpace: the loop has a fault.
    """
    assert spec.loop is not None
    device = "cuda" if spec.resources.gpu != 0 and torch.cuda.is_available() else "cpu"
    values, held = examples(spec)[0], data.to(device)
    settings = spec.evaluation.settings

    def built() -> LoopReplicate:
        epochs, seed = max(2, spec.scheduler.max_epochs), spec.replicate_seeds.of(0)[0]  # the check trains two epochs
        return LoopReplicate(
            str(spec.loop), values, seed=seed, dataset=held, max_epochs=epochs, device=device, evaluation=settings
        )

    try:
        with _silenced(), torch_threads(max(1, int(spec.resources.cpu))):
            first = built()
            measures, row = _measures(first, spec), first.train_epoch()
            columns, started = _columns(row), time.perf_counter()
            sizes = {name: len(split) for name, split in data.splits.items()}
            known = (data.classes, data.split_hash)
            predicted = first.predictions(settings) if first.predicts else _in_place_of(sizes, *known)
            first.evaluate(settings, "rung")
            evaluating = time.perf_counter() - started
            second = built()
            fault = state_fault(first, second, 0.0 if device == "cpu" else ON_A_GPU)
            for loop in (first, second):
                loop.close()
    except LoopError as error:
        raise InvalidSearchSpace([Fault("loop", str(error))]) from error
    if fault is not None:
        raise InvalidSearchSpace([Fault("loop", f"{spec.loop}: {fault}")])
    named = {field: getattr(predicted, field) for field in DataSet.__dataclass_fields__}
    seconds = {"epoch_seconds": row["seconds"], "evaluation_seconds": evaluating}
    return LoopData(**named, columns=columns, measures=measures, **seconds)


def _measures(loop: LoopReplicate, spec: SweepSpec) -> tuple[str, ...]:
    """Return the columns that a loop measures itself.

    Raises:
        LoopError: a name is taken, or cannot be a column.
    """
    own = tuple(getattr(loop.loop, "measures", ()))
    taken = {*EVALUATION_KEYS}
    if loop.predicts:  # the service fills the standard columns, but a loop without `predict` can use their names
        metrics = [metric["name"] for metric in spec.evaluation.metrics]
        taken |= {*evaluation_columns(spec.evaluation.posthoc, metrics, spec.cross_fitted)}
    if bad := [key for key in own if not WORD.fullmatch(key) or key in taken]:
        why = "is computed from its predictions" if bad[0] in taken else "cannot be a column"
        raise LoopError(f"measures names {bad[0]!r}, which {why}; use another name of lower-case letters, digits and _")
    return own


def _columns(row: Mapping[str, object]) -> tuple[str, ...]:
    """Return the further columns of a loop's epochs.

    Raises:
        LoopError: a name cannot be a column.
    """
    own = [key for key in row if key not in (*STANDARD, *_MEASURED)]
    bad = [key for key in own if not WORD.fullmatch(key) or key in EPOCHS_SCHEMA.names]
    if bad:
        rule = f"train_epoch returns {bad[0]!r}, which cannot be a column"
        raise LoopError(f"{rule}; use lower-case letters, digits and _")
    return tuple(own)


#: Columns of an epoch that the service measures for every loop.
_MEASURED = ("epoch", "val_nll", "val_accuracy", "val_ece", "seconds")


def state_fault(first: LoopReplicate, second: LoopReplicate, tolerance: float = 0.0) -> str | None:
    """Return the part of a loop that is not restored from its state, or `None`.

    Args:
        first: a loop that has trained for at least one epoch; it is trained for one more.
        second: an equal loop that has not been trained.
        tolerance: largest relative difference of values.
    """
    saved = first.state_dict()
    # The state passes through the file format, because a state that shares tensors with the loop would change with it.
    try:
        read = read_back(dict(saved))
    except Exception as error:
        words = " ".join(str(error).split())[:160]
        return f"its state_dict cannot be read from a checkpoint; keep tensors, numbers and texts in it ({words})"
    second.load_state_dict(read)
    lost = difference(saved["loop"], second.state_dict()["loop"], tolerance)
    if lost is not None:
        return f"{lost} of its state has changed after load_state_dict"
    # If predictions or the next epoch differ, the attributes that differ show the cause.
    parts = [name for name, part in vars(first.loop).items() if not _same(part, getattr(second.loop, name, None))]
    if first.predicts and not _close(
        first.predicted(MEASURED_SPLIT)[0], second.predicted(MEASURED_SPLIT)[0], tolerance
    ):
        return f"after load_state_dict its predictions differ{_named(parts)}"
    rows = [loop.train_epoch() for loop in (first, second)]
    states = [loop.state_dict()["loop"] for loop in (first, second)]
    measured = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]  # times always differ
    place = difference(states[0], states[1], tolerance) or difference(measured[0], measured[1], tolerance)
    if place is None:
        return None
    return f"resumed from its state it trains differently: after another epoch {place} differs{_named(parts)}"


def _named(parts: list[str]) -> str:
    if parts:
        return f"; load_state_dict does not restore {', '.join(f'self.{part}' for part in parts)}"
    return "; state_dict lacks something that affects training, such as an optimiser, a schedule or a generator"


def _same(left: object, right: object) -> bool:
    """Return whether two attributes are equal, as far as they can be compared; others count as equal."""
    # `state_dict` of modules, optimisers and schedules; `get_state` of torch's generators.
    for method in ("state_dict", "get_state"):
        if hasattr(left, method) and hasattr(right, method):
            with contextlib.suppress(Exception):
                return difference(getattr(left, method)(), getattr(right, method)()) is None
    if isinstance(left, Tensor | int | float | str):
        return difference(left, right) is None
    return True


def difference(left: object, right: object, tolerance: float = 0.0, place: str = "") -> str | None:
    """Return the path of the first part in which two states differ, or `None`.

    Example:
        >>> difference({"net": [torch.zeros(2), 1]}, {"net": [torch.zeros(2), 2]})
        "'net.1'"
    """
    keys: Iterable[object]
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        if set(left) != set(right):
            return repr(f"{place}{sorted(map(str, set(left) ^ set(right)))[0]}")
        keys = left
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        keys = range(len(left))
    else:
        return None if _close(left, right, tolerance) else repr(place.removesuffix("."))
    places = (difference(left[key], right[key], tolerance, f"{place}{key}.") for key in keys)
    return next(filter(None, places), None)


def _close(left: object, right: object, tolerance: float) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        left, right = left.detach().cpu(), right.detach().cpu()
        if not left.is_floating_point():  # counters and generators' states must be exact even on a GPU
            return torch.equal(left, right)
        return torch.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    if isinstance(left, float) and isinstance(right, float):
        # A loss that diverged to NaN in both loops also counts as restored.
        both = math.isnan(left) and math.isnan(right)
        return both or left == right or abs(left - right) <= tolerance * abs(left)
    return type(left) is type(right) and bool(left == right)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads within the context.

    Example:
        >>> with torch_threads(1):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Discard the user's prints and warnings: during a sweep they go into the log, not to the terminal."""
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(action="ignore"),
    ):
        yield
