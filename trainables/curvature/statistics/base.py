"""The curvature statistic family: their registry by name, and the settings of a measurement.

To add a statistic, write a file in this folder with a function of a `Measurement` and the `STATISTICS.add` decorator.
No other file lists the statistics. The table `evaluations` gets the columns `hessian_<loss>_<name>`; leaderboard, trial
pages, model cards and reports show the statistics declared as `headline`.

    @STATISTICS.add("condition", "largest eigenvalue over the smallest", label="κ", headline=True)
    def condition(measurement: Measurement) -> float:
        return measurement.ends.lambda_max / abs(measurement.ends.lambda_min)

Test it against the dense Hessian of a small network, as `tests/trainables/curvature/test_measure.py` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from trainables.registry import BrokenRule, Component, Options, Registry, entry_label

if TYPE_CHECKING:
    from trainables.curvature.further import GaussNewton
    from trainables.curvature.hessian import HessianOperator
    from trainables.curvature.lanczos import Lanczos
    from trainables.curvature.trace import TraceEstimate

#: Prefix of the columns' names.
PREFIX = "hessian_"

#: Losses whose Hessian is measured, with their names in reports. Cross-entropy's Hessian is comparable between networks
#: trained with different losses.
LOSS_WORDS = {"cross_entropy": "cross-entropy", "training": "training"}

#: Cross-entropy after temperature scaling, measured as `tempered_<label>` for each post-hoc method `temperature`.
TEMPERED = "tempered"


@dataclass(frozen=True)
class Measurement:
    """Results for one loss's Hessian H, from which statistics are computed.

    Attributes:
        operator: products with H, their count, and the gradient.
        ends: Lanczos result for both ends of the spectrum.
        trace: estimate of Tr(H).
        samples: number of samples in the mean loss.
        gauss_newton: function that computes, once, the Gauss–Newton matrix G and the residual R of H = G + R.
        sharpness: function that computes SAM's sharpness, or ASAM's for the argument `True`.
        fisher: function that computes, once, the trace of the Fisher information.
    """

    operator: HessianOperator
    ends: Lanczos
    trace: TraceEstimate
    samples: int
    gauss_newton: Callable[[], GaussNewton]
    sharpness: Callable[[bool], float]
    fisher: Callable[[], TraceEstimate]


@dataclass(frozen=True)
class Statistic(Component):
    """A number that describes a Hessian; `build` computes it from a `Measurement`.

    Attributes:
        label: name in tables and figures.
        headline: whether leaderboard, trial pages, model cards and reports show the statistic. Other statistics
            document the measurement.
        counted: whether it is a whole number.
        group: name that requests the statistic in `evaluation.curvature.statistics`; empty if it is always measured.
    """

    label: str = ""
    headline: bool = False
    counted: bool = False
    group: str = ""


STATISTICS = Registry("curvature statistic", None, Statistic, ["measurement"])


def headline_columns() -> tuple[str, ...]:
    """Return the columns shown to people, loss by loss.

    Example:
        >>> headline_columns()[0]
        'hessian_cross_entropy_lambda_max'
    """
    shown = [statistic.name for statistic in STATISTICS.built_in() if statistic.headline]
    return tuple(f"{PREFIX}{loss}_{name}" for loss in LOSS_WORDS for name in shown)


def statistic_of(column: str) -> tuple[str, Statistic] | None:
    """Return the loss and the statistic of a column, or `None` for any other column.

    Example:
        >>> loss, statistic = statistic_of("hessian_training_trace")
        >>> loss, statistic.label
        ('training', 'Tr(H)')
    """
    # Longest names first: `gauss_newton_lambda_max` also ends with `lambda_max`.
    for name, statistic in sorted(STATISTICS.items(), key=lambda item: -len(item[0])):
        loss = column.removeprefix(PREFIX).removesuffix(f"_{name}")
        known = loss in LOSS_WORDS or loss.startswith(f"{TEMPERED}_")
        if known and column == f"{PREFIX}{loss}_{name}":
            return loss, statistic
    return None


def statistic_words(column: str) -> str | None:
    """Return a statistic column's name in reports, or `None` for any other column.

    Example:
        >>> statistic_words("hessian_cross_entropy_lambda_max")
        'cross-entropy λ_max'
    """
    match = statistic_of(column)
    return None if match is None else f"{LOSS_WORDS.get(match[0], match[0].replace('_', ' '))} {match[1].label}"


def measured_loss(loss: str) -> str:
    """Return which loss a Hessian is of, and on which samples.

    Example:
        >>> measured_loss("training")
        'the training loss on validation samples'
    """
    words = {"training": "the training loss", "cross_entropy": "cross-entropy"}
    method = loss.removeprefix(f"{TEMPERED}_").replace("_", " ")
    return f"{words.get(loss, f'cross-entropy after {method}')} on validation samples"


def statistic_names(groups: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the statistics measured when these groups are requested, in column order.

    Example:
        >>> statistic_names()[:3]
        ('lambda_max', 'lambda_min', 'trace')
    """
    return tuple(name for name, statistic in STATISTICS.items() if statistic.group in ("", *groups))


