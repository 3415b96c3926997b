"""The error for curvature that could not be measured, and checks of the autograd graph that detect the causes.

Before a measurement, `samples_mix` checks whether the network's copy uses its own parameters and whether samples
influence each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node


class CurvatureUnavailable(RuntimeError):  # noqa: N818 -- a state of a measurement, not a fault of the program
    """Raised when curvature could not be measured; the message is one sentence with the reason.

    Callers record the sentence with the evaluation and continue: missing curvature never fails a trial.
    """


def unavailable(stage: str, error: BaseException) -> CurvatureUnavailable:
    """Convert `error`, raised during `stage`, to a CurvatureUnavailable with a one-sentence message.

    Raises `error` itself if a trial on a fraction of a GPU ran out of memory.
    """
    # torch appends stack traces after an empty line; only the first paragraph is a message.
    words = " ".join(str(error).split("\n\n")[0].split())
    if ran_out_of_memory(error):
        # Raised again, so that the worker retries the trial with twice its GPU fraction. Otherwise only this trial
        # would have no curvature.
        if isinstance(error, torch.OutOfMemoryError) and on_a_share():
            raise error
        return CurvatureUnavailable(f"{stage} ran out of memory: lower evaluation.curvature.samples or batch_size")
    if "not implemented" in words or "double backward" in words:
        return CurvatureUnavailable(f"{stage} needs an operator without a second derivative: {words}")
    return CurvatureUnavailable(f"{stage} failed with {type(error).__name__}: {words}")


@contextlib.contextmanager
def as_unavailable(stage: str) -> Iterator[None]:
    """Convert every error raised within this context with `unavailable`.

    An error whose attribute `interrupts` is true stops the trial and passes through unchanged.
    """
    # Network and loss can be user code, which may raise anything.
    try:
        yield
    except CurvatureUnavailable:
        raise
    except Exception as error:
        if getattr(error, "interrupts", False):
            raise
        raise unavailable(stage, error) from error


def require_finite(values: Tensor, what: str) -> Tensor:
    """Return `values` if all are finite, else raise CurvatureUnavailable; `what` names them in its message."""
    if not bool(torch.isfinite(values).all()):
        raise CurvatureUnavailable(f"{what} has entries that are not finite")
    return values


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` reports that GPU or CPU memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # raised by torch's CPU allocator


def on_a_share() -> bool:
    """Return whether this process may use only a fraction of its GPU, so that a larger fraction could help."""
    return torch.cuda.is_available() and torch.cuda.get_per_process_memory_fraction() < 1


def graph_uses(outputs: Iterable[Tensor]) -> dict[Node, int]:
    """Return every node in the graph behind `outputs`, with the number of operations or outputs that use it."""
    # Iterative: a deep network's graph exceeds Python's recursion limit.
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    uses: dict[Node, int] = dict.fromkeys(waiting, 1)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None:
                continue
            if node not in uses:
                waiting.append(node)
            uses[node] = uses.get(node, 0) + 1
    return uses


def short_name(node: Node) -> str:
    """Return a node's name without its namespace, e.g. `AddmmBackward0` or `AccumulateGrad`."""
    return node.name().split("::")[-1]


def cannot_differentiate(outputs: Iterable[Tensor]) -> bool:
    """Return whether the graph behind `outputs` has an operation that autograd refuses to differentiate."""
    # A function marked `once_differentiable` leaves such a node. It has no edge to the parameters, so autograd would
    # skip it silently and return a product without its term.
    return any(short_name(node) in ("Error", "DelayedError") for node in graph_uses(outputs))


def samples_mix(network: nn.Module, original: nn.Module, inputs: Tensor) -> bool:
    """Return whether a sample's logits depend on other samples in `inputs`, as with batch statistics.

    Raises CurvatureUnavailable if `network`, a copy, uses the parameters of `original`, or if its outputs vary between
    calls.
    """
    logits = network(inputs)
    if not isinstance(logits, Tensor):
        raise CurvatureUnavailable(f"the network returns a {type(logits).__name__}, not a tensor of logits [N, K]")
    ends: list[Any] = [node for node in graph_uses([logits]) if short_name(node) == "AccumulateGrad"]
    if {id(end.variable) for end in ends} & {*map(id, original.parameters())}:
        raise CurvatureUnavailable("a copy of the network computes with the original's parameters, not its own")
    if not _equal(network(inputs), logits):
        raise CurvatureUnavailable("the network's outputs vary between calls even in evaluation mode")
    half = (len(inputs) + 1) // 2
    return not _equal(network(inputs[:half]), logits[:half])


def _equal(logits: Tensor, expected: Tensor) -> bool:
    """Return whether logits agree up to rounding."""
    # Batches of different sizes sum in a different order; √eps of the largest logit is far above that rounding.
    tolerance = torch.finfo(expected.dtype).eps ** 0.5 * float(expected.detach().nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(logits, expected, rtol=0.0, atol=tolerance, equal_nan=True)
