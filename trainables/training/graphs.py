"""Training steps recorded once as a CUDA graph and replayed: a small network's step is mostly the launching of kernels.

What is recorded is the forward pass, the loss and the backward pass of a full batch. The optimiser's step, a few
kernels over all weights, stays outside: so a learning rate, clipping and an optimiser's state need no recording.
A replay runs the recorded kernels on the recorded addresses. Hence the batch is copied into buffers that stay, the
loss and the gradients are read where the recording left them, and everything that Python decides in a step is as it
was when the step was recorded: losses that change between epochs are recorded anew in each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trainables.losses import Loss, build_loss
from trainables.models import ARCHITECTURES
from trainables.training.acceleration import TrainingSettings

WARM_UP = 2
"""Steps before a recording, in which libraries choose their kernels and allocate their workspaces."""

Work = Callable[[Tensor, Tensor], Tensor]
"""Inputs [B, ...] and targets [B] → the loss, a scalar, with gradients left in the parameters."""


class CannotRecordError(RuntimeError):
    """A step does what no graph can hold; the message says what to do."""


class Recorder(Protocol):
    """What records a step: CUDA."""

    def aside(self, work: Callable[[], Tensor]) -> Tensor:
        """Run `work` as it will be recorded, but unrecorded."""

    def record(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Record `work` without running it; return where its result will be, and what runs it."""


@functools.lru_cache(maxsize=8)  # cuBLAS keeps a workspace of megabytes for each stream that it has seen
def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that this process records on."""
    return torch.cuda.Stream(device)


class CudaRecorder:
    """Records on a CUDA stream beside the one that trains."""

    def __init__(self, device: torch.device) -> None:
        """Take the device's stream."""
        self._stream = recording_stream(device)

    def aside(self, work: Callable[[], Tensor]) -> Tensor:
        """Run `work` in the stream, after what was begun before and before what follows."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = work()
        current.wait_stream(self._stream)
        return result

    def record(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Capture `work`. Another thread may meanwhile copy batches, which a global capture would forbid."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            result = work()
        return result, graph.replay


class RecordedSteps:
    """Losses and gradients of one network's batches: replayed for full ones, plain for smaller ones."""

    def __init__(self, parameters: Sequence[nn.Parameter], batch_size: int, recorder: Recorder) -> None:
        """Record nothing yet.

        Args:
            parameters: those that are trained.
            batch_size: samples of a full batch.
            recorder: of the parameters' device.
        """
        self._parameters, self._batch_size, self._recorder = parameters, batch_size, recorder
        self._warm = 0
        self._replay: Callable[[], None] | None = None
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._gradients: list[Tensor | None] = []
        self._value: Tensor | None = None

    def forget(self) -> None:
        """Record anew at the next full batch."""
        if self._replay is not None:
            for parameter in self._parameters:
                parameter.grad = None
        self._replay = self._buffers = self._value = None
        self._gradients = []

    def __call__(self, work: Work, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the batch's loss, valid until the next call; its gradients are in the parameters.

        Raises CannotRecordError where a step cannot be recorded.
        """
        if len(targets) != self._batch_size:
            return work(inputs, targets)
        if self._warm < WARM_UP:
            self._warm += 1
            return self._recorder.aside(lambda: work(inputs, targets))
        if self._replay is None:
            self._record(work, inputs, targets)
        assert self._buffers is not None and self._value is not None and self._replay is not None
        for buffer, given in zip(self._buffers, (inputs, targets), strict=True):
            buffer.copy_(given)
        self._replay()
        # A smaller batch has put its own gradients there.
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return self._value

    def _record(self, work: Work, inputs: Tensor, targets: Tensor) -> None:
        self._buffers = inputs.clone(), targets.clone()
        held = self._buffers
        try:
            self._value, self._replay = self._recorder.record(lambda: work(*held))
        except RuntimeError as error:  # which torch's CUDA errors are
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise CannotRecordError(
                f"a training step cannot be recorded as a CUDA graph ({str(error).strip().splitlines()[0]}); "
                "set training.graphs: false"
            ) from error
        self._gradients = [parameter.grad for parameter in self._parameters]


def recorded_steps(
    model: nn.Module, batch_size: int, settings: TrainingSettings, device: torch.device
) -> RecordedSteps | None:
    """Return what records a network's steps on a GPU that is asked for graphs, and `None` for plain steps."""
    if not settings.graphs or device.type != "cuda":
        return None
    return RecordedSteps([p for p in model.parameters() if p.requires_grad], batch_size, CudaRecorder(device))


def changes_between_epochs(loss: Loss) -> bool:
    """Return whether an epoch may find the loss other than the one before, so that its steps are recorded anew."""
    kind = type(loss)
    return loss.stateful or kind.begin_epoch is not Loss.begin_epoch or kind.end_epoch is not Loss.end_epoch


BETWEEN_EPOCHS = frozenset({"adafocal", "focal_scheduled"})
"""The losses with a state that no step changes, only the beginning or the end of an epoch."""


def graphs_fault(configuration: Mapping[str, Any], settings: TrainingSettings) -> str | None:
    """Return why a configuration's steps cannot be recorded as graphs, or `None`; for use before a run."""
    if not settings.graphs:
        return None
    if settings.compile:
        return "graphs = true cannot be combined with compile = true, which launches its own kernels; choose one"
    if configuration.get("optimizer", {}).get("sharpness") is not None:
        return "graphs = true cannot take sharpness-aware steps, whose two passes draw alike; choose graphs: false"
    network, loss = configuration["architecture"]["name"], configuration["loss"]["name"]
    if ARCHITECTURES.has_tag(network, "follows_data"):
        return f"graphs = true cannot train {network}, whose computation depends on each sample; choose graphs: false"
    built = build_loss(**configuration["loss"])
    if built.needs_model or (built.stateful and loss not in BETWEEN_EPOCHS):
        why = "draws on the host in each step" if built.needs_model else "keeps a state that each step changes"
        return f"graphs = true cannot train {loss}, which {why}; choose graphs: false, or another loss"
    return None
