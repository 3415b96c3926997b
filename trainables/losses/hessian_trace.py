"""Explicit curvature regularisation: a base loss plus the trace of its Hessian (curvature Eq. 33).

Training with it differentiates three times, so normalisation layers are composed of elementary operations. PyTorch's
second derivatives of batch normalisation in training mode and of layer normalisation treat the saved mean and variance
as constants, so a third derivative through them is wrong without a warning (torch 2.13: relative error 0.35 and 2.6 on
a two-layer network, compared with central differences). The third derivative of instance normalisation and the second
derivative of `weight_norm` are wrong, too. With elementary operations, derivatives of every order are right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trainables.curvature.hessian import hessian_vector_product
from trainables.curvature.trace import generator_on, random_signs
from trainables.losses.base import LOSSES, Loss, Number, State, as_type, build_loss, is_zero
from trainables.registry import BrokenRule, Hyperparameter, HyperparameterValue


class ComposedNormalisation(TorchFunctionMode):
    """Context in which batch, instance (training), layer and weight normalisation are elementary operations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace calls of these functions; leave all others unchanged."""
        return _COMPOSED.get(func, func)(*args, **(kwargs or {}))


def _batch_norm(
    inputs: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return `functional.batch_norm` of inputs [N, C, ...], and update the running statistics [C] as it does."""
    if not training:
        return functional.batch_norm(inputs, running_mean, running_var, weight, bias, training, momentum, eps)
    dimensions = [d for d in range(inputs.dim()) if d != 1]
    mean, variance = inputs.mean(dimensions), inputs.var(dimensions, unbiased=False)
    if running_mean is not None and running_var is not None:
        count = inputs.numel() // inputs.shape[1]
        # as torch does: batches are normalised by the biased variance, but the running one is unbiased
        with torch.no_grad():
            running_mean.mul_(1 - momentum).add_(momentum * mean.detach())
            unbiased = momentum * variance.detach() * (count / (count - 1))
            running_var.mul_(1 - momentum).add_(unbiased)
    shape = [1, -1, *[1] * (inputs.dim() - 2)]
    return _affine((inputs - mean.view(shape)) * (variance.view(shape) + eps).rsqrt(), weight, bias, shape)


