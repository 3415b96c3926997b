"""A user's own training loop as a task: it trains an epoch, predicts a split, saves and loads its state.

    class Loop(sweeper.TrainingLoop):
        def __init__(self, configuration, *, seed, device, max_epochs): ...
        def train_epoch(self): ...                     # → {"train_loss": 0.3, "grad_norm": 1.2}: columns of `epochs`
        def predict(self, split): ...                  # → logits [N, K], targets [N]; `val` and `test` at least
        predicts = "probabilities"                     # only where these are in the place of logits
        def state_dict(self): ...
        def load_state_dict(self, state): ...

A search space names it, `loop: "my_code:Loop"`; then any names under `space:` are its hyperparameters. Its constructor
takes all of them as `configuration`, or each by its own name, and then names and types are checked. Of `seed`,
`device`, `max_epochs`, `dataset` (the search space's, where it names one) and `evaluation` (its settings) it gets what
it asks for by name.

What is measured of a network is measured here of what the loop predicts: its logits are a data set's inputs, the
identity its network. Only curvature needs the network itself. What a loop measures by itself joins that:

        measures = ("f1",)                             # columns of `evaluations`, fixed when a sweep starts
        def measure(self, split, stage): ...           # → {"f1": 0.9}

A loop whose predictions are too large to keep has `measure` and no `predict`: then it measures everything.
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
from typing import Any, TextIO, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from trainables.datasets.base import DataSet, Split, hash_of_splits
from trainables.extensions.libraries import register_missing_operators
from trainables.extensions.targets import OwnFamily, describe_error, described
from trainables.losses import LOSSES, Loss, build_loss
from trainables.metrics.base import are_probabilities
from trainables.registry import (
    FITTED_ON as SPLIT_KEY,
    IMPORTED,
    OWN,
    Component,
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
from trainables.training.loop import OwnRandomness
from trainables.training.prediction import EpochRow, State, TrajectorySettings, epoch_metrics

#: Arguments of a constructor that are no hyperparameters.
CONTEXT = ("seed", "device", "max_epochs", "dataset", "evaluation")

#: Parts of a space that name components of this program wherever they are given.
PARTS = ("loss", "architecture", "optimizer")

REQUIRED = ("train_epoch", "predict", "state_dict", "load_state_dict")

#: What an epoch's metrics may hold that every `epochs` table has a column for.
STANDARD = ("train_loss", "lr")

#: What a loop may predict.
LOGITS, PROBABILITIES = "logits", "probabilities"

#: The stage at which a loop without `predict` is measured after each epoch, on validation data, and what is kept of it.
EPOCH, EPOCH_METRICS = "epoch", ("nll", "accuracy", "ece")

#: Lines that a loop may print in one call; the log of a sweep is for people. Our choice.
MOST_LINES = 10_000

Given = TypeVar("Given")


class TrainingLoop:
    """A training loop of one's own, see the module's docstring. All state that training depends on is in its state.

    Attributes:
        predicts: what `predict` returns: `logits`, or `probabilities`, whose logarithms are then the logits.
        measures: the columns that `measure` fills.
    """

    predicts: str = LOGITS
    measures: tuple[str, ...] = ()

    def train_epoch(self) -> Mapping[str, float]:
        """Train one epoch; return its metrics, the same names every time."""
        raise NotImplementedError

    def predict(self, split: str) -> tuple[Tensor, Tensor]:
        """Return logits [N, K], or probabilities, and classes int64 [N] of a split, in the same order every time."""
        raise NotImplementedError

    def measure(self, split: str, stage: str) -> Mapping[str, float]:
        """Return what the loop measures of a split by itself, at `stage` `rung` or `end`: some of `measures`.

        Without `predict` also `nll` of `val` after each epoch, at stage `epoch`; `accuracy` and `ece` if it has them.
        """
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """Return what decides how training continues: tensors, numbers, texts, lists and mappings of them."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`'s result, whose tensors are on the CPU."""
        raise NotImplementedError

    def network(self) -> nn.Module | None:
        """Return the network, for curvature; `None` where there is none to show."""
        return None

    def loss(self) -> Loss | None:
        """Return the training loss; `None` takes the one that the space names, if it names one of this program's."""
        return None

    def batches(self, split: str) -> Iterable[tuple[Tensor, Tensor]] | None:
        """Return a split's (inputs, targets), as the network takes them and unaugmented; `None` where it cannot."""
        return None

    def close(self) -> None:
        """Release what the loop holds. Called at the end of its trial."""


