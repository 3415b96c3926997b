"""Trying out the user's own components and training loop on a few samples, before a sweep starts.

What a signature cannot tell is looked at here: shapes, types, finite values, whether the gradient reaches the network,
whether a state survives a checkpoint. Each fault begins with the name it concerns; an exception of the user's code is
told with its file and line.

A loop is trained for an epoch on one configuration, saved as a checkpoint, loaded into a second loop, and both are
trained for another epoch. Where the two then differ, a trial that is resumed would not be the trial that it was.
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

from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.core.json_types import join_path
from sweeper.core.schemas import EPOCHS_SCHEMA, EVALUATION_KEYS, evaluation_columns
from sweeper.space.components import WORD
from sweeper.space.configurations import examples
from sweeper.space.spec import SweepSpec
from trainables.datasets.base import DataSet, Split
from trainables.extensions.targets import describe_error
from trainables.losses import LOSSES, Loss
from trainables.metrics import RECALIBRATED
from trainables.metrics.base import METRICS, are_probabilities, softmax64
from trainables.models import ARCHITECTURES, build_for
from trainables.posthoc import POSTHOC, PosthocUnavailable
from trainables.registry import FITTED_ON, LABEL, OWN
from trainables.training.evaluation import FITTED_ON as MEASURED_SPLIT
from trainables.training.own_loop import STANDARD, LoopError, LoopReplicate

#: Configurations of each own name that are tried; their hyperparameters' ranges are the search space's business.
LOOKED_AT = 8

SAMPLES = 64

Values = Mapping[str, Any]

#: Raises `_Fault` where a component with these values does not suit the data set.
Check = Callable[[Values, DataSet], None]


class _Fault(Exception):  # noqa: N818 - a finding on its way to become a sweeper.core.errors.Fault
    """A rule that a user's own component breaks."""


def own_faults(spec: SweepSpec, drawn: Sequence[Values], dataset: DataSet) -> list[Fault]:
    """Return what is wrong with a search space's own components; each name's first fault.

    Args:
        spec: the search space.
        drawn: configurations of it.
        dataset: the sweep's, on the CPU.
    """
    looked_at = [
        ("space.loss", LOSSES, [each["loss"] for each in drawn], _check_loss),
        ("space.architecture", ARCHITECTURES, [each["architecture"] for each in drawn], _check_architecture),
    ]
    looked_at += [
        (join_path(f"evaluation.{part}", index), registry, [entry], check)
        for part, registry, check in (("metrics", METRICS, _check_metric), ("posthoc", POSTHOC, _check_posthoc))
        for index, entry in enumerate(getattr(spec.evaluation, part))
    ]
    faults: list[Fault] = []
    for place, registry, entries, check in looked_at:
        for name in dict.fromkeys(entry["name"] for entry in entries if registry.is_own(entry["name"])):
            faults += _faults(place, name, [entry for entry in entries if entry["name"] == name], check, dataset)
    return faults


def _faults(place: str, name: str, entries: Sequence[Values], check: Check, dataset: DataSet) -> Iterator[Fault]:
    for values in entries[:LOOKED_AT]:
        given = ", ".join(f"{key} = {value!r}" for key, value in values.items() if key != "name")
        subject = f"{name} with {given}" if given else name
        try:
            with torch.random.fork_rng(devices=[]):
                check(values, dataset)
        except Exception as error:
            rule = error if isinstance(error, _Fault) else describe_error(error, name)
            yield Fault(place, f"{subject}: {rule}")
            return


def _split(values: Values) -> tuple[str, dict[str, object]]:
    """Return a component's name and options, without what an evaluation says of a post-hoc method besides."""
    options = {key: value for key, value in values.items() if key not in (LABEL, FITTED_ON)}
    return str(options.pop("name")), options