def _layer_norm(
    inputs: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return `functional.layer_norm` of inputs [..., *normalized_shape]."""
    dimensions = list(range(-len(normalized_shape), 0))
    mean = inputs.mean(dimensions, keepdim=True)
    variance = inputs.var(dimensions, unbiased=False, keepdim=True)
    return _affine((inputs - mean) * (variance + eps).rsqrt(), weight, bias, list(normalized_shape))


def _instance_norm(
    inputs: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return `functional.instance_norm` of inputs [N, C, ...], and update the running statistics [C] as it does."""
    if not use_input_stats:
        return functional.instance_norm(inputs, running_mean, running_var, weight, bias, False, momentum, eps)
    dimensions = list(range(2, inputs.dim()))
    mean, variance = inputs.mean(dimensions, keepdim=True), inputs.var(dimensions, unbiased=False, keepdim=True)
    if running_mean is not None and running_var is not None:
        count = inputs[0, 0].numel()
        with torch.no_grad():
            running_mean.mul_(1 - momentum).add_(momentum * mean.flatten(1).mean(0))
            running_var.mul_(1 - momentum).add_(momentum * variance.flatten(1).mean(0) * (count / (count - 1)))
    shape = [1, -1, *[1] * (inputs.dim() - 2)]
    return _affine((inputs - mean) * (variance + eps).rsqrt(), weight, bias, shape)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Return g·v/‖v‖, with norms over all dimensions except `dim`; over all for −1."""
    over = [d for d in range(v.dim()) if d != dim]
    norms: Tensor = torch.linalg.vector_norm(v, dim=over, keepdim=True)
    return v * (g / norms)


def _affine(normalised: Tensor, weight: Tensor | None, bias: Tensor | None, shape: list[int]) -> Tensor:
    scaled = normalised if weight is None else normalised * weight.view(shape)
    return scaled if bias is None else scaled + bias.view(shape)


# `torch._weight_norm` is private, but both forms of `weight_norm` compute with it.
_COMPOSED: dict[Any, Any] = {
    functional.batch_norm: _batch_norm, functional.layer_norm: _layer_norm,
    functional.instance_norm: _instance_norm, torch._weight_norm: _weight_norm,
}  # fmt: skip


Value = TypeVar("Value")
BASE_HYPERPARAMETERS = ("gamma", "alpha", "p0", "smoothing")  # passed to the base loss if given


class HessianTrace(Loss):
    """base + τ·Tr(H), with H the Hessian of the mini-batch base loss in all trainable parameters (curvature Eq. 33).

    Tr(H) is estimated without bias by M Rademacher probes, (1/M) Σ_m v_mᵀ H v_m (Hutchinson), and differentiated
    again. The probes have their own random generator, so they change no other random number. GPUs draw them from seeds
    of this generator: equal seeds give equal probes on GPUs of the same type, but a GPU and a CPU have different
    probes.

    Raises:
        ValueError: the base loss couples samples or needs the model.

    Example:
        >>> model, inputs, targets = nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])
        >>> plain, more = (build_loss("hessian_trace", weight=w, probes=8)(model, inputs, targets) for w in (0.0, 0.1))
        >>> bool(more > plain)  # the Hessian of a linear model is positive semidefinite
        True
    """

    name = "hessian_trace"
    needs_model = True
    stateful = True

    def __init__(self, base: Loss, weight: Number = 1e-2, probes: int = 1, seed: int = 0) -> None:
        if base.batch_coupled or base.needs_model:
            raise ValueError(refusal(base.name))
        self.base = base
        self.weight = weight
        self.probes = probes
        self.generator = torch.Generator()
        self.reseed(seed)

    def __call__(  # type: ignore[override]  # it takes the model, as `needs_model` says
        self, model: nn.Module, inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Return base + τ·Tr(H) for `model(inputs)` → [N, K], targets [N] and weights [N]; one forward pass.

        Raises:
            ValueError: the model has no trainable parameter.
        """
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("hessian_trace needs a model with trainable parameters; this one has none")
        if is_zero(self.weight):  # τ = 0 is the base loss, at its cost
            return self.base(model(inputs), targets, weights)
        with ComposedNormalisation():
            value = self.base(model(inputs), targets, weights)
        # a parameter that the network does not use has gradient `None`, which `inner` counts as 0
        gradients = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
        trace = torch.zeros_like(value)
        for _ in range(self.probes):
            probe = self._signs(parameters)
            trace = trace + inner(hessian_vector_product(gradients, parameters, probe, training=True), probe)
        return value + as_type(self.weight, value) * trace / self.probes

    def draw(self, parameters: Sequence[Tensor]) -> list[list[Tensor]]:
        """Draw M probes of ±1 shaped like `parameters` from the generator."""
        return [self._signs(parameters) for _ in range(self.probes)]

    def reseed(self, seed: int) -> None:
        """Seed the generator of the probes."""
        self.generator.manual_seed(seed)

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return the base loss, frozen at these logits."""
        return self.base.frozen(logits, targets)

    def begin_epoch(self, epoch: int, max_epochs: int) -> None:
        """Begin the epoch of the base loss."""
        self.base.begin_epoch(epoch, max_epochs)

    def end_epoch(self, val_logits: Tensor, val_targets: Tensor) -> None:
        """End the epoch of the base loss."""
        self.base.end_epoch(val_logits, val_targets)

    def state_dict(self) -> State:
        """Return the state of the generator, and that of the base loss under keys with the prefix `base.`."""
        own: State = {"generator": self.generator.get_state()}
        return own | {f"base.{key}": value for key, value in self.base.state_dict().items()}

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore the states of the generator and of the base loss."""
        # the state of a CPU generator is a CPU tensor, wherever the checkpoint was loaded to
        self.generator.set_state(torch.as_tensor(state["generator"]).cpu())
        self.base.load_state_dict({k.removeprefix("base."): v for k, v in state.items() if k != "generator"})

    def _signs(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Draw ±1 in the shape of each parameter, on its device: a GPU must not wait for a CPU core."""
        generator = generator_on(parameters[0].device, self.generator)
        return [random_signs(p.shape, p, generator) for p in parameters]


def inner(left: Iterable[Tensor | None], right: Iterable[Tensor]) -> Tensor:
    """Return the inner product of two sequences of tensors, summed over all entries; `None` stands for zeros."""
    products = [(a * b).sum() for a, b in zip(left, right, strict=True) if a is not None]
    total: Tensor = sum(products)  # type: ignore[assignment]  # there is at least one
    return total


def refusal(name: str) -> str:
    """Return the error for a base loss that cannot be wrapped."""
    return (
        f"hessian_trace cannot wrap {name}: its Hessian needs a loss that is a mean over independent samples; "
        "choose a base such as cross_entropy or focal"
    )


def check_base(values: Mapping[str, object]) -> BrokenRule | None:
    """Return the error for an invalid base loss or hyperparameter of it, or `None`."""
    name = str(values.get("base", "cross_entropy"))
    # a user's loss that is trusted is not imported here: `HessianTrace` checks it when it is built
    if LOSSES.trusts(name):
        return None
    unknown = LOSSES.fault(name)
    if unknown:
        return "base", f"base: {unknown}"
    if LOSSES[name].tags & {"batch_coupled", "needs_model"}:
        return "base", refusal(name)
    faults = LOSSES[name].faults(base_hyperparameters(values))
    return ("base", "; ".join(faults)) if faults else None


def base_hyperparameters(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the hyperparameters among `values` that are passed to the base loss."""
    return {key: values[key] for key in BASE_HYPERPARAMETERS if values.get(key) is not None}


@LOSSES.add(
    "hessian_trace",
    more=[
        Hyperparameter(key, source=f"passed to the base loss, which uses its own default if {key} is not given")
        for key in BASE_HYPERPARAMETERS
    ],
    check=check_base,
    tags={"needs_model", "stateful", "third_order"},
)
def build(
    base: Annotated[str, Hyperparameter(names="loss")] = "cross_entropy",
    weight: Annotated[Number, "[0, inf)", Hyperparameter(quantity="tau")] = 1e-2,
    probes: Annotated[int, "[1, inf)"] = 1,
    seed: Annotated[int, "[0, inf)"] = 0,
    **of_base: HyperparameterValue | Tensor,
) -> HessianTrace:
    """A base loss plus the trace of its Hessian, by Hutchinson probes and double backward.

    base + τ·Tr(H), with the loss registered as `base` and the hyperparameters among `of_base` that it takes.

    Source: curvature Eq. 33.

    Args:
        base: [curvature Eq. 33: cross-entropy].
        weight: a negative weight would reward sharp minima without bound [curvature App.: τ is searched from
            1e-5 to 1; 1e-2 is about the middle].
        probes: the trace is estimated from at least one probe [one probe a step is unbiased; each costs about
            two more backward passes].
        seed: seeds are not negative [0 by convention].
    """
    return HessianTrace(build_loss(base, **base_hyperparameters(of_base)), weight, probes, seed)
