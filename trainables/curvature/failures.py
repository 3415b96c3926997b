"""The one error of this package, curvature that could not be measured; and the graph of operations that may be why.

`samples_mix` is what a measurement asks before it believes a network's derivatives: whose parameters, which samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node


class CurvatureUnavailable(RuntimeError):  # noqa: N818 -- a state of a measurement, not a fault of the program
    """Curvature could not be measured; the message is one sentence that says why.

    Callers record the sentence beside the evaluation and continue: a missing curvature never fails a trial.
    """


def unavailable(stage: str, error: BaseException) -> CurvatureUnavailable:
    """Return `error`, raised while doing `stage`, as a `CurvatureUnavailable` of one sentence.

    Raises `error` itself where a share of a card was too little: the trial is tried again on twice its share, where a
    sentence would leave it without the curvature that its neighbours have.
    """
    words = " ".join(str(error).split("\n\n")[0].split())
    if ran_out_of_memory(error):
        if isinstance(error, torch.OutOfMemoryError) and on_a_share():
            raise error
        return CurvatureUnavailable(f"{stage} ran out of memory: lower evaluation.curvature.samples or batch_size")
    if "not implemented" in words or "double backward" in words:
        return CurvatureUnavailable(f"{stage} needs an operator without a second derivative: {words}")
    return CurvatureUnavailable(f"{stage} failed with {type(error).__name__}: {words}")


@contextlib.contextmanager
def as_unavailable(stage: str) -> Iterator[None]:
    """Within this context every error is raised as `unavailable` tells it: network and loss may be anybody's.

    An interruption of the trial, which says so by an attribute `interrupts`, is let through.
    """
    try:
        yield
    except CurvatureUnavailable:
        raise
    except Exception as error:
        if getattr(error, "interrupts", False):
            raise
        raise unavailable(stage, error) from error


def require_finite(values: Tensor, what: str) -> Tensor:
    """Return `values`, which are `what`. Raises CurvatureUnavailable when one is not finite."""
    if not bool(torch.isfinite(values).all()):
        raise CurvatureUnavailable(f"{what} has entries that are not finite")
    return values


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a device's or the machine's memory was too little."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch's own on a CPU


def on_a_share() -> bool:
    """Whether this process may take a part of its card alone, so that there is more to be had."""
    return torch.cuda.is_available() and torch.cuda.get_per_process_memory_fraction() < 1


def graph_uses(outputs: Iterable[Tensor]) -> dict[Node, int]:
    """Return every node of the graph behind `outputs`, with the number of operations or outputs that use it."""
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
    """Return a node's name without namespace, e.g. `AddmmBackward0`, `AccumulateGrad`."""
    return node.name().split("::")[-1]


def cannot_differentiate(outputs: Iterable[Tensor]) -> bool:
    """Whether the graph behind `outputs` has an operation that autograd refuses to differentiate.

    A function marked `once_differentiable` leaves such a node. It has no way on to the parameters, so autograd
    would skip it without complaint and return a product that lacks its term.
    """
    return any(short_name(node) in ("Error", "DelayedError") for node in graph_uses(outputs))


def samples_mix(network: nn.Module, original: nn.Module, inputs: Tensor) -> bool:
    """Return whether a sample's logits depend on the others', of a few `inputs`, as with a batch's own statistics.

    Raises CurvatureUnavailable where `network` computes with the parameters of the `original` that it is a copy of, or
    gives other logits every time.
    """
    logits = network(inputs)
    if not isinstance(logits, Tensor):
        raise CurvatureUnavailable(f"the network returns a {type(logits).__name__}, not a tensor of logits [N, K]")
    if {*map(id, graph_leaves(logits))} & {*map(id, original.parameters())}:
        raise CurvatureUnavailable("a copy of the network computes with the original's parameters, not its own")
    if not _equal(network(inputs), logits):
        raise CurvatureUnavailable("the network gives other outputs every time, in evaluation mode, too")
    half = (len(inputs) + 1) // 2
    return not _equal(network(inputs[:half]), logits[:half])


def graph_leaves(output: Tensor) -> list[Tensor]:
    """Return the tensors that `output` can be differentiated by: those at the ends of its graph."""
    ends: list[Any] = [node for node in graph_uses([output]) if short_name(node) == "AccumulateGrad"]
    return [end.variable for end in ends]


def _equal(found: Tensor, expected: Tensor) -> bool:
    """Whether logits are the same but for rounding, which batches of other sizes do in another order."""
    tolerance = torch.finfo(expected.dtype).eps ** 0.5 * float(expected.detach().nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(found, expected, rtol=0.0, atol=tolerance, equal_nan=True)
