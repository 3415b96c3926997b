"""Walking the graph of operations that autograd has recorded."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.autograd.graph import Node


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
