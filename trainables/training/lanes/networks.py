"""The lanes' networks: parameters, forward pass, training step and prediction for all lanes together.

One row of a matrix holds all parameters of a lane. The parameters of the lane's network are views into this row.
Perceptrons are written out as matrix products. Each lane starts at a multiple of 64 bytes in their buffers, so a lane's
bits depend neither on its index nor on the number of lanes. Other networks are mapped, forward and backward, over all
lanes of the cohort. Idle lanes are included, because the number of lanes determines the order of addition in
convolutions. Mapping costs tens of microseconds per operation, as much as a small network's arithmetic. Functions that
draw random numbers, and embeddings with a padding row, need replacements under `torch.func.vmap` to compute as they
would alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trainables.extensions.libraries import vector_jacobian
from trainables.losses.hessian_trace import ComposedNormalisation
from trainables.training.acceleration import BFLOAT16, CannotCompileError, TrainingSettings, training_forward

#: Multiple of elements at which each parameter starts in its row. The rounding of a matrix product also depends on the
#: operands' addresses modulo 64 bytes; with this, they are equal for all lanes, so bits do not depend on the lane's
#: index.
ALIGNMENT = 64


class LaneStore:
    """Parameters, gradients and optimiser memory [W, P] and buffers [W, ...] for up to W lanes.

    Parameters and buffers of a lane's network become views into its row, so changes are visible in both.

    Attributes:
        width: number of lanes W.
        values: parameters [W, P], padded with zeros in between.
        gradients: gradients [W, P], padded with zeros in between.
        parameters: parameter name → view [W, *shape] into `values`.
        slopes: parameter name → view [W, *shape] into `gradients`.
        memories: optimiser memory by torch's name [W, P].
        fixed: buffers and frozen parameters by name [W, ...].
    """

    def __init__(self, template: nn.Module, width: int) -> None:
        """Allocate `width` lanes for the template's architecture, with its dtypes and device."""
        self.width = width
        self._places: dict[str, tuple[int, torch.Size]] = {}
        end = 0
        trained = {name: p for name, p in template.named_parameters() if p.requires_grad}
        for name, parameter in trained.items():
            self._places[name] = end, parameter.shape
            end += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        like = next(iter(trained.values()))
        self.values, self.gradients = (torch.zeros(width, end, dtype=like.dtype, device=like.device) for _ in range(2))
        self.parameters, self.slopes = self.views(self.values), self.views(self.gradients)
        self.memories: dict[str, Tensor] = {}
        kept: dict[str, Tensor] = {name: p for name, p in template.named_parameters() if not p.requires_grad}
        kept.update(template.named_buffers())
        self.fixed = {name: tensor.detach().new_zeros((width, *tensor.shape)) for name, tensor in kept.items()}

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return parameter name → view [L, *shape] into `flat` [L, P]."""
        return {
            name: flat[:, at : at + prod(shape)].view(len(flat), *shape) for name, (at, shape) in self._places.items()
        }

    def take(self, lane: int, model: nn.Module) -> None:
        """Copy a network's parameters and buffers into row `lane` and make them views of that row."""
        # The row can still hold a lane that left. Its padding must be 0, too, because gradient norms include it.
        self.values[lane] = self.gradients[lane] = 0
        for memory in self.memories.values():
            memory[lane] = 0
        for name, stacked in {**self.parameters, **self.fixed}.items():
            own = _tensor(model, name)
            stacked[lane].copy_(own.detach())
        self.show(lane, model)

    def show(self, lane: int, model: nn.Module) -> None:
        """Make a network's parameters and buffers views of row `lane`."""
        # Assigning `data` keeps the Parameter objects, which the optimiser's state uses as keys.
        for name, stacked in {**self.parameters, **self.fixed}.items():
            _tensor(model, name).data = stacked[lane]

    def move(self, source: int, target: int, model: nn.Module) -> None:
        """Move a lane and its network from row `source` to row `target`."""
        for flat in (self.values, self.gradients, *self.memories.values(), *self.fixed.values()):
            flat[target] = flat[source]
        self.show(target, model)

    def release(self, model: nn.Module) -> None:
        """Copy a network's parameters and buffers out of its row, which is then free."""
        for name in (*self.parameters, *self.fixed):
            own = _tensor(model, name)
            own.data = own.detach().clone()

    @torch.no_grad()
    def take_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Store the first lanes' gradients [L, ...] of all parameters, in order; `None` stands for zeros."""
        for place, gradient in zip(self.slopes.values(), gradients, strict=True):
            place.zero_() if gradient is None else place[: len(gradient)].copy_(gradient)

    def memory_of(self, lane: int, name: str, keys: Sequence[str]) -> dict[str, Tensor]:
        """Return copies of the optimiser's memory for a lane's parameter, by key."""
        at, shape = self._places[name]
        return {key: self.memories[key][lane, at : at + prod(shape)].view(shape).clone() for key in keys}

    def remember(self, lane: int, name: str, key: str, value: Tensor) -> None:
        """Store an optimiser's memory for a lane's parameter."""
        at, shape = self._places[name]
        self.memories[key][lane, at : at + prod(shape)] = value.reshape(-1).to(self.values)