class Imported(TrainingLoop):
    """Stands for training elsewhere: somebody gives it each epoch's `predictions`, by split."""

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        """Begin with none."""
        self.predictions: Mapping[str, tuple[Tensor, Tensor]] = {}

    def train_epoch(self) -> Mapping[str, float]:
        """Return no metrics: what was measured there is not known."""
        return {}

    def predict(self, split: str) -> tuple[Tensor, Tensor]:
        """Return what was imported. Raises LookupError where nothing was."""
        if split not in self.predictions:
            raise LookupError("the sweep's predictions were imported, and nothing can be trained here")
        return self.predictions[split]


class _Limited(io.TextIOBase):
    """Passes on what is printed, up to MOST_LINES lines."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name, self._lines = stream, name, 0

    def write(self, text: str) -> int:
        if self._lines <= MOST_LINES:
            self._stream.write(text)
            self._lines += text.count("\n")
            if self._lines > MOST_LINES:
                self._stream.write(f"{self._name} printed more than {MOST_LINES:,} lines; the rest is left out\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


class LoopError(Exception):
    """A training loop of the user's own that cannot go on: one sentence with the place in the user's file."""


def _own_loop(target: Any, path: str, name: str) -> Component:
    if not isinstance(target, type) or any(not callable(getattr(target, each, None)) for each in REQUIRED):
        raise ExtensionError(
            f"{path} is {described(target)}; a training loop is a subclass of sweeper.TrainingLoop with "
            f"{', '.join(REQUIRED[:-1])} and {REQUIRED[-1]}"
        )
    return Component(name, target, () if takes_all(target) else hyperparameters_of(_by_name(target), path, []))


def takes_all(target: Callable[..., object]) -> bool:
    """Return whether a loop takes its hyperparameters as one mapping, under any names."""
    return "configuration" in inspect.signature(target).parameters


def _by_name(target: type) -> Callable[..., object]:
    """Return something with the signature of a loop's constructor, without what is no hyperparameter."""

    def stub() -> None: ...

    signature = inspect.signature(target)
    kept = [each for key, each in signature.parameters.items() if key not in (*CONTEXT, *PARTS)]
    stub.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # what `inspect` asks for
    stub.__annotations__ = typing.get_type_hints(target.__init__, include_extras=True)  # type: ignore[misc]  # a class's own
    return stub


with suppress(ModuleNotFoundError):  # without torchvision, nothing imports it
    register_missing_operators()  # a loop's libraries import it by themselves: Lightning, transformers, timm

LOOPS = Registry("training loop", OwnFamily("loops", _own_loop))
LOOPS.register(Component(IMPORTED, Imported))


def _overrides(loop: object, method: str) -> bool:
    return getattr(type(loop), method, None) not in (None, getattr(TrainingLoop, method))