def _check_loss(values: Values, dataset: DataSet) -> None:
    name, options = _split(values)
    loss = LOSSES.build(name, **options)
    if not isinstance(loss, Loss):
        raise _Fault(f"it builds a {type(loss).__name__}, which must be a trainables.losses.Loss")
    generator = torch.Generator().manual_seed(0)
    logits = (2 * torch.randn(SAMPLES, dataset.classes, generator=generator)).requires_grad_()
    targets = torch.randint(dataset.classes, (SAMPLES,), generator=generator)
    loss.begin_epoch(0, 2)
    if loss.needs_model:
        network = nn.Linear(4, dataset.classes)
        value = loss(network, torch.randn(SAMPLES, 4, generator=generator), targets)  # type: ignore[call-arg, arg-type]
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
        raise _Fault(f"it returns {shown} for {SAMPLES} samples; it must return one number or one per sample")
    if not torch.isfinite(value):
        raise _Fault(f"its value is {float(value)} for typical logits")
    if not value.requires_grad:
        raise _Fault("its value does not depend on the logits by operations that torch can differentiate")
    gradients = torch.autograd.grad(value, leaves, allow_unused=True)
    if all(gradient is None or not gradient.any() for gradient in gradients):
        raise _Fault("its gradient is zero everywhere: nothing would be trained")
    if not all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients):
        raise _Fault("its gradient is not finite for typical logits")


def _check_independent(loss: Loss, logits: Tensor, targets: Tensor) -> None:
    """Hold a loss to what it says of itself: that it is a mean of independent values."""
    whole, part = loss.per_sample(logits, targets), loss.per_sample(logits[:8], targets[:8])
    if whole.shape != targets.shape:
        raise _Fault(f"its per_sample gives shape {tuple(whole.shape)} for {len(targets)} samples")
    if not torch.allclose(whole[:8], part, rtol=1e-4, atol=1e-6):
        raise _Fault("a sample's value depends on the others in its batch: set batch_coupled = True")
    if not torch.isclose(whole.mean(), loss(logits, targets), rtol=1e-4):
        raise _Fault("its value is not the mean of its per-sample values: set batch_coupled = True")


def read_back(state: object) -> Any:
    """Return a state as it comes back from a checkpoint. Raises whatever torch does where that cannot be."""
    held = io.BytesIO()
    torch.save(state, held)
    held.seek(0)
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
    for key, value in other.state_dict().items():
        if not torch.equal(torch.as_tensor(value), torch.as_tensor(state[key])):
            raise _Fault(f"its state {key!r} changes after load_state_dict")


def _check_architecture(values: Values, dataset: DataSet) -> None:
    model = build_for(dataset, values)
    if not isinstance(model, nn.Module):
        raise _Fault(f"it builds a {type(model).__name__}, which must be a torch.nn.Module")
    inputs = dataset.train.prepare(dataset.train.inputs[:2])
    logits = model.train()(inputs)
    if not isinstance(logits, Tensor) or tuple(logits.shape) != (2, dataset.classes):
        shown = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        classes = dataset.classes
        raise _Fault(f"it gives {shown} for 2 samples of {classes} classes, which must be (2, {classes})")
    if not logits.is_floating_point() or not torch.isfinite(logits).all():
        raise _Fault(f"its logits are not finite floating-point numbers ({logits.dtype})")
    if are_probabilities(logits.detach()):
        raise _Fault("its outputs are probabilities, each row sums to 1: leave its softmax out, losses take logits")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained or not logits.requires_grad:
        raise _Fault("it has no parameters that its logits depend on: nothing would be trained")


def _check_metric(values: Values, dataset: DataSet) -> None:
    name, options = _split(values)
    logits, targets = _predictions(dataset.classes)
    try:
        found = METRICS.build(name, softmax64(logits), targets, **options)
    except ValueError as error:
        raise _Fault(str(error)) from error
    if not math.isfinite(found):
        raise _Fault(f"it gives {found} for {SAMPLES} typical predictions")


def _check_posthoc(values: Values, dataset: DataSet) -> None:
    name, options = _split(values)
    columns = POSTHOC[name].columns
    for column in columns:
        if not WORD.fullmatch(column) or column in (*RECALIBRATED, "unavailable"):
            raise _Fault(f"its PARAMETERS name {column!r}, which cannot be a column: choose another name")
    logits, targets = _predictions(dataset.classes)
    try:
        calibrator = POSTHOC.build(name, logits, targets, **options)
        calibrator(logits)
    except PosthocUnavailable as error:
        raise _Fault(str(error)) from error


