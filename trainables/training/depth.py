"""Layers of a network by their depth: some are held as they are, and each learns at its own rate.

A network of timm numbers its layers itself (`group_matcher`), as its own layer-wise decay does. Of any other, the
blocks of its stages follow one another, and a norm belongs to the layer before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

STAGES = (nn.Sequential, nn.ModuleList)


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """Return parameter's name → number of its layer, counted from 0 at the input; the highest is the head's."""
    matcher: Any = getattr(model, "group_matcher", None)
    if matcher is not None:
        from timm.models import group_parameters

        numbers: dict[str, int] = group_parameters(model, matcher(coarse=False), reverse=True)
        return numbers
    found: dict[str, int] = {}
    last = 0
    for prefix, block in _blocks(model, whole=True):
        names = [f"{prefix}{name}" for name, _ in block.named_parameters()]
        if found and _has_matrix(block):
            last += 1
        found |= dict.fromkeys((name for name in names if name not in found), last)
    # those that belong to no block, as a class token does, enter at the input
    return {name: found.get(name, 0) for name, _ in model.named_parameters()}


def _blocks(module: nn.Module, prefix: str = "", *, whole: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of `module`, each with its name's prefix; `whole`: of a network, not of a part of one."""
    for name, child in module.named_children():
        divided = whole and (_is_stack(child) or any(_is_stage(part) for part in child.children()))
        if divided or _is_stage(child):
            yield from _blocks(child, f"{prefix}{name}.")
        elif next(child.parameters(), None) is not None:
            yield f"{prefix}{name}.", child


def _is_stage(module: nn.Module) -> bool:
    """Return whether a module is a sequence of blocks, rather than of single operations."""
    return isinstance(module, STAGES) and any(next(part.children(), None) is not None for part in module)


def _is_stack(module: nn.Module) -> bool:
    """Return whether a module is a sequence of several convolutions or linear layers, as VGG's is."""
    return isinstance(module, STAGES) and sum(_has_matrix(part) for part in module) > 1


def _has_matrix(module: nn.Module) -> bool:
    return any(parameter.dim() > 1 for parameter in module.parameters())


def freeze_layers(model: nn.Module, count: int) -> None:
    """Hold the first `count` layers as they are: their parameters are not trained.

    Raises:
        ValueError: nothing would be left to train.
    """
    numbers = layer_numbers(model)
    layers = max(numbers.values(), default=-1) + 1
    if count >= layers:
        raise ValueError(f"freeze = {count} leaves nothing to train of {layers} layers; choose at most {layers - 1}")
    for name, parameter in model.named_parameters():
        if numbers[name] < count:
            parameter.requires_grad_(False)


def hold_frozen(model: nn.Module) -> None:
    """Let what is frozen compute as in evaluation: batch norms by their statistics, which stay, and without dropout."""
    for module in model.modules():
        parameters = [*module.parameters()]
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


def scale_by_depth(model: nn.Module, optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Divide the optimiser's parameters into groups whose rate falls towards the input: `lr_scale` of each group.

    Layer l of 0 … L learns at decay^(L − l) of the rate (Clark et al. 2020, arXiv:2003.10555, app. A.7; BEiT, Bao et
    al. 2022, arXiv:2106.08254, app. H). Unlike theirs, every parameter keeps the recipe's weight decay.

    Args:
        model: the network.
        optimizer: of its trainable parameters, before its first step.
        decay: in (0, 1].
    """
    numbers = layer_numbers(model)
    head = max(numbers.values())
    (plain,) = optimizer.param_groups
    held: dict[int, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            held.setdefault(numbers[name], []).append(parameter)
    options = {key: value for key, value in plain.items() if key != "params"}
    optimizer.param_groups.clear()
    for number, parameters in sorted(held.items()):
        optimizer.add_param_group({**options, "params": parameters, "lr_scale": decay ** (head - number)})
