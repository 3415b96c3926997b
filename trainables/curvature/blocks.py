"""Curvature by layer: trace, λ_max and gradient norm of each diagonal block H_bb of a Hessian.

The blocks' traces sum to Tr(H). A probed trace is split by summing vᵀHv over the coordinates of each block, with the
same probes. An exact trace is split by layer, because each layer has its own inner products of logit gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trainables.curvature.hessian import HessianOperator, Surface, flatten, hessian_vector_product, split_like
from trainables.curvature.lanczos import Lanczos, Product, lanczos
from trainables.curvature.statistics.base import CurvatureSettings, Measurement
from trainables.curvature.trace import Products, TraceEstimate, estimate, probed_terms


class Blocks:
    """A partition of a network's parameters into named blocks.

    Attributes:
        members: block → indices of its parameters, in the network's order.
    """

    def __init__(self, surface: Surface, names: Mapping[str, str]) -> None:
        """Group trainable parameters by `names`, parameter name → block. Raises ValueError if a block is missing."""
        missing = [name for name in surface.names if name not in names]
        if missing:
            raise ValueError(f"blocks = {dict(names)} must name the block of every parameter; {missing[0]} has none")
        self._surface = surface
        self.members: dict[str, list[int]] = {}
        for number, name in enumerate(surface.names):
            self.members.setdefault(names[name], []).append(number)
        self._places = {name: place for place, name in enumerate(self.members)}
        self._owners = [self._places[names[name]] for name in surface.names]

    def sums(self, rows: Tensor) -> Tensor:
        """Sum `rows` [m, P] over each block and return [m, B]."""
        # Float64: float32 sums over millions of coordinates lose the digits that the standard errors need.
        totals = rows.new_zeros(len(rows), len(self.members), dtype=torch.float64)
        pieces = rows.split([p.numel() for p in self._surface.parameters], dim=1)
        for owner, piece in zip(self._owners, pieces, strict=True):
            totals[:, owner] += piece.double().sum(1)
        return totals

    def hutchinson(self, products: Products, known: Lanczos, probes: int, generator: torch.Generator) -> TraceEstimate:
        """Estimate Tr(H) as `trace.hutchinson` does, with one part per block from the same probes.

        Tr(P_b H) = Tr(P_b HQᵀQ) + E[wᵀP_b Hw] for the projection P_b on block b, since E[wwᵀ] = I − QᵀQ.
        """
        values, drawn = list[float](), list[Tensor]()
        for terms in probed_terms(products, known.basis, probes, generator):
            values += terms.sum(1).tolist()
            drawn.append(self.sums(terms))
        whole, parts = estimate(known, values), self.sums(known.basis * known.images).sum(0)
        if not drawn:
            return replace(whole, parts=tuple(parts.tolist()), part_errors=(0.0,) * len(parts))
        rest = torch.cat(drawn)
        errors = rest.std(0) / math.sqrt(len(rest))
        return replace(whole, parts=tuple((parts + rest.mean(0)).tolist()), part_errors=tuple(errors.tolist()))

    def part(self, vector: Tensor, block: str) -> Tensor:
        """Return the entries of `vector` [P] that belong to `block`."""
        pieces = vector.split([p.numel() for p in self._surface.parameters])
        return torch.cat([pieces[number] for number in self.members[block]])

    def exact_traces(self, operator: HessianOperator) -> tuple[float, ...]:
        """Return Σ_i ⟨H_z,i, J_b,i J_b,iᵀ⟩ per block, for a network that is affine in each parameter alone."""
        owners = {id(p): owner for p, owner in zip(self._surface.parameters, self._owners, strict=True)}
        traces = [0.0] * len(self.members)
        for index, chunk in enumerate(self._surface.chunks):
            curved = operator.logit_blocks(chunk)
            assert curved is not None, "an exact trace requires a loss that does not couple samples"
            for module, share in self._surface.shares(index).items():
                owner = next(owners[id(p)] for p in module.parameters(recurse=False) if id(p) in owners)
                traces[owner] += float((curved * share).double().sum())
        return tuple(traces)


def block_rows(
    measured: Measurement, blocks: Blocks, settings: CurvatureSettings, seed: int
) -> list[dict[str, object]]:
    """Return a table row per block: `layer` counted from 0, name, number of `parameters`, and its curvature.

    λ_max comes from Lanczos within the block, with its residual ‖H_bb v − λv‖/|λ|. Traces and their errors come from
    `parts` and `part_errors` of `measured.trace`.
    """
    operator = measured.operator
    traces = traces_by_block(measured, blocks, settings, seed)
    gradients = blocks.sums(operator.gradient[None].square())[0].sqrt().tolist()
    top, norm = measured.ends.top, max(float(operator.gradient.norm()), 1e-300)  # no division by a zero gradient
    rows: list[dict[str, object]] = []
    for layer, (name, numbers) in enumerate(blocks.members.items()):
        # The top Ritz vector of the whole network, restricted to the block, is already close to the block's top
        # eigenvector. A tenth of the gradient is added to reach eigenvectors orthogonal to it.
        start = blocks.part(top, name) + 0.1 * blocks.part(operator.gradient, name).to(top) / norm
        ends = lanczos(
            block_product(operator, numbers), start, steps=settings.block_steps, tolerance=settings.residual_tolerance,
            generator=torch.Generator().manual_seed(seed), arithmetic=operator.surface.arithmetic,
        )  # fmt: skip
        rows.append({
            "layer": layer, "block": name, "parameters": start.numel(), "trace": traces.parts[layer],
            "trace_se": traces.part_errors[layer], "lambda_max": ends.lambda_max, "residual": ends.relative_residual,
            "gradient_norm": gradients[layer], "samples": measured.samples,
        })  # fmt: skip
    return rows


def block_product(operator: HessianOperator, chosen: Sequence[int]) -> Product:
    """Return the product with the diagonal block for the parameters at indices `chosen`, on vectors of their length."""
    # Only the graph of these parameters is traversed, which is cheaper than a product with all of H.
    parameters = [operator.surface.parameters[number] for number in chosen]

    def product(vector: Tensor) -> Tensor:
        operator.products += 1
        result = torch.zeros_like(vector, dtype=torch.float64)
        pieces = split_like(vector, parameters)
        for gradients in operator.gradients():
            own = [gradients[number] for number in chosen]
            result += flatten(hessian_vector_product(own, parameters, pieces), parameters)
        return result

    return product


def traces_by_block(measured: Measurement, blocks: Blocks, settings: CurvatureSettings, seed: int) -> TraceEstimate:
    """Return the trace of `measured` with one part per block.

    A trace sketched sample by sample has no parts. Separate probes then estimate them, and the parts sum to the trace
    within their standard errors.
    """
    trace, operator = measured.trace, measured.operator
    if trace.parts:
        return trace
    if trace.probes == 0 and trace.standard_error == 0 and operator.surface.affine:
        return TraceEstimate(trace.value, 0.0, 0, blocks.exact_traces(operator), (0.0,) * len(blocks.members))
    generator = torch.Generator().manual_seed(seed)
    return blocks.hutchinson(operator.products_of, measured.ends, settings.trace_probes, generator)


def block_names(layers: Mapping[str, int]) -> dict[str, str]:
    """Return parameter name → layer name, given parameter name → layer number.

    A layer is named by its number and the common prefix of its parameters' names. Without a common prefix, the module
    of the first parameter gives the name.

    Example:
        >>> block_names({"stages.0.0.weight": 1, "stages.0.0.bias": 1})
        {'stages.0.0.weight': '1 stages.0.0', 'stages.0.0.bias': '1 stages.0.0'}
    """
    blocks: dict[str, str] = {}
    for number in sorted({*layers.values()}):
        own = [name for name, layer in layers.items() if layer == number]
        blocks |= dict.fromkeys(own, f"{number} {_common(own)}".strip())
    return blocks


def _common(names: Sequence[str]) -> str:
    parts = [name.split(".")[:-1] for name in names]
    shared = []
    for words in zip(*parts, strict=False):
        if len({*words}) > 1:
            break
        shared.append(words[0])
    return ".".join(shared or parts[0])
