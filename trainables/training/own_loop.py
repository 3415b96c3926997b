"""A user's own training loop as a task: it trains an epoch, predicts a split, saves and loads its state.

    class Loop(sweeper.TrainingLoop):
        def __init__(self, configuration, *, seed, device, max_epochs): ...
        def train_epoch(self): ...                     # → {"train_loss": 0.3, "grad_norm": 1.2}: columns of `epochs`
        def predict(self, split): ...                  # → logits [N, K] or, of two classes, [N]; targets [N]
        predicts = "probabilities"                     # only if `predict` returns these instead of logits
        def state_dict(self): ...
        def load_state_dict(self, state): ...

A search space names it, `loop: "my_code:Loop"`; any names under `space:` are then its hyperparameters. The constructor
takes all hyperparameters as `configuration`, or each by its own name. In the second case, names and types are checked.
If it has arguments named `seed`, `device`, `max_epochs`, `dataset` (if the search space names one) or `evaluation`
(settings), it receives these, too.

An evaluation measures the loop's predictions as if its logits were the inputs of a data set and its network were the
identity. Only curvature needs the network itself. A loop can add its own measurements:

        measures = ("f1",)                             # columns of `evaluations`, fixed when a sweep starts
        def measure(self, split, stage): ...           # → {"f1": 0.9}

A loop whose predictions are too large to keep implements `measure` without `predict`, and measures everything itself.
"""

from __future__ import annotations

import inspect
import io
import random
import sys
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from typing import Any, TextIO, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from trainables.datasets.base import DataSet, Split, hash_of_splits
from trainables.extensions.libraries import register_missing_operators
from trainables.extensions.targets import OwnFamily, describe_error, described
from trainables.losses import LOSSES, Loss, build_loss
from trainables.metrics.base import are_probabilities, softmax64
from trainables.metrics.two_classes import as_two_classes
from trainables.registry import (
    FITTED_ON as SPLIT_KEY,
    IMPORTED,
    OWN,
    Component,
    Configuration,
    ExtensionError,
    Registry,
    hyperparameters_of,
)
from trainables.training.evaluation import (
    FITTED_ON,
    Evaluation,
    EvaluationSettings,
    curvature_columns,
    evaluate,
    temperatures_of,
)
from trainables.training.loop import OwnRandomness, Replicate
from trainables.training.prediction import EpochRow, State, TrajectorySettings, epoch_metrics

#: Constructor arguments that are not hyperparameters.
CONTEXT = ("seed", "device", "max_epochs", "dataset", "evaluation")

#: Parts of a space that always name components of this program.
PARTS = ("loss", "architecture", "optimizer")

REQUIRED = ("train_epoch", "predict", "state_dict", "load_state_dict")

#: Metrics with a column in every `epochs` table.
STANDARD = ("train_loss", "lr")

#: Kinds of predictions.
LOGITS, PROBABILITIES = "logits", "probabilities"

#: Stage at which a loop without `predict` measures validation data after each epoch, and the metrics that are kept.
EPOCH, EPOCH_METRICS = "epoch", ("nll", "accuracy", "ece")

#: Maximum number of lines that a loop can print per call, because people read a sweep's log. Our choice.
MOST_LINES = 10_000

Given = TypeVar("Given")


