"""Claims about curvature: it falls with γ and under every calibration loss, and a medium trace calibrates best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from search_spaces.papers.claims.base import FAILS, HOLDS, UNDECIDED, Detailed, Verdict, claim, undecided
from search_spaces.papers.claims.numbers import (
    Estimate,
    Estimates,
    Point,
    by_network,
    clusters,
    correlations,
    difference,
    number,
    of_split,
    trial_mean,
)
from search_spaces.papers.claims.posthoc import plain_gamma
from sweeper.core.cells import Row, Rows, by_trial, grouped
from sweeper.core.statistics.basics import PERMUTATIONS

#: Prefix of the columns with layers' traces of cross-entropy's Hessian, in rows of the table `blocks`.
LAYER_TRACE = "trace of "

CROSS_ENTROPY, TRAINING = "hessian_cross_entropy_lambda_max", "hessian_training_lambda_max"


@claim("curvature", "val", form=".2f", positive_holds=False, weights=True)
def curvature_falls_with_gamma(val: Rows) -> Detailed:
    """The largest eigenvalue of the validation Hessian falls as the focal loss's γ grows.

    Rule: ρ(γ, λ_max) over each network's configurations, averaged over strata that differ in nothing else. Holds where
    on every network the 95 % intervals of both readings (cross-entropy's Hessian; the training loss's λ_max over the
    mean focal weight (1 − p_y)^γ) lie below 0, does not hold where one of them lies above 0 (at 95 % for all together),
    and is undecided otherwise. The training loss's own λ_max is only reported, because it falls partly through the
    multiplication by weights below 1 and so favours the claim. The second reading is biased against the claim: most
    samples are easy and dominate the mean weight, while curvature comes from hard samples, whose weights are near 1.

    Estimated: ρ(γ, λ_max)

    Missing: ρ needs at least four γ of the focal loss (cross-entropy counts as γ 0) that differ in nothing else, with
    the Hessians of both losses and stored predictions
    """
    held = [row for row in val if plain_gamma(row) is not None]
    cross, scaled, mechanical = (
        correlations(held, plain_gamma, reading, pool=False) for reading in (CROSS_ENTROPY, _per_weight, TRAINING)
    )
    # The two readings err in opposite directions: if both agree, the verdict does not depend on the choice.
    readings = {"cross-entropy's Hessian": cross, "the training loss's over the mean focal weight": scaled}
    estimates = {f"{network}, {label}": rho for label, held in readings.items() for network, rho in held.items()}
    if not all(any(estimate.value is not None for estimate in of_it.values()) for of_it in (cross, scaled)):
        estimates = {}
    # No verdict rests on the training loss's own Hessian: weights below 1 make it fall with γ by themselves.
    return estimates, {"rho_training": {network: estimate.value for network, estimate in mechanical.items()}}


@claim("curvature", "val", form=".2f", positive_holds=False)
def every_loss_controls_curvature(val: Rows) -> Estimates:
    """Every calibration loss lowers the curvature of cross-entropy, as focal loss does.

    Rule: for each family, ln λ_max minus that of cross-entropy under the same other settings (network, learning rate
    …), each setting counting once. With a single setting, configurations are compared, or replicates if each loss has
    one configuration. Holds where every family's 95 % interval lies below 0, does not hold where one lies above 0 even
    at 95 % for all together (Bonferroni), and is undecided otherwise. A family counts with all its hyperparameters
    pooled.

    Estimated: ln of λ_max of cross-entropy's Hessian, minus cross-entropy training's

    Missing: cross-entropy and at least one other loss are needed, with cross-entropy's Hessian
    """
    log_eigenvalue = partial(_log, column=CROSS_ENTROPY)
    by_loss = {
        name: clusters(held, log_eigenvalue) for name, held in grouped(val, itemgetter("config_loss_name")).items()
    }
    # Logarithms, so that losses and networks with different scales of λ_max weigh alike.
    reference = by_loss.pop("cross_entropy", {})
    return {str(name): difference(held, reference) for name, held in sorted(by_loss.items()) if held and reference}


def _per_weight(row: Row) -> float | None:
    value, weight = number(row, TRAINING), number(row, "mean_focal_weight")
    return value / weight if value is not None and weight else None


TRACE = "hessian_cross_entropy_trace"

#: The curvature paper's Fig. 3 fits a cubic in log–log.
DEGREE = 3

#: Fewest configurations: with fewer, single ones would determine the cubic's ends.
CONFIGURATIONS = 12

#: Share of the fitted range at each end that does not count as inside.
EDGE = 0.1


#: Random orders drawn at once: for 10,000 configurations, all of them would take 160 MB.
AT_ONCE = 500

#: Level of each of the two verdicts: together they err in 5 % if the curve is flat.
ONE_SIDED = 0.025


@claim("curvature", "val")
def ece_smallest_at_intermediate_trace(val: Rows) -> Verdict:
    """Calibration error is smallest at an intermediate trace of the Hessian.

    Rule: a cubic of log10 ECE in log10 Tr(H), both on validation data as in the paper's Fig. 3, cross-entropy's
    Hessian, over configurations (means over replicates; each network's means of both logarithms are subtracted, because
    networks of different sizes have different traces). The statistic is the depth: the lower of the fit's two ends
    minus its minimum over the inner 80 % of the range, in decades. Holds where it is deeper than in 97.5 % of random
    orders of ECE within networks (noise alone has a depth above 0). Does not hold where the fit lies lower at one end
    than everywhere inside, each by a t-test at 1.25 %, since there are two ends. Else undecided; at least 12
    configurations.
    """
    points = _trace_and_ece(val)
    data = np.array([[math.log10(p.x), math.log10(p.y)] for p in points]).reshape(-1, 2)
    if len(data) < CONFIGURATIONS or np.ptp(data[:, 0]) == 0:
        return undecided(
            f"{len(data)} configurations have a positive trace and ECE; {CONFIGURATIONS} are needed", len(data)
        )
    labels = [p.stratum for p in points]
    networks = [np.flatnonzero([label == network for label in labels]) for network in dict.fromkeys(labels)]
    shift = data[:, 0].mean()
    # Networks of different sizes have different traces: their means would produce a curve where there is none.
    for members in networks:
        data[members] -= data[members].mean(axis=0)
    data[:, 0] += shift  # so that traces keep their order of magnitude
    curve = _Cubic(data[:, 0])
    value = float(curve.depth(data[:, 1]))
    # Noise alone has a depth above 0, so it is compared with random orders and not with 0.
    p = _depth_p(curve, data[:, 1], networks)
    end = curve.lowest_end(data[:, 1], len(data) - DEGREE - len(networks))
    verdict = HOLDS if value > 0 and p < ONE_SIDED else FAILS if end else UNDECIDED
    lowest, low, high = (10 ** float(x) for x in (curve.minimum(data[:, 1]), data[:, 0].min(), data[:, 0].max()))
    sentence = (
        f"the cubic's depth below the lower of its ends is {value:.2f} decades of ECE (of random orders, {100 * p:.2g} "
        f"% are as deep){f', and it is lowest at the {end} end' if end else ''}; its minimum lies at "
        f"Tr(H) = {lowest:.3g} of {low:.3g} to {high:.3g}; n = {len(data)} configurations"
    ).replace(" -", " −")
    details = {"trace_at_minimum": lowest, "trace_range": (low, high), "p": p}
    return Verdict(verdict, value, None, len(data), "configurations", sentence, details)


class _Cubic:
    """A cubic in x [n] fitted by least squares; its values at the range's ends and inside are linear in y.

    Args:
        x: positions of the known values.
    """

    def __init__(self, x: NDArray[np.float64]) -> None:
        centre, low, high = x.mean(), x.min(), x.max()
        edge = EDGE * (high - low)
        self.places = np.linspace(low + edge, high - edge, 100)
        # Centred: powers of log10 Tr(H) are nearly collinear otherwise.
        self._design = np.vander(x - centre, DEGREE + 1)
        # Solved once for all y: the permutation test fits thousands of orders.
        self._solved = np.linalg.pinv(self._design)
        self._ends = np.vander(np.array([low, high]) - centre, DEGREE + 1)
        self._inside = np.vander(self.places - centre, DEGREE + 1)

    def depth(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the depth of the fit to y [n] or [n, m]: how far it dips below the lower end inside the range."""
        fit = self._solved @ y
        return np.asarray((self._ends @ fit).min(axis=0) - (self._inside @ fit).min(axis=0))

    def minimum(self, y: NDArray[np.float64]) -> float:
        """Return the x inside the range where the fit is lowest."""
        return float(self.places[np.argmin(self._inside @ self._solved @ y)])

    def lowest_end(self, y: NDArray[np.float64], freedom: int) -> str:
        """Return the end, `lower` or `upper`, where the fit lies below all of its inside; empty if neither does."""
        from scipy.special import stdtrit

        fit = self._solved @ y
        variance = float(((y - self._design @ fit) ** 2).sum()) / freedom
        for end, name in zip(self._ends, ("lower", "upper"), strict=True):
            contrasts = self._inside - end
            errors = np.sqrt(variance * ((contrasts @ self._solved) ** 2).sum(axis=1))
            # Two ends are tested, so each at half the level.
            if (contrasts @ fit > float(stdtrit(freedom, 1 - ONE_SIDED / 2)) * errors).all():
                return name
        return ""