def _tensor(model: nn.Module, name: str) -> Tensor:
    owner, _, attribute = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(owner), attribute)
    return tensor


#: Function per lane that returns a context in which torch's global generator has that lane's state.
Turns = Sequence[Callable[[], AbstractContextManager[object]]]

#: Parameters and buffers of all lanes by name [L, ...].
Weights = Mapping[str, Tensor]

_WRITTEN_OUT = (nn.Flatten, nn.Linear, nn.ReLU)


def lane_forward(network: nn.Module, turns: Turns) -> Callable[[Weights, Tensor, bool], Tensor]:
    """Return an architecture's function from weights, inputs and a flag to logits.

    The flag says if inputs differ by lane.

    Args:
        network: network with the architecture, called in its current mode (training or evaluation).
        turns: contexts with the lanes' generators, for dropout.
    """
    if isinstance(network, nn.Sequential) and all(type(layer) in _WRITTEN_OUT for layer in network):
        return lambda weights, inputs, by_lane: _perceptron(network, weights, inputs, by_lane)
    helped = needs_lane_functions(network)

    def one(weights: Weights, inputs: Tensor) -> Tensor:
        logits: Tensor = functional_call(network, dict(weights), (inputs,))
        return logits

    def mapped(weights: Weights, inputs: Tensor, by_lane: bool) -> Tensor:
        # Other random operations must not draw the same numbers in all lanes.
        lanes = vmap(one, in_dims=(0, 0 if by_lane else None), randomness="different")
        # The replacements cost a microsecond per function call, so they are installed only if needed.
        with LaneFunctions(turns) if helped and network.training else nullcontext():
            logits: Tensor = lanes(weights, inputs)
        return logits

    return mapped


def _perceptron(network: nn.Sequential, weights: Weights, inputs: Tensor, by_lane: bool) -> Tensor:
    """Return the logits of a stack of linear layers and ReLUs, computed by batched matrix products."""
    hidden = inputs
    for name, layer in network.named_children():
        if isinstance(layer, nn.Flatten):
            hidden = hidden.flatten(2 if by_lane else 1)
        elif isinstance(layer, nn.ReLU):
            hidden = torch.relu(hidden)
        else:
            weight, bias = weights[f"{name}.weight"].transpose(1, 2), weights.get(f"{name}.bias")
            rows = hidden if hidden.dim() == 3 else hidden.expand(len(weight), -1, -1)
            hidden = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight)
    return hidden


class _Draw(torch.autograd.Function):
    """Calls `draw(lane)` for each lane of a tensor with that lane's generator; works only under one `vmap`."""

    generate_vmap_rule = False

    @staticmethod
    def forward(inputs: Tensor, draw: Callable[[Tensor], Tensor], turns: Turns) -> Tensor:
        raise RuntimeError("random numbers for lanes can only be drawn under vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, inputs: Tensor, draw: Callable[[Tensor], Tensor], turns: Turns
    ) -> tuple[Tensor, int]:
        lanes = inputs.movedim(in_dims[0], 0).unbind() if in_dims[0] is not None else [inputs] * len(turns)
        drawn = []
        for lane, turn in zip(lanes, turns, strict=True):
            with turn():
                drawn.append(draw(lane))
        return torch.stack(drawn), 0


def _drawn(inputs: Tensor, draw: Callable[[Tensor], Tensor], turns: Turns) -> Tensor:
    """Return `draw(lane)` for each lane of `inputs`, stacked."""
    drawn: Tensor = _Draw.apply(inputs, draw, turns)  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
    return drawn


