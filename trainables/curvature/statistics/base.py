"""What a curvature statistic is, the registry of all of them by name, and what may be said of a measurement.

Adding one: a file of this folder with a function of a `Measurement`, under the decorator that describes it; no other
file lists them. The table `evaluations` gets its columns `hessian_<loss>_<name>`; leaderboard, trial pages, model
cards and reports show those that declare themselves a `headline`.

    @STATISTICS.add("condition", "largest eigenvalue over the smallest", label="κ", headline=True)
    def condition(found: Measurement) -> float:
        return found.ends.lambda_max / abs(found.ends.lambda_min)

Its test compares it with the dense Hessian of a small network, as `tests/trainables/curvature/test_measure.py` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from trainables.registry import Component, Options, Registry, entry_label

if TYPE_CHECKING:
    from trainables.curvature.further import GaussNewton
    from trainables.curvature.hessian import HessianOperator
    from trainables.curvature.lanczos import Lanczos
    from trainables.curvature.trace import TraceEstimate

#: What the columns' names begin with.
PREFIX = "hessian_"

#: The losses whose Hessian is measured, in words; cross-entropy's can be compared among training losses.
LOSS_WORDS = {"cross_entropy": "cross-entropy", "training": "training"}

#: Cross-entropy of logits over T, the loss that one deploys: `tempered_<label>` for each post-hoc method `temperature`.
TEMPERED = "tempered"


@dataclass(frozen=True)
class Measurement:
    """What was computed of one loss's Hessian H.

    Attributes:
        operator: gives products with H, the gradient, and how many products were taken.
        ends: the Lanczos run for both ends of the spectrum.
        trace: the estimate of Tr(H).
        samples: the samples that the loss is a mean over.
        gauss_newton: gives the Gauss–Newton matrix G and the residual R of H = G + R, computed once.
        rise: gives SAM's sharpness, of True ASAM's.
        fisher: gives the trace of the Fisher information, computed once.
    """

    operator: HessianOperator
    ends: Lanczos
    trace: TraceEstimate
    samples: int
    gauss_newton: Callable[[], GaussNewton]
    rise: Callable[[bool], float]
    fisher: Callable[[], TraceEstimate]


@dataclass(frozen=True)
class Statistic(Component):
    """One number of a Hessian; `build` computes it from a `Measurement`.

    Attributes:
        label: how tables and figures call it.
        headline: whether leaderboard, trial pages, model cards and reports show it; the others say how it was measured.
        counted: whether it is a whole number.
        group: what `evaluation.curvature.statistics` must name for it to be measured; empty where it always is.
    """

    label: str = ""
    headline: bool = False
    counted: bool = False
    group: str = ""


STATISTICS = Registry("curvature statistic", None, Statistic, ["measurement"])


def headline_columns() -> tuple[str, ...]:
    """Return the columns that people are shown, loss by loss."""
    shown = [each.name for each in STATISTICS.built_in() if each.headline]
    return tuple(f"{PREFIX}{loss}_{name}" for loss in LOSS_WORDS for name in shown)


def statistic_of(column: str) -> tuple[str, Statistic] | None:
    """Return the loss and the statistic whose column this is, or `None` for another column."""
    # The longest first: `gauss_newton_lambda_max` ends like `lambda_max`.
    for name, found in sorted(STATISTICS.items(), key=lambda each: -len(each[0])):
        loss = column.removeprefix(PREFIX).removesuffix(f"_{name}")
        known = loss in LOSS_WORDS or loss.startswith(f"{TEMPERED}_")
        if known and column == f"{PREFIX}{loss}_{name}":
            return loss, found
    return None


def statistic_words(column: str) -> str | None:
    """Return how a column is called, e.g. `cross-entropy λ_max`; `None` for one that is no statistic's."""
    found = statistic_of(column)
    return None if found is None else f"{LOSS_WORDS.get(found[0], found[0].replace('_', ' '))} {found[1].label}"