class TrainingLoop:
    """Base class for a user's own training loop; the module's docstring shows how to use it.

    `state_dict` must return all state that training depends on.

    Attributes:
        predicts: kind of predictions: `logits`, or `probabilities`; the logarithms of probabilities are then used as
            logits.
        measures: columns that `measure` fills.

    Example:
        >>> class Counter(TrainingLoop):
        ...     def __init__(self, configuration, *, seed):
        ...         self.bias = configuration["bias"]
        ...
        ...     def train_epoch(self):
        ...         self.bias += 1.0
        ...         return {"train_loss": 1 / self.bias}
        ...
        ...     def predict(self, split):
        ...         return torch.tensor([[self.bias, 0.0], [0.0, self.bias]]), torch.tensor([0, 1])
        ...
        ...     def state_dict(self):
        ...         return {"bias": self.bias}
        ...
        ...     def load_state_dict(self, state):
        ...         self.bias = state["bias"]
        >>> loop = Counter({"bias": 1.0}, seed=0)
        >>> loop.train_epoch()
        {'train_loss': 0.5}
        >>> logits, targets = loop.predict("val")
        >>> logits.argmax(dim=1).equal(targets)
        True
    """

    predicts: str = LOGITS
    measures: tuple[str, ...] = ()

    def train_epoch(self) -> Mapping[str, float]:
        """Train one epoch and return its metrics, with the same names in every epoch."""
        raise NotImplementedError

    def predict(self, split: str) -> tuple[Tensor, Tensor]:
        """Return logits or probabilities [N, K] and int64 classes [N] of a split, always in the same order.

        For two classes, one logit or probability of class 1 per sample is enough: [N] or [N, 1], with classes 0 and 1
        of any type in the same shape. It becomes two columns by `trainables.metrics.two_classes.as_two_classes`.
        """
        raise NotImplementedError

    def measure(self, split: str, stage: str) -> Mapping[str, float]:
        """Return the loop's own measurements on a split, with names from `measures`, at `stage` `rung` or `end`.

        A loop without `predict` is also called for `val` after each epoch, at stage `epoch`. It must then return `nll`,
        and can return `accuracy` and `ece`.
        """
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """Return all state that determines how training continues: tensors, numbers, texts, lists and mappings."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`'s result, whose tensors are on the CPU."""
        raise NotImplementedError

    def network(self) -> nn.Module | None:
        """Return the network for curvature, or `None` if there is none."""
        return None

    def loss(self) -> Loss | None:
        """Return the training loss; `None` uses the loss in the space, if this program has that loss."""
        return None

    def batches(self, split: str) -> Iterable[tuple[Tensor, Tensor]] | None:
        """Return a split's unaugmented batches (inputs, targets) for the network; `None` if they are not available."""
        return None

    def close(self) -> None:
        """Release the loop's resources. It is called at the end of the loop's trial."""


class Imported(TrainingLoop):
    """Represents training outside of the program; the importer sets each epoch's `predictions`, `weights` by split."""

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        """Start without predictions."""
        self.predictions: Mapping[str, tuple[Tensor, Tensor]] = {}
        self.weights: Mapping[str, Tensor] = {}

    def train_epoch(self) -> Mapping[str, float]:
        """Return no metrics, because imported predictions have none."""
        return {}

    def predict(self, split: str) -> tuple[Tensor, Tensor]:
        """Return the imported predictions. Raises LookupError if there are none."""
        if split not in self.predictions:
            raise LookupError("the sweep's predictions were imported, and nothing can be trained here")
        return self.predictions[split]


class _Limited(io.TextIOBase):
    """Passes printed text on, up to MOST_LINES lines."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name, self._lines = stream, name, 0

    def write(self, text: str) -> int:
        if self._lines <= MOST_LINES:
            self._stream.write(text)
            self._lines += text.count("\n")
            if self._lines > MOST_LINES:
                self._stream.write(f"{self._name} printed more than {MOST_LINES:,} lines; the rest is omitted\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


class _ZeroFirst(nn.Module):
    """Turns one logit z per sample, [N] or [N, 1], into the logits (0, z) [N, 2], for curvature."""

    def forward(self, z: Tensor) -> Tensor:
        z = z.reshape(-1, 1)
        return torch.cat([torch.zeros_like(z), z], dim=1)


class LoopError(Exception):
    """Raised when a user's training loop fails: one sentence with the line in the user's file."""


def _own_loop(target: Any, path: str, name: str) -> Component:
    if not isinstance(target, type) or any(not callable(getattr(target, method, None)) for method in REQUIRED):
        raise ExtensionError(
            f"{path} is {described(target)}; a training loop is a subclass of sweeper.TrainingLoop with "
            f"{', '.join(REQUIRED[:-1])} and {REQUIRED[-1]}"
        )
    return Component(name, target, () if takes_all(target) else hyperparameters_of(_by_name(target), path, []))


def takes_all(target: Callable[..., object]) -> bool:
    """Return whether a loop takes its hyperparameters as one mapping, under any names."""
    return "configuration" in inspect.signature(target).parameters


def _by_name(target: type) -> Callable[..., object]:
    """Return a stub with the signature of a loop's constructor, reduced to its hyperparameters."""

    def stub() -> None: ...

    signature = inspect.signature(target)
    kept = [argument for key, argument in signature.parameters.items() if key not in (*CONTEXT, *PARTS)]
    stub.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # what `inspect` asks for
    stub.__annotations__ = typing.get_type_hints(target.__init__, include_extras=True)  # type: ignore[misc]  # a class's own
    return stub