def _depth_p(curve: _Cubic, y: NDArray[np.float64], networks: list[NDArray[np.int64]]) -> float:
    """Return the share of random orders of y within networks that are at least as deep as the observed one."""
    random, deep = np.random.default_rng(0), 0  # a fixed seed: the same tables give the same verdict
    least = float(curve.depth(y)) - 1e-12  # an order equal to the observed one counts, whatever its rounding
    for start in range(0, PERMUTATIONS, AT_ONCE):
        shuffled = np.tile(y, (min(AT_ONCE, PERMUTATIONS - start), 1))
        for members in networks:
            shuffled[:, members] = random.permuted(shuffled[:, members], axis=1)
        deep += int((curve.depth(shuffled.T) >= least).sum())
    # The observed order counts as one of the random orders, so that p is never 0 (Phipson & Smyth 2010).
    return (1 + deep) / (1 + PERMUTATIONS)


@claim("curvature", "val", form=".2f", positive_holds=False)
def trace_regularisation_calibrates(val: Rows) -> Estimates:
    """Regularising the Hessian's trace lowers trace and calibration error as its weight τ grows.

    Rule: ρ(τ, Tr(H) of cross-entropy) and ρ(τ, ECE), both on validation data as in the paper's Fig. 4, over each
    network's configurations, averaged over strata that differ in nothing but τ (so within a learning rate);
    cross-entropy is τ = 0. Holds where the 95 % intervals of both lie below 0 on every network, does not hold where one
    lies above 0 even at 95 % for all together (Bonferroni), else undecided.

    Estimated: rank correlations with the weight

    Missing: ρ needs at least four τ of hessian_trace that differ in nothing else, with the trace
    """
    # The paper claims both, so one of them alone does not decide.
    ece, trace = (
        {f"{network}, {label}": estimate for network, estimate in correlated.items() if estimate.value is not None}
        for label, correlated in (
            ("ρ(τ, ECE)", correlations(val, _weight, "ece", pool=False)),
            ("ρ(τ, Tr(H))", correlations(val, _weight, TRACE, pool=False)),
        )
    )
    return ece | trace if ece and trace else {}


