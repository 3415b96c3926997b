"""What a measurement looks at before it believes a network's derivatives: whose parameters, and which samples.

Errors are raised as they come, and `CurvatureUnavailable` where the derivatives would be of something else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainables.curvature.failures import CurvatureUnavailable, graph_uses, short_name


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
