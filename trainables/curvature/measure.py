"""A curvature measurement: what to measure, how hard to try, and every statistic of each Hessian as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from trainables.curvature.failures import memory_failures
from trainables.curvature.hessian import HessianOperator, LossFunction
from trainables.curvature.lanczos import Lanczos, gradient_start, lanczos
from trainables.curvature.statistics import STATISTICS
from trainables.curvature.statistics.base import LOSS_WORDS, Measurement
from trainables.curvature.surface import Surface, second_order
from trainables.curvature.trace import Effort, TraceEstimate, hutch_plus_plus, hutchinson, per_sample_trace
from trainables.registry import Hyperparameter
from trainables.registry.names import did_you_mean

LOSS_LABELS = tuple(LOSS_WORDS)
TRACE_METHODS = ("auto", "hutchinson", "hutch++")

_RULES = {
    rule.name: rule
    for rule in (
        Hyperparameter("samples", "integer", None, 1, reason="curvature is a mean over at least one sample"),
        Hyperparameter("lanczos_steps", "integer", 32, 1, reason="each step is one Hessian-vector product"),
        Hyperparameter("trace_method", "text", "auto", choices=TRACE_METHODS),
        Hyperparameter("trace_probes", "integer", 8, 2, reason="a standard error needs two probes"),
        Hyperparameter("trace_precision", "number", None, 0, 1, open_minimum=True, reason="a relative standard error"),
        Hyperparameter("max_matvecs", "integer", 256, 3, reason="one product for the eigenvalues and two probes"),
        Hyperparameter("residual_tolerance", "number", 1e-3, 0, 1, reason="a residual relative to the eigenvalue"),
        Hyperparameter("spectrum", "boolean", False),
        Hyperparameter("spectrum_steps", "integer", 32, 1, reason="each step is one Hessian-vector product a probe"),
        Hyperparameter("vectors_per_pass", "integer", 1, 1, reason="a pass takes at least one vector"),
        Hyperparameter("batch_size", "integer", 128, 1, reason="a batch holds at least one sample"),
    )
}


@dataclass(frozen=True)
class CurvatureSettings:
    """Settings of one curvature measurement; `from_mapping` checks them all at once.

    Attributes:
        samples: how many samples of the split, evenly spaced; `None` takes all. Values of different
            `samples` must never be compared: a subset is biased, not only noisy.
        lanczos_steps: the most Hessian-vector products that Lanczos takes for one loss.
        trace_method: `auto` takes the exact trace where the network allows it and probes elsewhere;
            `hutchinson` and `hutch++` force an estimator.
        trace_probes: probes of an estimated trace when no precision is asked for.
        trace_precision: the relative standard error to reach, e.g. 0.02; `None` takes `trace_probes` probes.
        max_matvecs: the most products for one loss, Lanczos and trace together.
        residual_tolerance: Lanczos stops when ‖Hv − λv‖ ≤ tolerance·|λ| for λ_max, and ≤ tolerance·‖H‖ for λ_min.
        losses: which losses to measure; names from `LOSS_LABELS`.
        spectrum: also measure the spectral density for the report.
        spectrum_steps: the Hessian-vector products of each of its two probes, for each loss; 32 resolve the edges and
            the gap beside the bulk at a third of what Ghorbani, Krishnan & Xiao 2019 spend on theirs (§2: about 90).
        batch_size: the fixed partition over which a batch-coupled loss is taken, and the fewest samples in a pass.
        vectors_per_pass: how many probes share a traversal of the graph (by vmap). On a CPU it gains nothing (23 to
            28 ms a product on resnet8 against 24 ms), and it multiplies the products' memory.
    """

    samples: int | None = None
    lanczos_steps: int = 32
    trace_method: str = "auto"
    trace_probes: int = 8
    trace_precision: float | None = None
    max_matvecs: int = 256
    residual_tolerance: float = 1e-3
    losses: tuple[str, ...] = LOSS_LABELS
    spectrum: bool = False
    spectrum_steps: int = 32
    batch_size: int = 128
    vectors_per_pass: int = 1

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> CurvatureSettings:
        """Return the settings in `values`. Raises ValueError naming every rule that is broken."""
        found = settings_faults(values)
        if found:
            raise ValueError("; ".join(found))
        given = dict(values)
        if "losses" in given:
            given["losses"] = tuple(given["losses"])
        return cls(**given)


def settings_faults(values: Mapping[str, object]) -> list[str]:
    """Return every rule that the mapping `evaluation.curvature` breaks, one sentence each."""
    known = tuple(field.name for field in fields(CurvatureSettings))
    found = [f"curvature takes no setting {key!r}{did_you_mean(str(key), known)}" for key in values if key not in known]
    for name, rule in _RULES.items():
        fault = rule.fault(values[name]) if name in values else None
        found += [fault] if fault else []
    losses = values.get("losses", LOSS_LABELS)
    if not isinstance(losses, (list, tuple)) or not losses or not set(map(str, losses)) <= set(LOSS_LABELS):
        found.append(f"losses = {losses!r} must be a list of {' and '.join(LOSS_LABELS)}")
    return found


def measure_curvature(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    losses: Mapping[str, LossFunction],
    *,
    settings: CurvatureSettings,
    seed: int,
) -> dict[str, dict[str, float]]:
    """Measure the Hessian H of each mean loss over the data, at the model's parameters and over all trainable ones.

    The network is evaluated in eval mode. The model, its flags and all random state stay as they are, and the result
    depends on the arguments alone.

    Args:
        model: maps inputs [N, …] to logits [N, K].
        inputs: [N, …].
        targets: [N] class indices.
        losses: label → a function of (logits, targets) that returns the mean over a batch. One with a `frozen`
            method is first fixed at the current logits, over one partition of the data into batches of
            `settings.batch_size`.
        settings: what to measure, and the limits on products.
        seed: of the Lanczos start and the probes.

    Returns:
        For each label the `CURVATURE_FIELDS`: λ_max (largest algebraic) and λ_min by Lanczos from the gradient, the
        trace with its standard error, ‖gradient‖, the number of Hessian-vector products, the residual ‖Hv − λv‖/|λ|
        of λ_max and the number of samples. A Ritz value never lies outside the spectrum: after few steps λ_max is a
        lower bound and λ_min an upper bound. An exact trace has standard error 0; a deflated one has that of the part
        that was probed.

    Raises:
        CurvatureUnavailable: a product is not finite, an operator has no second derivative, or memory ran out.
    """
    measured: dict[str, dict[str, float]] = {}
    done: list[tuple[LossFunction, str]] = []
    with memory_failures("the curvature"), second_order(next(model.parameters()).device):
        surface = prepare_surface(model, inputs, targets, settings, settings.lanczos_steps)
        for label, loss in losses.items():
            same = next((earlier for other, earlier in done if same_loss(loss, other)), None)
            measured[label] = dict(measured[same]) if same else _measure(surface, loss, settings, seed)
            done.append((loss, label))
    return measured


def prepare_surface(
    model: nn.Module, inputs: Tensor, targets: Tensor, settings: CurvatureSettings, basis_rows: int
) -> Surface:
    """Return the surface of `model` over `settings.samples` evenly spaced samples. Use within `second_order`.

    Memory for `basis_rows` vectors of all parameters is left beside its graphs. Raises CurvatureUnavailable when the
    model cannot be copied or run, or has no trainable parameter.
    """
    chosen = evenly_spaced(len(targets), settings.samples)
    chosen_inputs = inputs[chosen.to(inputs.device)]
    return Surface(
        model,
        chosen_inputs,
        targets[chosen.to(targets.device)],
        batch_size=settings.batch_size,
        basis_rows=basis_rows,
    )


def evenly_spaced(total: int, samples: int | None) -> Tensor:
    """Return `samples` evenly spaced indices below `total`: the same for every seed, and fair to sorted data."""
    count = total if samples is None else min(samples, total)
    return torch.arange(count) * total // count


def same_loss(first: LossFunction, second: LossFunction) -> bool:
    """Whether two losses are one: the same object, or both named plain cross-entropy."""
    names = {getattr(first, "name", None), getattr(second, "name", None)}
    return first is second or names == {"cross_entropy"}


def _measure(surface: Surface, loss: LossFunction, settings: CurvatureSettings, seed: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(seed)
    operator = HessianOperator(surface, loss, settings.vectors_per_pass)
    ends = lanczos(
        operator.product,
        gradient_start(operator.gradient, generator).to(surface.basis_type),
        steps=min(settings.lanczos_steps, max(1, settings.max_matvecs - 2)),  # two probes have a standard error
        tolerance=settings.residual_tolerance,
        generator=generator,
        arithmetic=surface.parameters[0].dtype,
    )
    trace = _trace(operator, ends, settings, generator)
    found = Measurement(operator, ends, trace, surface.samples)
    return {name: statistic.build(found) for name, statistic in STATISTICS.items()}


def _trace(
    operator: HessianOperator, ends: Lanczos, settings: CurvatureSettings, generator: torch.Generator
) -> TraceEstimate:
    """Return the trace: exact or sketched where the network allows it, else from probes beside the space of `ends`."""
    left = settings.max_matvecs - operator.products
    if settings.trace_method == "auto":
        found = per_sample_trace(
            operator, precision=settings.trace_precision, max_rounds=max(1, left // 4), generator=generator
        )
        if found is not None:
            return found
    estimate = hutch_plus_plus if settings.trace_method == "hutch++" else hutchinson
    effort = Effort(settings.trace_probes, settings.trace_precision, floor=ends.norm, max_products=left)
    return estimate(operator.products_of, ends.basis, ends.trace, effort, generator)