#: Optimiser settings that lower curvature without another loss.
INTERVENTIONS = ("sharpness", "rho", "layer_decay", "freeze")


@claim("", table="blocks")
def lower_layer_curvature_calibrates(rows: Rows) -> Detailed:
    """Lowering the curvature of a layer lowers the calibration error.

    Rule: on each network, each intervention (sharpness-aware steps with their ρ, layer-wise decay of the learning rate,
    frozen layers) is compared with plain steps at the same other settings. An intervention counts if it lowers ln
    Tr(H_bb) of cross-entropy in at least one layer (p < .05 over all layers, Bonferroni). The estimate for each of
    these is plain steps' test ECE minus the intervention's. Holds where every 95 % interval lies above 0, does not hold
    where one lies below even at 95 % for all together (Bonferroni), else undecided, also if no intervention counts.

    Estimated: test ECE of plain steps minus the intervention's, where it lowers Tr(H) of cross-entropy (in layers)

    Missing: no intervention lowered the curvature of a layer beside plain steps (evaluation.curvature.blocks)
    """
    # The interventions are settings themselves: with them in the stratum, nothing would be comparable.
    besides = tuple(f"config_optimizer_{name}" for name in INTERVENTIONS)
    estimates, lowered = {}, {}
    for network, held in by_network(rows).items():
        arms = grouped(held, _intervention)
        plain = arms.pop("", [])
        for arm, mine in arms.items():
            changes = _layer_changes(mine, plain, besides)
            # Only an intervention that lowers a layer's curvature can speak for or against the claim.
            down = [n for n, c in changes.items() if (c.value or 0) < 0 and c.shown(len(changes))]
            lowered[f"{network}, {arm}"] = {n: changes[n].value for n in down}
            if down:
                theirs, ours = (clusters(of_split(side, "test"), "ece", besides) for side in (plain, mine))
                estimates[f"{network}, {arm} ({', '.join(down)})"] = difference(theirs, ours)
    return estimates, {"ln_trace_lowered": lowered}