class LaneFunctions(TorchFunctionMode):
    """Within this context, some functions compute under `vmap` as they do for one network.

    Dropout and the Bernoulli draws of stochastic depth use each lane's own generator. An embedding's padding row gets
    no gradient, a rule that `vmap` does not apply.
    """

    def __init__(self, turns: Turns) -> None:
        """Draw for lane l within the context `turns[l]()`."""
        super().__init__()
        self._turns = turns

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace calls of these functions and pass all other calls on."""
        if func is functional.dropout:
            return self._dropout(*args, **(kwargs or {}))
        if func is torch.Tensor.bernoulli_:
            return self._bernoulli(*args, **(kwargs or {}))
        if func is functional.embedding:
            return _embedding(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _dropout(self, inputs: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return inputs
        # Dropout of ones gives the factors 0 or 1/(1 − p), from the same random numbers as dropout of the inputs.
        factors = _drawn(inputs.detach(), lambda lane: functional.dropout(torch.ones_like(lane), p), self._turns)
        return inputs * factors

    def _bernoulli(self, place: Tensor, p: float = 0.5) -> Tensor:
        return place.copy_(_drawn(place, lambda lane: torch.empty_like(lane).bernoulli_(p), self._turns))


def _embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None, *others: Any, **named: Any) -> Tensor:
    rows = functional.embedding(indices, weight, padding_idx, *others, **named)
    if padding_idx is None:
        return rows
    # `detach` stops the gradient at padding tokens, as torch's own backward does.
    padding = padding_idx if padding_idx >= 0 else len(weight) + padding_idx
    return torch.where((indices == padding).unsqueeze(-1), rows.detach(), rows)


def needs_lane_functions(model: nn.Module) -> bool:
    """Return whether a network uses dropout or stochastic depth in training, or an embedding with padding.

    Example:
        >>> needs_lane_functions(nn.Sequential(nn.Dropout(0.5))), needs_lane_functions(nn.Linear(1, 1))
        (True, False)
    """
    return any(
        (isinstance(module, nn.Dropout) and module.p > 0)
        or getattr(module, "drop_prob", 0)  # timm's stochastic depth
        or (isinstance(module, nn.Embedding) and module.padding_idx is not None)
        for module in model.modules()
    )


#: Function from logits [L, B, K] to the gradients of the lanes' losses by them [L, B, K].
Slopes = Callable[[Tensor], Tensor]


def networks_of(
    shell: nn.Module, store: LaneStore, turns: Turns, training: TrainingSettings
) -> Perceptrons | MappedNetworks:
    """Return the networks with the architecture of `shell` and the parameters in `store`.

    Raises CannotCompileError if compilation is requested and each lane draws its own random numbers.
    """
    if training.compile and needs_lane_functions(shell):
        raise CannotCompileError(
            "compile = true does not support lanes with dropout, stochastic depth or padded embeddings; choose "
            "packing: sequential, or compile: false"
        )
    if is_perceptron(shell) and not training.compile and training.precision != BFLOAT16:
        return Perceptrons(shell, store)
    return MappedNetworks(shell, store, turns, training)


def is_perceptron(network: nn.Module) -> bool:
    """Return whether a network consists only of trainable linear layers with ReLUs in between.

    Example:
        >>> is_perceptron(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
        True
    """
    if not isinstance(network, nn.Sequential) or not all(type(layer) in _WRITTEN_OUT for layer in network):
        return False
    kinds = [type(layer) for layer in network if not isinstance(layer, nn.Flatten)]
    alternate = kinds[::2] == [nn.Linear] * len(kinds[::2]) and kinds[1::2] == [nn.ReLU] * len(kinds[1::2])
    trained = all(parameter.requires_grad for parameter in network.parameters())
    return trained and alternate and kinds[-1:] == [nn.Linear] and next(network.buffers(), None) is None


class Perceptrons:
    """Stacks of linear layers and ReLUs: matrix products batched over lanes, with gradients written out.

    Attributes:
        elastic: whether a lane's bits are independent of the number of lanes, so that idle lanes can be left out.
    """

    elastic = True

    def __init__(self, shell: nn.Module, store: LaneStore) -> None:
        """Compute with the parameters in `store`."""
        self._store = store
        self._layers = [name for name, layer in shell.named_children() if isinstance(layer, nn.Linear)]
        self._buffers: dict[tuple[object, ...], Tensor] = {}

    @torch.no_grad()
    def backward(self, inputs: Tensor, slopes: Slopes) -> None:
        """Write the gradients at inputs [L, B, ...] to the store."""
        lanes = len(inputs)
        hidden = [inputs.flatten(2)]
        for depth, name in enumerate(self._layers):
            hidden.append(self._linear(name, depth, hidden[-1], lanes, last=depth == len(self._layers) - 1))
        with torch.enable_grad():
            slope = self._buffer("slope", hidden[-1].shape).copy_(slopes(hidden[-1]))
        for depth in reversed(range(len(self._layers))):
            name, below = self._layers[depth], hidden[depth]
            torch.bmm(slope.transpose(1, 2), below, out=self._store.slopes[f"{name}.weight"][:lanes])
            if f"{name}.bias" in self._store.slopes:
                torch.sum(slope, 1, out=self._store.slopes[f"{name}.bias"][:lanes])
            if depth:
                weight = self._store.parameters[f"{name}.weight"][:lanes]
                passed = torch.bmm(slope, weight, out=self._buffer(("back", depth), below.shape))
                # The gradient is 0 where the ReLU output 0; this fused operation works in place.
                slope = torch.ops.aten.threshold_backward.grad_input(passed, below, 0, grad_input=passed)

    @torch.no_grad()
    def predict(self, inputs: Tensor, lanes: int) -> Tensor:
        """Return the first lanes' logits [L, B, K] for shared inputs [B, ...], in evaluation mode."""
        hidden = inputs.flatten(1).expand(lanes, -1, -1)
        for depth, name in enumerate(self._layers):
            hidden = self._linear(name, depth, hidden, lanes, last=depth == len(self._layers) - 1)
        return hidden.clone()  # the buffer is overwritten by the next call

    def _linear(self, name: str, depth: int, rows: Tensor, lanes: int, *, last: bool) -> Tensor:
        weight = self._store.parameters[f"{name}.weight"][:lanes].transpose(1, 2)
        place = self._buffer(("forward", depth), torch.Size((lanes, rows.shape[1], weight.shape[2])))
        bias = self._store.parameters.get(f"{name}.bias")
        if bias is None:
            torch.bmm(rows, weight, out=place)
        else:
            torch.baddbmm(bias[:lanes].unsqueeze(1), rows, weight, out=place)
        return place if last else place.relu_()

    def _buffer(self, name: object, shape: torch.Size) -> Tensor:
        """Return a buffer [L, B, D] whose lanes start at multiples of 64 bytes.

        Equal arguments return the same buffer.
        """
        key = (name, *shape)
        if key not in self._buffers:
            size = prod(shape[1:])
            flat = self._store.values.new_empty(shape[0], -(-size // ALIGNMENT) * ALIGNMENT)
            self._buffers[key] = flat[:, :size].view(shape)
        return self._buffers[key]


class MappedNetworks:
    """Any network, mapped by `torch.func.vmap` and differentiated by autograd."""

    elastic = False

    def __init__(self, shell: nn.Module, store: LaneStore, turns: Turns, training: TrainingSettings) -> None:
        """Compute with the parameters in `store`, and with the arithmetic of `training` in training steps."""
        self._shell, self._store = shell, store
        self._forward = lane_forward(shell, turns)
        self._training_forward = training_forward(self._forward, training, store.values.device)
        self._weights = leaves_of(store, store.width)

    def backward(self, inputs: Tensor, slopes: Slopes) -> None:
        """Write the gradients at inputs [W, B, ...] to the store."""
        self._shell.train()
        # The leaves share memory with the store, so they are made once and always have the current values.
        leaves = self._weights
        logits = self._training_forward({**leaves, **self._store.fixed}, inputs, True)
        gradients = vector_jacobian(logits, list(leaves.values()), slopes(logits.detach()), allow_unused=True)
        self._store.take_gradients(gradients)

    @torch.no_grad()
    def predict(self, inputs: Tensor, lanes: int) -> Tensor:
        """Return the first lanes' logits [L, B, K] for shared inputs [B, ...], in evaluation mode."""
        self._shell.eval()
        return self._forward({**self._store.parameters, **self._store.fixed}, inputs, False)[:lanes]


def leaves_of(store: LaneStore, lanes: int) -> dict[str, Tensor]:
    """Return the first lanes' parameters as graph leaves that share memory with the store."""
    return {name: stacked[:lanes].detach().requires_grad_() for name, stacked in store.parameters.items()}


def differentiable(
    shell: nn.Module, store: LaneStore, turns: Turns, inputs: Tensor, *, thrice: bool
) -> tuple[Tensor, list[Tensor]]:
    """Return logits [L, B, K] with their graph and its leaves, for losses that need the network itself."""
    shell.train()
    leaves = leaves_of(store, len(inputs))
    fixed = {name: stacked[: len(inputs)] for name, stacked in store.fixed.items()}
    with ComposedNormalisation() if thrice else nullcontext():
        return lane_forward(shell, turns)({**leaves, **fixed}, inputs, True), [*leaves.values()]