def own_data() -> DataSet:
    """Return what stands for the data of a loop that brings its own: one sample a split."""
    one = Split(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
    return DataSet(OWN, one, one, one, 2, (2,), "")


def build_loop(name: str, configuration: Mapping[str, Any], **context: Any) -> Any:
    """Return a loop, built with what its constructor takes.

    Args:
        name: its import path.
        configuration: of a trial, see `own_values`.
        context: each of `CONTEXT`.
    """
    target = LOOPS[name].build
    arguments, values = inspect.signature(target).parameters, own_values(configuration)
    anything = any(each.kind is each.VAR_KEYWORD for each in arguments.values())
    given = {key: value for key, value in context.items() if key in arguments or anything}
    if takes_all(target):
        return target(configuration=values, **given)
    return target(**{key: value for key, value in values.items() if key in arguments}, **given)


def own_values(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as the search space wrote it: without the parts that are the loop's own business."""
    return {key: value for key, value in configuration.items() if value != {"name": OWN} and key != "dataset"}


class LoopReplicate:
    """A training loop of the user's own with one seed, as trials train it.

    Torch's, numpy's and Python's global generators are its own while it works, begin with its seed, and are saved.

    Attributes:
        epoch: completed epochs.
        loop: the user's.
        predicts: whether it predicts; else it measures everything by itself.
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
            name: its import path.
            configuration: of the trial.
            seed: of everything random in it.
            dataset: the search space's; one of the name `OWN` where it has none.
            max_epochs: the last epoch.
            device: where it is to train.
            evaluation: what is measured at rungs; its bins are those of an epoch's calibration error.
            columns: what its epochs may measure; `None` for anything.
        """
        self.epoch = 0
        evaluation = evaluation or EvaluationSettings()
        self._name, self._seed, self._bins = name, seed, evaluation.bins
        self._columns = None if columns is None else {*columns, *STANDARD}
        self._named_loss = dict(configuration["loss"])
        self._randomness = OwnRandomness(seed, torch.device(device))
        self._host: tuple[Any, Any] = (random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state())
        self._predicted: dict[str, tuple[Tensor, Tensor]] = {}
        self._classes: int | None
        data = None if dataset.name == OWN else dataset
        context = {"seed": seed, "device": torch.device(device), "max_epochs": max_epochs, "dataset": data}
        context["evaluation"] = evaluation
        self.loop = self._asked("__init__", lambda: build_loop(name, configuration, **context))
        self.predicts = _overrides(self.loop, "predict") or not _overrides(self.loop, "measure")
        self._classes = None if self.predicts else dataset.classes

    def train_epoch(self, after_step: Callable[[], None] | None = None) -> EpochRow:
        """Train one epoch; return its row of the `epochs` table. Nothing is asked for between steps."""
        started = time.perf_counter()
        metrics = self._metrics(self._asked("train_epoch", self.loop.train_epoch))
        self.epoch += 1
        self._predicted.clear()
        if self.predicts:
            measured = epoch_metrics(*self.predicted(FITTED_ON), self._bins)
        else:
            found = self._measured(FITTED_ON, EPOCH)
            measured = {f"{FITTED_ON}_{key}": found[key] for key in EPOCH_METRICS if key in found}
        return {"epoch": self.epoch, **metrics, **measured, "seconds": time.perf_counter() - started}

    def predicted(self, split: str) -> tuple[Tensor, Tensor]:
        """Return logits float32 [N, K] and classes int64 [N] of a split, on the host; each once an epoch.

        Raises LoopError where they are none.
        """
        if split not in self._predicted:
            found = self._looked("predict", lambda: self.loop.predict(split))
            self._predicted[split] = self._checked(found, split)
        return self._predicted[split]

    def _looked(self, method: str, call: Callable[[], Given]) -> Given:
        """Call what measures. When that is done changes no training: a DataLoader draws a number for each pass."""
        generators = self._host, self._randomness.state_dict()
        found = self._asked(method, call)
        self._host = generators[0]
        self._randomness.load_state_dict(generators[1])
        return found

    def _measured(self, split: str, stage: str) -> dict[str, float]:
        """Return what the loop measures of a split by itself. Raises LoopError for an undeclared column."""
        if not _overrides(self.loop, "measure"):
            return {}
        where = f"{self._name}: measure({split!r}, {stage!r})"
        found = self._numbers("measure", self._looked("measure", lambda: self.loop.measure(split, stage)))
        if unknown := [key for key in found if key not in getattr(self.loop, "measures", ())]:
            raise LoopError(f"{where} returns {', '.join(unknown)}; name each column in measures")
        if stage == EPOCH and EPOCH_METRICS[0] not in found:
            raise LoopError(f"{where} returns no {EPOCH_METRICS[0]}, and it has no predict")
        return found

    def evaluate(self, settings: EvaluationSettings, stage: str) -> Evaluation:
        """Return the full measurement of the present weights."""
        own, named = {split: self._measured(split, stage) for split in settings.splits}, self._named_loss
        loss = self._part("loss") or (build_loss(**named) if named["name"] in LOSSES else None)
        if self.predicts:
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
        """Return what the loop predicts on every split that an evaluation looks at, logits as inputs."""
        fitted_on = [entry.get(SPLIT_KEY, FITTED_ON) for entry in settings.posthoc]
        splits = {n: Split(*self.predicted(n)) for n in dict.fromkeys((FITTED_ON, *settings.splits, *fitted_on))}
        none = Split(torch.empty(0, self._classes or 2), torch.empty(0, dtype=torch.int64))
        train, val, test = (splits.pop(name, none) for name in ("train", "val", "test"))
        digest = hash_of_splits(*(each.targets.numpy() for each in (train, val, test)))
        return DataSet(OWN, train, val, test, self._classes or 2, (self._classes or 2,), digest, further=splits)

    def trajectory_row(self, settings: TrajectorySettings) -> EpochRow:
        """Return nothing: curves against the epoch are the loop's own metrics."""
        return {}

    def state_dict(self) -> State:
        """Return the loop's state, and that of the generators it draws from."""
        python, numpy = self._host
        return {
            "epoch": self.epoch,
            "loop": dict(self._asked("state_dict", self.loop.state_dict)),
            "random": self._randomness.state_dict(),
            "python": python,
            "numpy": (numpy[0], torch.from_numpy(numpy[1].astype(np.int64)), *numpy[2:]),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`'s result."""
        self.epoch = state["epoch"]
        self._predicted.clear()
        self._asked("load_state_dict", lambda: self.loop.load_state_dict(state["loop"]))
        self._randomness.load_state_dict(state["random"])
        name, keys, *rest = state["numpy"]
        self._host = state["python"], (name, keys.numpy().astype(np.uint32), *rest)

    def close(self) -> None:
        """Let the loop release what it holds."""
        if hasattr(self.loop, "close"):
            self._asked("close", self.loop.close)

    def _asked(self, method: str, call: Callable[[], Given]) -> Given:
        """Call the user's code. Raises LoopError with the line that raised; running out of memory stays what it is."""
        try:
            printed = (_Limited(stream, f"{self._name}: {method}") for stream in (sys.stdout, sys.stderr))
            with self._in_place(), redirect_stdout(next(printed)), redirect_stderr(next(printed)):
                return call()
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:
            if getattr(error, "interrupts", False):
                raise  # the watchdog's, which interrupts whatever hangs
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

    def _numbers(self, method: str, found: object) -> dict[str, float]:
        if not isinstance(found, Mapping):
            raise LoopError(f"{self._name}: {method} returns a {type(found).__name__}; return a mapping of numbers")
        try:
            return {str(key): float(value) for key, value in found.items()}
        except (TypeError, ValueError) as error:
            raise LoopError(f"{self._name}: {method} returns what is no number: {error}") from error

    def _metrics(self, found: object) -> dict[str, float]:
        metrics = self._numbers("train_epoch", found)
        unknown = [] if self._columns is None else [key for key in metrics if key not in self._columns]
        if unknown:
            raise LoopError(
                f"{self._name}: train_epoch returns {', '.join(unknown)} in epoch {self.epoch + 1}, which it did not "
                "in the first; return the same names in every epoch"
            )
        return metrics

    def _checked(self, found: object, split: str) -> tuple[Tensor, Tensor]:
        where = f"{self._name}: predict({split!r})"
        if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(each, Tensor) for each in found):
            raise LoopError(f"{where} returns {described(found)}; return two tensors, logits [N, K] and targets [N]")
        logits, targets = (each.detach().cpu() for each in found)
        shapes = f"{list(logits.shape)} and {list(targets.shape)}"
        if logits.dim() != 2 or targets.dim() != 1 or len(logits) != len(targets) or logits.shape[1] < 2:
            raise LoopError(f"{where} returns shapes {shapes}; logits are [N, K] with K from 2, targets [N]")
        if not len(targets):
            raise LoopError(f"{where} returns no samples")
        if targets.is_floating_point() or not logits.is_floating_point():
            raise LoopError(f"{where} returns {logits.dtype} and {targets.dtype}; logits are floats, targets integers")
        low, high, classes = int(targets.min()), int(targets.max()), logits.shape[1]
        if low < 0 or high >= classes:
            raise LoopError(f"{where} returns targets from {low} to {high}; with {classes} logits they lie below them")
        if self._classes not in (None, classes):
            raise LoopError(f"{where} returns {classes} logits a sample, and {self._classes} elsewhere")
        self._classes = classes
        return self._logits(logits, where), targets.long()

    def _logits(self, rows: Tensor, where: str) -> Tensor:
        """Return logits float32 [N, K] of what a loop predicts. Raises LoopError where it says otherwise than it is."""
        kind, sound = getattr(self.loop, "predicts", LOGITS), are_probabilities(rows.double().numpy())
        if kind not in (LOGITS, PROBABILITIES):
            raise LoopError(f"{self._name}: predicts = {kind!r} must be {LOGITS!r} or {PROBABILITIES!r}")
        if kind == PROBABILITIES and not sound and bool(torch.isfinite(rows).all()):
            rule = f"returns rows that are no probabilities, from {float(rows.min()):g} to {float(rows.max()):g}"
            raise LoopError(f"{where} {rule}; none is negative, and each row sums to 1")
        if kind == LOGITS and sound:
            remedy = f'set predicts = "{PROBABILITIES}" in its class, or return the logits'
            raise LoopError(f"{where} returns rows that sum to 1, probabilities in the place of logits; {remedy}")
        return (rows.double().log() if kind == PROBABILITIES else rows).float()

    def _part(self, name: str) -> Any:
        """Return an optional part: what its method returns, or the attribute that a loop has in its place."""
        found = getattr(self.loop, name, None)
        return found if found is None or isinstance(found, nn.Module | Loss) else self._asked(name, found)

    def _curvature(
        self, settings: EvaluationSettings, loss: Loss | None, temperatures: Mapping[str, float]
    ) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """Return the Hessian's columns, or the sentence that says what they lack; and the rows of its tables."""
        network, wanted = self._part("network"), settings.curvature
        shown = hasattr(self.loop, "batches") and network is not None
        batches = self._asked("batches", lambda: self.loop.batches(FITTED_ON)) if shown else None
        if batches is None or wanted is None:
            return {"hessian_unavailable": f"{self._name} has no network() and batches()"}, {}
        pairs = self._asked("batches", lambda: [*batches])
        if not pairs or not all(map(_is_pair, pairs)):
            yielded = ", ".join({described(pair) for pair in pairs if not _is_pair(pair)}) or "nothing"
            rule = f"{self._name}: batches yields {yielded}; curvature takes pairs of tensors, inputs and targets"
            return {"hessian_unavailable": rule}, {}
        inputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        val = Split(inputs, targets)
        dataset = DataSet(OWN, val, val, val, self._classes or 2, tuple(inputs.shape[1:]), "")
        if loss is None:
            wanted = replace(wanted, losses=tuple(each for each in wanted.losses if each != "training"))
        plain = build_loss("cross_entropy")
        return curvature_columns(network, loss or plain, dataset, wanted, self._seed, temperatures)


def _is_pair(batch: object) -> bool:
    return isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)