def statistic_names(groups: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the statistics that are measured where these groups are asked for, in the order of their columns."""
    return tuple(n for n, each in STATISTICS.items() if each.group in ("", *groups))


def temperature_labels(posthoc: Iterable[Options]) -> list[str]:
    """Return the labels of those post-hoc methods that divide logits by a temperature and do nothing else."""
    return [entry_label(e) for e in posthoc if e.get("name") == "temperature" and not e.get("apply_focal_map")]


def further_columns(curvature: object, posthoc: Iterable[Options]) -> list[str]:
    """Return the columns that settings of `evaluation.curvature` add to those that every sweep has.

    Args:
        curvature: the settings; anything but a mapping adds none.
        posthoc: the sweep's post-hoc methods.
    """
    if not isinstance(curvature, Mapping):
        return []
    losses, always = curvature.get("losses") or LOSS_LABELS, statistic_names()
    named = statistic_names(curvature.get("statistics") or ())
    tempered = [f"{TEMPERED}_{label}" for label in temperature_labels(posthoc) if TEMPERED in losses]
    columns = [f"{PREFIX}{loss}_{n}" for loss in LOSS_WORDS if loss in losses for n in named if n not in always]
    return columns + [f"{PREFIX}{loss}_{name}" for loss in tempered for name in named]


LOSS_LABELS = tuple(LOSS_WORDS)
DIFFERENTIATED, FIXED = "differentiated", "fixed"
FULL, ROUNDED = "float32", "bfloat16"


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
        losses: which losses to measure; names from `LOSS_LABELS`, and `tempered`, cross-entropy of logits over T for
            each post-hoc method `temperature`.
        statistics: groups of further statistics: `gauss_newton` (H = G + R), `sharpness` (SAM's, ASAM's), `fisher`.
        blocks: also measure trace, λ_max and gradient norm of each layer, in the table `blocks`.
        block_steps: the most products of Lanczos for one layer's λ_max, each at most the price of one of the whole.
        precision: of the factors of the network's matrix products within Hessian-vector products, for cards with tensor
            cores; `bfloat16` is in the residual as its rounding. Sums over samples, Lanczos and exact traces stay.
        rho: the radius of SAM's sharpness [Foret et al. 2021, section 3.1].
        adaptive_rho: the radius of ASAM's sharpness [Kwon et al. 2021, section 5.2].
        spectrum: also measure the spectral density for the report.
        spectrum_steps: the Hessian-vector products of each of its probes, for each loss; 32 resolve the edges and
            the gap beside the bulk at a third of what Ghorbani, Krishnan & Xiao 2019 spend on theirs (§2: about 90).
        weights: how the training loss's sample weights are taken where these depend on the network (selective risk's
            β): `differentiated`, as training does, or `fixed` at the current network. What a
            loss itself holds constant (ranks, counts, τ, a bandwidth) is constant either way.
        batch_size: the fixed partition over which a batch-coupled loss is taken, and the fewest samples in a pass.
        vectors_per_pass: how many probes share a traversal of the graph (by vmap). On a CPU it gains nothing (23 to
            28 ms a product on resnet8 against 24 ms), and it multiplies the products' memory.
    """

    samples: Annotated[int | None, "[1, inf): curvature is a mean over at least one sample"] = None
    lanczos_steps: Annotated[int, "[1, inf): each step is one Hessian-vector product"] = 32
    trace_method: Literal["auto", "hutchinson", "hutch++"] = "auto"
    trace_probes: Annotated[int, "[2, inf): a standard error needs two probes"] = 8
    trace_precision: Annotated[float | None, "(0, 1]: a relative standard error"] = None
    max_matvecs: Annotated[int, "[3, inf): one product for the eigenvalues and two probes"] = 256
    residual_tolerance: Annotated[float, "[0, 1]: a residual relative to the eigenvalue"] = 1e-3
    losses: Annotated[tuple[str, ...], (*LOSS_LABELS, TEMPERED)] = LOSS_LABELS
    spectrum: bool = False
    spectrum_steps: Annotated[int, "[1, inf): each step is one Hessian-vector product a probe"] = 32
    weights: Annotated[str, (DIFFERENTIATED, FIXED)] = DIFFERENTIATED
    batch_size: Annotated[int, "[1, inf): a batch holds at least one sample"] = 128
    vectors_per_pass: Annotated[int, "[1, inf): a pass takes at least one vector"] = 1
    statistics: tuple[str, ...] = ()
    blocks: bool = False
    block_steps: Annotated[int, "[1, inf): each step is one Hessian-vector product"] = 8
    precision: Annotated[str, (FULL, ROUNDED)] = FULL
    rho: Annotated[float, "(0, inf)"] = 0.05
    adaptive_rho: Annotated[float, "(0, inf)"] = 0.5

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> CurvatureSettings:
        """Return the settings in `values`. Raises ValueError naming every rule that is broken."""
        settings: CurvatureSettings = MEASUREMENTS.build("curvature", **values)
        return replace(settings, losses=tuple(settings.losses), statistics=tuple(settings.statistics))


def _list_fault(values: Options) -> str | None:
    """Return the rule that the lists of losses and of groups of statistics break."""
    if not values.get("losses", LOSS_LABELS):
        return "losses = [] must name a loss"
    groups = dict.fromkeys(each.group for each in STATISTICS.values() if each.group)
    asked = [*values.get("statistics", ())]
    return None if {*asked} <= {*groups} else f"statistics = {asked!r} must be a list of {' and '.join(groups)}"


#: `evaluation.curvature` as the one component of its registry, which checks it as every other part of a search space.
MEASUREMENTS = Registry("curvature measurement")
MEASUREMENTS.add("curvature", check=_list_fault)(CurvatureSettings)