def _layer_changes(mine: Rows, plain: Rows, besides: Sequence[str]) -> dict[str, Estimate]:
    """Return layer → mean ln of its trace with the intervention minus that with plain steps."""
    changes = {}
    for column in sorted({key for row in mine for key in row if key.startswith(LAYER_TRACE)}):
        reading = partial(_log, column=column)
        ours, theirs = (clusters(of_split(side, "val"), reading, besides) for side in (mine, plain))
        changes[column.removeprefix(LAYER_TRACE)] = difference(ours, theirs)
    return changes


def _intervention(row: Row) -> str:
    """Return the intervention of a row in words, e.g. `sam 0.1`; empty for plain steps."""
    value: dict[str, object] = {name: row.get(f"config_optimizer_{name}") for name in INTERVENTIONS}
    words = [f"{value['sharpness']} {value['rho']}"] if value["sharpness"] and value["rho"] else []
    words += [f"{name} {value[name]}" for name in ("layer_decay", "freeze") if value[name]]
    return ", ".join(words)


def _log(row: Row, column: str) -> float | None:
    value = number(row, column)
    return math.log(value) if value is not None and value > 0 else None


def _trace_and_ece(val: Rows) -> list[Point]:
    """Return trace (x) and validation ECE (y) of every configuration with both above 0; networks are strata."""
    points = []
    for held in by_trial(val).values():
        trace, ece = trial_mean(held, TRACE), trial_mean(held, "ece")
        if trace is not None and ece is not None and trace > 0 and ece > 0:
            points.append(Point(_network(held[0]), trace, ece))
    return points


def _network(row: Row) -> tuple[tuple[str, object], ...]:
    """Return the settings of a row's network: one architecture with two widths is two networks."""
    return tuple((key, value) for key, value in sorted(row.items()) if key.startswith("config_architecture_"))


def _weight(row: Row) -> float | None:
    """Return τ of a row: 0 for plain cross-entropy, the weight of `hessian_trace` on cross-entropy, else `None`."""
    if row["config_loss_name"] == "cross_entropy":
        return 0.0
    regularised = row["config_loss_name"] == "hessian_trace" and row.get("config_loss_base") == "cross_entropy"
    return number(row, "config_loss_weight") if regularised else None