def temperature_labels(posthoc: Iterable[Options]) -> list[str]:
    """Return the labels of post-hoc methods that only divide logits by a temperature."""
    return [entry_label(e) for e in posthoc if e.get("name") == "temperature" and not e.get("apply_focal_map")]


def further_columns(curvature: object, posthoc: Iterable[Options]) -> list[str]:
    """Return the columns that `evaluation.curvature` adds to the columns of every sweep.

    Args:
        curvature: settings; anything but a mapping adds no columns.
        posthoc: post-hoc methods of the sweep.
    """
    if not isinstance(curvature, Mapping):
        return []
    losses, always = curvature.get("losses") or LOSS_LABELS, statistic_names()
    named = statistic_names(curvature.get("statistics") or ())
    tempered = [f"{TEMPERED}_{label}" for label in temperature_labels(posthoc) if TEMPERED in losses]
    columns = [f"{PREFIX}{loss}_{n}" for loss in LOSS_WORDS if loss in losses for n in named if n not in always]
    return columns + [f"{PREFIX}{loss}_{name}" for loss in tempered for name in named]


LOSS_LABELS = tuple(LOSS_WORDS)


@dataclass(frozen=True)
class CurvatureSettings:
    """Settings of one curvature measurement; `from_mapping` checks them all at once.

    Attributes:
        samples: number of evenly spaced samples from the split; `None` uses all. Never compare values with different
            `samples`: a subset is biased, not only noisy.
        lanczos_steps: maximum Hessian-vector products for Lanczos per loss.
        trace_probes: number of probes for a trace that is estimated. It is exact if the network allows it.
        residual_tolerance: Lanczos stops when ‖Hv − λv‖ ≤ tolerance·|λ| for λ_max, and ≤ tolerance·‖H‖ for λ_min.
        losses: losses to measure, from `LOSS_LABELS`; `tempered` adds cross-entropy after temperature scaling for each
            post-hoc method `temperature`.
        statistics: groups of further statistics: `gauss_newton` (H = G + R), `sharpness` (SAM's, ASAM's), `fisher`.
        blocks: also measure trace, λ_max and gradient norm per layer, in the table `blocks`.
        block_steps: maximum Lanczos products for one layer's λ_max; each costs at most as much as one product with the
            whole Hessian.
        rho: radius for SAM's sharpness [Foret et al. 2021, section 3.1].
        adaptive_rho: radius for ASAM's sharpness [Kwon et al. 2021, section 5.2].
        spectrum: also measure the spectral density for the report.
        spectrum_steps: Hessian-vector products per probe and loss for the spectrum; 32 resolve the edges and the gap
            next to the bulk at a third of the cost in Ghorbani, Krishnan & Xiao 2019 (§2: about 90).
        batch_size: batch size of the fixed partition for batch-coupled losses, and the fewest samples per pass.

    Example:
        >>> CurvatureSettings.from_mapping({"samples": 128, "losses": ["cross_entropy"]}).samples
        128
    """

    samples: Annotated[int | None, "[1, inf): curvature is a mean over at least one sample"] = None
    lanczos_steps: Annotated[int, "[1, inf): each step is one Hessian-vector product"] = 32
    trace_probes: Annotated[int, "[2, inf): a standard error needs two probes"] = 8
    residual_tolerance: Annotated[float, "[0, 1]: a residual relative to the eigenvalue"] = 1e-3
    losses: Annotated[tuple[str, ...], (*LOSS_LABELS, TEMPERED)] = LOSS_LABELS
    spectrum: bool = False
    spectrum_steps: Annotated[int, "[1, inf): each step is one Hessian-vector product a probe"] = 32
    batch_size: Annotated[int, "[1, inf): a batch holds at least one sample"] = 128
    statistics: tuple[str, ...] = ()
    blocks: bool = False
    block_steps: Annotated[int, "[1, inf): each step is one Hessian-vector product"] = 8
    rho: Annotated[float, "(0, inf)"] = 0.05
    adaptive_rho: Annotated[float, "(0, inf)"] = 0.5

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> CurvatureSettings:
        """Return checked settings from `values`. Raises ValueError that names every broken rule."""
        settings: CurvatureSettings = MEASUREMENTS.build("curvature", **values)
        return replace(settings, losses=tuple(settings.losses), statistics=tuple(settings.statistics))


def _list_fault(values: Options) -> BrokenRule | None:
    """Return the rule that `losses` or `statistics` breaks, or `None`."""
    if not values.get("losses", LOSS_LABELS):
        return "losses", "losses = [] must name a loss"
    groups = dict.fromkeys(statistic.group for statistic in STATISTICS.values() if statistic.group)
    requested = [*values.get("statistics", ())]
    if {*requested} <= {*groups}:
        return None
    return "statistics", f"statistics = {requested!r} must be a list of {' and '.join(groups)}"


#: `evaluation.curvature` as a registry with one component, so that it is checked like every part of a search space.
MEASUREMENTS = Registry("curvature measurement")
MEASUREMENTS.add("curvature", check=_list_fault)(CurvatureSettings)