def _predictions(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logits [N, K] and targets [N] of a network that is right most of the time, every class among them."""
    random = np.random.default_rng(0)
    targets = np.arange(max(SAMPLES, classes)) % classes
    logits = random.normal(size=(len(targets), classes))
    logits[np.arange(len(targets)), targets] += 2.0
    return logits, targets.astype(np.int64)


#: The manifest's facts of a training loop of the user's own.
MANIFEST_KEY = "loop"

#: How far two runs may differ on a GPU, relatively, whose sums have no fixed order; on CPUs they are equal bits.
ON_A_GPU = 1e-2


@dataclass(frozen=True)
class LoopData(DataSet):
    """What a loop predicts, in the place of a data set.

    Attributes:
        columns: what it measures in an epoch besides what every table has.
        measures: what it measures by itself in an evaluation.
        epoch_seconds: what an epoch took.
        evaluation_seconds: what an evaluation took.
    """

    columns: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    epoch_seconds: float = 0.0
    evaluation_seconds: float = 0.0


def loop_part(dataset: DataSet) -> dict[str, object]:
    """Return what the manifest says of a sweep's own training loop; nothing where it has none."""
    if not isinstance(dataset, LoopData):
        return {}
    return {MANIFEST_KEY: {"columns": list(dataset.columns), "measures": list(dataset.measures)}}


def loop_columns(manifest: Mapping[str, Any]) -> list[str] | None:
    """Return what epochs of a sweep's own training loop measured before the sweep; `None` where that is not known."""
    columns: list[str] | None = (manifest.get(MANIFEST_KEY) or {}).get("columns")
    return columns


def measured_columns(manifest: Mapping[str, Any]) -> list[str]:
    """Return the columns of `evaluations` that a sweep's own training loop measures by itself."""
    return list((manifest.get(MANIFEST_KEY) or {}).get("measures", ()))


def predicted_before(manifest: Mapping[str, Any]) -> DataSet:
    """Return what stands for the data of a loop that was tried when its sweep began: classes and sizes are true."""
    facts = manifest["dataset"]
    return _in_place_of(facts["samples"], facts["classes"], facts["split_hash"])


def _in_place_of(sizes: Mapping[str, int], classes: int, split_hash: str) -> DataSet:
    splits = {name: Split(torch.zeros(size, 1), torch.zeros(size, dtype=torch.int64)) for name, size in sizes.items()}
    train, val, test = (splits.pop(name) for name in ("train", "val", "test"))
    return DataSet(OWN, train, val, test, classes, (1,), split_hash, further=splits)


def tried_loop(spec: SweepSpec, data: DataSet) -> LoopData:
    """Try the loop of `spec` on its first configuration; return what it predicts; of one without `predict` its data.

    Args:
        spec: a search space with a loop.
        data: its data set, which the loop may ask for.

    Raises:
        InvalidSearchSpace: what is wrong with it, one sentence.
    """
    assert spec.loop is not None
    device = "cuda" if spec.resources.gpu != 0 and torch.cuda.is_available() else "cpu"
    values, held = examples(spec)[0], data.to(device)
    wanted = spec.evaluation.settings

    def built() -> LoopReplicate:
        epochs, seed = max(2, spec.scheduler.max_epochs), spec.replicate_seeds.of(0)[0]  # two are trained here
        return LoopReplicate(
            str(spec.loop), values, seed=seed, dataset=held, max_epochs=epochs, device=device, evaluation=wanted
        )

    try:
        with _silenced(), torch_threads(max(1, int(spec.resources.cpu))):
            first = built()
            measures, row = _measures(first, spec), first.train_epoch()
            columns, started = _columns(row), time.perf_counter()
            sizes = {name: len(split) for name, split in data.splits.items()}
            found = first.predictions(wanted) if first.predicts else _in_place_of(sizes, data.classes, data.split_hash)
            first.evaluate(wanted, "rung")
            evaluating = time.perf_counter() - started
            second = built()
            fault = state_fault(first, second, 0.0 if device == "cpu" else ON_A_GPU)
            for each in (first, second):
                each.close()
    except LoopError as error:
        raise InvalidSearchSpace([Fault("loop", str(error))]) from error
    if fault is not None:
        raise InvalidSearchSpace([Fault("loop", f"{spec.loop}: {fault}")])
    named = {field: getattr(found, field) for field in DataSet.__dataclass_fields__}
    seconds = {"epoch_seconds": row["seconds"], "evaluation_seconds": evaluating}
    return LoopData(**named, columns=columns, measures=measures, **seconds)


def _measures(loop: LoopReplicate, spec: SweepSpec) -> tuple[str, ...]:
    """Return the columns that a loop measures by itself. Raises LoopError where one is taken or cannot be one."""
    own = tuple(getattr(loop.loop, "measures", ()))
    taken = {*EVALUATION_KEYS}
    if loop.predicts:  # else every column of `evaluations` is its own
        metrics = [each["name"] for each in spec.evaluation.metrics]
        taken |= {*evaluation_columns(spec.evaluation.posthoc, metrics, spec.cross_fitted)}
    if bad := [key for key in own if not WORD.fullmatch(key) or key in taken]:
        why = "is measured of what it predicts" if bad[0] in taken else "cannot be a column"
        raise LoopError(f"measures names {bad[0]!r}, which {why}; use another name of lower-case letters, digits and _")
    return own


def _columns(row: Mapping[str, object]) -> tuple[str, ...]:
    """Return what a loop's epochs measure besides. Raises LoopError where it cannot be a column."""
    own = [key for key in row if key not in (*STANDARD, *_MEASURED)]
    bad = [key for key in own if not WORD.fullmatch(key) or key in EPOCHS_SCHEMA.names]
    if bad:
        rule = f"train_epoch returns {bad[0]!r}, which cannot be a column"
        raise LoopError(f"{rule}; use lower-case letters, digits and _")
    return tuple(own)


_MEASURED = ("epoch", "val_nll", "val_accuracy", "val_ece", "seconds")


def state_fault(first: LoopReplicate, second: LoopReplicate, tolerance: float = 0.0) -> str | None:
    """Return which part of a loop is not restored from its state, or `None`.

    Args:
        first: trained for an epoch or more; it is trained for another.
        second: built alike, and not trained yet.
        tolerance: how far values may differ, relatively.
    """
    saved = first.state_dict()
    try:
        read = read_back(dict(saved))
    except Exception as error:
        words = " ".join(str(error).split())[:160]
        return f"its state_dict cannot be read from a checkpoint; keep tensors, numbers and texts in it ({words})"
    second.load_state_dict(read)
    lost = difference(saved["loop"], second.state_dict()["loop"], tolerance)
    if lost is not None:
        return f"{lost} of its state is another after load_state_dict"
    parts = [name for name, part in vars(first.loop).items() if not _same(part, getattr(second.loop, name, None))]
    if first.predicts and not _close(
        first.predicted(MEASURED_SPLIT)[0], second.predicted(MEASURED_SPLIT)[0], tolerance
    ):
        return f"after load_state_dict it predicts otherwise{_named(parts)}"
    rows = [each.train_epoch() for each in (first, second)]
    states = [each.state_dict()["loop"] for each in (first, second)]
    measured = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    found = difference(states[0], states[1], tolerance) or difference(measured[0], measured[1], tolerance)
    if found is None:
        return None
    return f"it does not continue from its state as it would have: after another epoch {found} differs{_named(parts)}"


def _named(parts: list[str]) -> str:
    if parts:
        return f"; load_state_dict does not restore {', '.join(f'self.{part}' for part in parts)}"
    return "; something that decides training is not in state_dict, as an optimiser, a schedule or a generator"


def _same(left: object, right: object) -> bool:
    """Return whether two attributes hold the same, as far as they can say what they hold."""
    for method in ("state_dict", "get_state"):
        if hasattr(left, method) and hasattr(right, method):
            with contextlib.suppress(Exception):
                return difference(getattr(left, method)(), getattr(right, method)()) is None
    if isinstance(left, Tensor | int | float | str):
        return difference(left, right) is None
    return True


def difference(left: Any, right: Any, tolerance: float = 0.0, place: str = "") -> str | None:
    """Return the place of the first part in which two states differ, or `None`."""
    keys: Iterable[Any]
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        if set(left) != set(right):
            return repr(f"{place}{sorted(map(str, set(left) ^ set(right)))[0]}")
        keys = left
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        keys = range(len(left))
    else:
        return None if _close(left, right, tolerance) else repr(place.removesuffix("."))
    found = (difference(left[key], right[key], tolerance, f"{place}{key}.") for key in keys)
    return next(filter(None, found), None)


def _close(left: Any, right: Any, tolerance: float) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        left, right = left.detach().cpu(), right.detach().cpu()
        if not left.is_floating_point():
            return torch.equal(left, right)
        return torch.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    if isinstance(left, float) and isinstance(right, float):
        both = math.isnan(left) and math.isnan(right)
        return both or left == right or abs(left - right) <= tolerance * abs(left)
    return type(left) is type(right) and bool(left == right)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Keep what the user's code prints away from the terminal: in a sweep it goes into the log."""
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(action="ignore"),
    ):
        yield
