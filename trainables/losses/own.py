"""Users' own losses: a `Loss`, a function of logits and targets, or a module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from trainables.extensions.own import OwnFamily, described
from trainables.extensions.signature import hyperparameters_of
from trainables.losses.base import LOSSES, Loss, State
from trainables.registry import Component, ExtensionError, HyperparameterValue

PROBED_CLASSES = 3


def mean_of(found: object, targets: Tensor) -> Tensor:
    """Return the mean of [N] values, or the number that is given. Raises ValueError for anything else."""
    if isinstance(found, Tensor) and found.shape in ((), targets.shape):
        return found.mean()
    shown = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    raise ValueError(f"it returns {shown} for {len(targets)} samples; it must return one number or one per sample")


class FunctionLoss(Loss):
    """A function of (logits [N, K], targets [N]) with its hyperparameters, giving [N] values or their mean.

    Whether it is a mean of independent values is tested, not assumed: only then may batches be joined.
    """

    def __init__(
        self, function: Callable[..., Tensor], hyperparameters: Mapping[str, HyperparameterValue], path: str = ""
    ) -> None:
        """Keep the function; `path` is its import path, for messages."""
        self.name = path
        self._function, self._hyperparameters = function, dict(hyperparameters)
        self.batch_coupled = not self._has_independent_values()

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the [N] values. Raises TypeError where they depend on the whole batch."""
        if self.batch_coupled:
            return super().values(logits, targets)
        return self._function(logits, targets, **self._hyperparameters)

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar loss."""
        return mean_of(self._function(logits, targets, **self._hyperparameters), targets)

    def _has_independent_values(self) -> bool:
        """Return whether each sample has its own value, the same in every batch."""
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(6, PROBED_CLASSES, generator=generator, dtype=torch.float64)
        targets = torch.tensor([0, 1, 2, 2, 1, 0])
        try:
            whole = self._function(logits, targets, **self._hyperparameters)
            part = self._function(logits[:2], targets[:2], **self._hyperparameters)
        except Exception:
            return False  # one that takes other classes only; as a function of the whole batch it is right in any case
        shapes = isinstance(whole, Tensor) and whole.shape == (6,) and part.shape == (2,)
        return shapes and torch.allclose(whole[:2], part, rtol=1e-6, atol=0.0)


class ModuleLoss(Loss):
    """A `torch.nn.Module` whose `forward` takes (logits [N, K], targets [N]); its buffers are its state."""

    batch_coupled = True

    def __init__(self, module: nn.Module, path: str = "") -> None:
        """Keep the module. Raises ExtensionError when it has parameters, which nothing would train."""
        self.name = path
        learned = [name for name, _ in module.named_parameters()]
        if learned:
            raise ExtensionError(f"{path} has parameters ({', '.join(learned)}), but only the network is trained")
        self._module = module
        self.stateful = bool(module.state_dict())

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar loss."""
        return mean_of(self._module.to(logits.device)(logits, targets), targets)

    def begin_epoch(self, epoch: int, max_epochs: int) -> None:
        """Put the module into training mode."""
        self._module.train()

    def state_dict(self) -> State:
        """Return the module's buffers."""
        return {name: buffer.clone() for name, buffer in self._module.state_dict().items()}

    def restore(self, state: Mapping[str, object]) -> None:
        """Take the buffers over."""
        self._module.load_state_dict(dict(state))


def _loss(target: object, path: str, name: str) -> Component:
    build: Callable[..., Loss]
    leading: list[str] = []
    if isinstance(target, type) and issubclass(target, Loss):
        build = target
    elif isinstance(target, type) and issubclass(target, nn.Module):
        build = _module_loss(target, path)
    elif inspect.isfunction(target):
        build, leading = _function_loss(target, path), ["logits", "targets"]
    else:
        raise ExtensionError(
            f"{path} is {described(target)}; a loss is a subclass of trainables.losses.Loss, a torch.nn.Module class, "
            "or a function of (logits, targets)"
        )

    def named(**hyperparameters: HyperparameterValue) -> Loss:
        loss = build(**hyperparameters)
        loss.name = name  # a subclass of one of ours is not that one
        return loss

    return Component(name, named, hyperparameters_of(target, path, leading))


def _function_loss(function: Callable[..., Tensor], path: str) -> Callable[..., FunctionLoss]:
    return lambda **hyperparameters: FunctionLoss(function, hyperparameters, path)


def _module_loss(module: type[nn.Module], path: str) -> Callable[..., ModuleLoss]:
    return lambda **hyperparameters: ModuleLoss(module(**hyperparameters), path)


LOSSES.own = OwnFamily("losses", _loss)