with suppress(ModuleNotFoundError):  # without torchvision, nothing imports it
    register_missing_operators()  # loops import Lightning, transformers or timm, which import torchvision

LOOPS = Registry("training loop", OwnFamily("loops", _own_loop))
LOOPS.register(Component(IMPORTED, Imported))


def _overrides(loop: object, method: str) -> bool:
    # Loops need not inherit from TrainingLoop, so a missing method counts as not overridden.
    return getattr(type(loop), method, None) not in (None, getattr(TrainingLoop, method))


def own_data() -> DataSet:
    """Return a placeholder data set, with one sample per split, for a loop that loads its own data."""
    one = Split(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
    return DataSet(OWN, one, one, one, 2, (2,), "")


def build_loop(name: str, configuration: Mapping[str, Any], **context: Any) -> Any:
    """Build a loop with the arguments that its constructor takes.

    Args:
        name: import path of the loop.
        configuration: trial configuration, see `own_values`.
        context: a value for each name in `CONTEXT`.
    """
    target = LOOPS[name].build
    arguments, values = inspect.signature(target).parameters, own_values(configuration)
    anything = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
    given = {key: value for key, value in context.items() if key in arguments or anything}
    if takes_all(target):
        return target(configuration=values, **given)
    return target(**{key: value for key, value in values.items() if key in arguments}, **given)


def own_values(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as the search space wrote it, without the placeholders of parts that the loop owns."""
    values = Configuration(configuration).plain()
    return {key: value for key, value in values.items() if value != {"name": OWN} and key != "dataset"}


class LoopReplicate:
    """A user's own training loop with one seed, in the form that a trial trains.

    While a replicate works, the global generators of torch, numpy and Python have that replicate's state. The state
    starts from its seed and is saved.

    Attributes:
        epoch: number of completed epochs.
        loop: the user's loop.
        predicts: whether the loop predicts; otherwise it measures everything itself.
    """

    def __init__(
        self,
        name: str,
        configuration: Mapping[str, Any],
        *,
        seed: int,
        dataset: DataSet,
        max_epochs: int,
        device: torch.device | str = "cpu",
        evaluation: EvaluationSettings | None = None,
        columns: Iterable[str] | None = None,
    ) -> None:
        """Build the loop.

        Args:
            name: import path of the loop.
            configuration: trial configuration.
            seed: seed for all randomness in the loop.
            dataset: data set of the search space, or the placeholder named `OWN`.
            max_epochs: last epoch.
            device: device for training.
            evaluation: settings of evaluations; their number of bins also applies to an epoch's calibration error.
            columns: metrics that an epoch may return; `None` for any.
        """
        self.epoch = 0
        evaluation = evaluation or EvaluationSettings()
        self._name, self._seed, self._bins = name, seed, evaluation.bins
        self._columns = None if columns is None else {*columns, *STANDARD}
        self._named_loss = dict(configuration["loss"])
        self._randomness = OwnRandomness(seed, torch.device(device))
        # numpy accepts seeds below 2³² only.
        self._host: tuple[Any, Any] = (random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state())
        self._predicted: dict[str, tuple[Tensor, Tensor]] = {}
        self._classes: int | None
        self._one_logit = False
        data = None if dataset.name == OWN else dataset
        context = {"seed": seed, "device": torch.device(device), "max_epochs": max_epochs, "dataset": data}
        context["evaluation"] = evaluation
        self.loop = self._call("__init__", lambda: build_loop(name, configuration, **context))
        self.predicts = _overrides(self.loop, "predict") or not _overrides(self.loop, "measure")
        self._classes = None if self.predicts else dataset.classes

    def train_epoch(self, after_step: Callable[[], None] | None = None) -> EpochRow:
        """Train one epoch and return its row of the `epochs` table; `after_step` is never called."""
        started = time.perf_counter()
        metrics = self._metrics(self._call("train_epoch", self.loop.train_epoch))
        self.epoch += 1
        self._predicted.clear()
        if self.predicts:
            measured = epoch_metrics(*self.predicted(FITTED_ON), self._bins)
        else:
            own = self._measured(FITTED_ON, EPOCH)
            measured = {f"{FITTED_ON}_{key}": own[key] for key in EPOCH_METRICS if key in own}
        return {"epoch": self.epoch, **metrics, **measured, "seconds": time.perf_counter() - started}

    def predicted(self, split: str) -> tuple[Tensor, Tensor]:
        """Return float32 logits [N, K] and int64 classes [N] of a split on the host, predicted once per epoch.

        Raises LoopError if the predictions are not valid.
        """
        if split not in self._predicted:
            predictions = self._call_measuring("predict", lambda: self.loop.predict(split))
            self._predicted[split] = self._checked(predictions, split)
        return self._predicted[split]

    def _call_measuring(self, method: str, call: Callable[[], Given]) -> Given:
        """Call user code that measures, and restore the random state so that training does not depend on it."""
        # A DataLoader draws a number in every pass, so without this the times of measurements would change training.
        generators = self._host, self._randomness.state_dict()
        result = self._call(method, call)
        self._host = generators[0]
        self._randomness.load_state_dict(generators[1])
        return result

    def _measured(self, split: str, stage: str) -> dict[str, float]:
        """Return the loop's own measurements on a split. Raises LoopError for an undeclared column."""
        if not _overrides(self.loop, "measure"):
            return {}
        where = f"{self._name}: measure({split!r}, {stage!r})"
        own = self._numbers("measure", self._call_measuring("measure", lambda: self.loop.measure(split, stage)))
        if unknown := [key for key in own if key not in getattr(self.loop, "measures", ())]:
            raise LoopError(f"{where} returns {', '.join(unknown)}; name each column in measures")
        if stage == EPOCH and EPOCH_METRICS[0] not in own:
            raise LoopError(f"{where} returns no {EPOCH_METRICS[0]}; return it, or implement predict")
        return own

    def evaluate(self, settings: EvaluationSettings, stage: str) -> Evaluation:
        """Measure everything that `settings` request, for the current weights."""
        own, named = {split: self._measured(split, stage) for split in settings.splits}, self._named_loss
        loss = self._part("loss")
        if not isinstance(loss, Loss):  # a loop may keep a loss of torch, such as `BCEWithLogitsLoss`, under this name
            loss = build_loss(**named) if named["name"] in LOSSES else None
        if self.predicts:
            # Curvature needs the loop's network and is measured below; shifts need inputs, which a loop does not
            # provide.
            plain = replace(settings, curvature=None, shifts=())
            done = evaluate(
                nn.Identity(), loss or build_loss("cross_entropy"), self.predictions(settings), plain, stage=stage,
                seed=self._seed, predicting=lambda _, split: (split.inputs, {}),
            )  # fmt: skip
        else:
            none = {FITTED_ON: np.empty((0, self._classes or 2))}, {FITTED_ON: np.empty(0, np.int64)}
            done = Evaluation([{"split": split, "stage": stage} for split in settings.splits], [], *none)
        for row in done.rows:
            row.update(own[str(row["split"])])
        if settings.curvature is not None:
            row = next(row for row in done.rows if row["split"] == FITTED_ON)
            columns, done.curvature = self._curvature(settings, loss, temperatures_of(row, settings))
            row.update(columns)
        return done

    def predictions(self, settings: EvaluationSettings) -> DataSet:
        """Return a data set whose inputs are the logits predicted on every split that an evaluation uses."""
        fitted_on = [entry.get(SPLIT_KEY, FITTED_ON) for entry in settings.posthoc]
        names = dict.fromkeys((FITTED_ON, *settings.splits, *fitted_on))
        weights = self.loop.weights if isinstance(self.loop, Imported) else {}
        splits = {name: Split(*self.predicted(name), weights=weights.get(name)) for name in names}
        none = Split(torch.empty(0, self._classes or 2), torch.empty(0, dtype=torch.int64))
        train, val, test = (splits.pop(name, none) for name in ("train", "val", "test"))
        digest = hash_of_splits(*(split.targets.numpy() for split in (train, val, test)))
        return DataSet(OWN, train, val, test, self._classes or 2, (self._classes or 2,), digest, further=splits)

    def trajectory_row(self, settings: TrajectorySettings) -> EpochRow:
        """Return no columns, because a loop's own metrics per epoch replace these curves."""
        return {}

    def state_dict(self) -> State:
        """Return the state of the loop and of the generators it draws from."""
        python, numpy = self._host
        return {
            "epoch": self.epoch,
            "loop": dict(self._call("state_dict", self.loop.state_dict)),
            "random": self._randomness.state_dict(),
            "python": python,
            # A tensor, because checkpoints are loaded with `weights_only`, which refuses numpy arrays.
            "numpy": (numpy[0], torch.from_numpy(numpy[1].astype(np.int64)), *numpy[2:]),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`'s result."""
        self.epoch = state["epoch"]
        self._predicted.clear()
        self._call("load_state_dict", lambda: self.loop.load_state_dict(state["loop"]))
        self._randomness.load_state_dict(state["random"])
        name, keys, *rest = state["numpy"]
        self._host = state["python"], (name, keys.numpy().astype(np.uint32), *rest)

    def close(self) -> None:
        """Let the loop release its resources."""
        if hasattr(self.loop, "close"):
            self._call("close", self.loop.close)

    def _call(self, method: str, call: Callable[[], Given]) -> Given:
        """Call user code. Raises LoopError with the line that failed; out-of-memory errors pass through unchanged."""
        try:
            printed = (_Limited(stream, f"{self._name}: {method}") for stream in (sys.stdout, sys.stderr))
            with self._in_place(), redirect_stdout(next(printed)), redirect_stderr(next(printed)):
                return call()
        except (MemoryError, torch.OutOfMemoryError):
            raise  # the worker handles these itself: it may retry the trial on a larger share of the GPU
        except (Exception, SystemExit) as error:
            if getattr(error, "interrupts", False):
                raise  # from the watchdog, which interrupts a hanging trial
            where = f" after epoch {self.epoch}" if self.epoch else ""
            raise LoopError(f"{self._name} failed in {method}{where}: {describe_error(error, self._name)}") from error

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        outside = random.getstate(), np.random.get_state()
        random.setstate(self._host[0])
        np.random.set_state(self._host[1])
        try:
            with self._randomness.in_place():
                yield
        finally:
            self._host = random.getstate(), np.random.get_state()
            random.setstate(outside[0])
            np.random.set_state(outside[1])

    def _numbers(self, method: str, returned: object) -> dict[str, float]:
        if not isinstance(returned, Mapping):
            raise LoopError(f"{self._name}: {method} returns a {type(returned).__name__}; return a mapping of numbers")
        try:
            return {str(key): float(value) for key, value in returned.items()}
        except (TypeError, ValueError) as error:
            raise LoopError(f"{self._name}: {method} returns a value that is no number: {error}") from error

    def _metrics(self, returned: object) -> dict[str, float]:
        metrics = self._numbers("train_epoch", returned)
        # The first epoch fixes the columns of the `epochs` table.
        unknown = [] if self._columns is None else [key for key in metrics if key not in self._columns]
        if unknown:
            raise LoopError(
                f"{self._name}: train_epoch returns {', '.join(unknown)} in epoch {self.epoch + 1}, but not in the "
                "first; return the same names in every epoch"
            )
        return metrics

    def _checked(self, pair: object, split: str) -> tuple[Tensor, Tensor]:
        where = f"{self._name}: predict({split!r})"
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
            raise LoopError(f"{where} returns {described(pair)}; return two tensors, logits [N, K] and targets [N]")
        logits, targets = (part.detach().cpu() for part in pair)
        shapes, one = f"{list(logits.shape)} and {list(targets.shape)}", logits.shape[1:] in ((), (1,))
        if one and targets.shape[1:] in ((), (1,)):
            # A binary cross-entropy takes its targets as floats, in the shape of its logits.
            whole = targets.reshape(-1).long()
            targets = whole if torch.equal(whole.double(), targets.reshape(-1).double()) else targets.reshape(-1)
        if logits.dim() not in (1, 2) or targets.dim() != 1 or len(logits) != len(targets) or not logits.shape[-1]:
            rule = "return logits [N, K], or one logit of two classes [N], and targets [N]"
            raise LoopError(f"{where} returns shapes {shapes}; {rule}")
        if not len(targets):
            raise LoopError(f"{where} returns no samples; a split needs at least one")
        if targets.is_floating_point() or not logits.is_floating_point():
            raise LoopError(
                f"{where} returns {logits.dtype} and {targets.dtype}; return float logits and integer targets"
            )
        low, high, classes = int(targets.min()), int(targets.max()), 2 if one else logits.shape[1]
        if low < 0 or high >= classes:
            rule = f"{'one logit allows' if one else f'{classes} logits allow'} 0 to {classes - 1}"
            raise LoopError(f"{where} returns targets from {low} to {high}; {rule}")
        if self._classes not in (None, classes):
            raise LoopError(f"{where} returns {classes} logits per sample but {self._classes} before")
        self._classes, self._one_logit = classes, one
        return self._logits(logits, targets, where), targets.long()

    def _logits(self, rows: Tensor, targets: Tensor, where: str) -> Tensor:
        """Convert predictions to float32 logits [N, K]. Raises LoopError if they are not of the declared kind."""
        kind, values = getattr(self.loop, "predicts", LOGITS), rows.double().numpy()
        sound = are_probabilities(values)
        if kind not in (LOGITS, PROBABILITIES):
            raise LoopError(f"{self._name}: predicts = {kind!r} must be {LOGITS!r} or {PROBABILITIES!r}")
        if self._one_logit:
            p, z = (as_two_classes(values, probabilities=given) for given in (True, False))
            sound = are_probabilities(p)
            if sound and kind == LOGITS:  # logits can lie in [0, 1], too: the lower Brier score decides
                brier = [float(np.square(of[:, 1] - targets.numpy()).mean()) for of in (p, softmax64(z))]
                sound = brier[0] < brier[1]
            rows = torch.from_numpy(p if kind == PROBABILITIES else z)
        if kind == PROBABILITIES and not sound and bool(torch.isfinite(rows).all()):
            rule = f"returns rows that are no probabilities, from {float(rows.min()):g} to {float(rows.max()):g}"
            raise LoopError(f"{where} {rule}; probabilities are not negative, and each row sums to 1")
        if kind == LOGITS and sound:
            remedy = f'set predicts = "{PROBABILITIES}" in its class, or return the logits'
            what = "numbers in [0, 1]" if self._one_logit else "rows that sum to 1"
            raise LoopError(f"{where} returns {what}, which are probabilities, not logits; {remedy}")
        return (rows.double().log() if kind == PROBABILITIES else rows).float()

    def _part(self, name: str) -> Any:
        """Return an optional part of the loop, from a method or an attribute of that name; `None` if missing."""
        part = getattr(self.loop, name, None)
        return part if part is None or isinstance(part, nn.Module | Loss) else self._call(name, part)

    def _curvature(
        self, settings: EvaluationSettings, loss: Loss | None, temperatures: Mapping[str, float]
    ) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """Return the Hessian's columns, or a column with the reason why there are none, and the rows of its tables."""
        network, curvature = self._part("network"), settings.curvature
        network = nn.Sequential(network, _ZeroFirst()) if network is not None and self._one_logit else network
        shown = hasattr(self.loop, "batches") and network is not None
        batches = self._call("batches", lambda: self.loop.batches(FITTED_ON)) if shown else None
        if batches is None or curvature is None:
            return {"hessian_unavailable": f"{self._name} has no network() and batches()"}, {}
        pairs = self._call("batches", lambda: [*batches])
        if not pairs or not all(map(_is_pair, pairs)):
            yielded = ", ".join({described(pair) for pair in pairs if not _is_pair(pair)}) or "nothing"
            rule = f"{self._name}: batches yields {yielded}; yield pairs of tensors, inputs and targets"
            return {"hessian_unavailable": rule}, {}
        inputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        targets = targets.reshape(-1).long() if self._one_logit else targets
        val = Split(inputs, targets)
        dataset = DataSet(OWN, val, val, val, self._classes or 2, tuple(inputs.shape[1:]), "")
        if loss is None:
            curvature = replace(curvature, losses=tuple(name for name in curvature.losses if name != "training"))
        plain = build_loss("cross_entropy")
        return curvature_columns(network, loss or plain, dataset, curvature, self._seed, temperatures)


def _is_pair(batch: object) -> bool:
    return isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)


#: One seed of a configuration in training.
Task: TypeAlias = Replicate | LoopReplicate
