"""The curvature paper's bounds, evaluated on trained networks: Theorem 1, Corollaries 1 and 2, Eq. 28.

Θ is the finite set of a sweep's networks of one architecture, so every integral is a sum. L_CE is cross-entropy on test
data, in place of the population's, and δ_γ its mean over the networks trained with γ. The prior π is Theorem 1's
distribution at δ_γ. The posterior ς gives these networks equal shares. The n samples of R̂ are the validation data,
which chose none of the weights. Since ς and π have the same mean of L_CE, Corollary 2's divergence DKL[ς‖π] is H(π) −
H(ς), which by Theorem 1 is at least 0.

Two misprints in the paper: Corollary 1 says "≤ ε" for a probability that is at least 1 − ε in its source (Thiemann et
al. 2017, Theorem 3, for 0 < λ < 2), and the proof of Theorem 1 minimises the entropy that the theorem calls largest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from search_spaces.papers.claims.curvature import TRACE
from search_spaces.papers.claims.numbers import by_network, number, of_split, trained_to_the_end, trial_mean
from search_spaces.papers.claims.posthoc import plain_gamma
from search_spaces.papers.computed_figures import Floats
from search_spaces.papers.judging import claim_rows
from sweeper.core.cells import Row, Rows, int_of
from sweeper.reporting.figures.base import Figure, Panel, curves, quantity
from sweeper.results import Results
from trainables.metrics.base import softmax64

#: ε of Corollary 1: its bound holds with a probability of .95.
EPSILON = 0.05

#: Largest |β| in units of 1 / (standard deviation of the losses): beyond it, all mass is on one end of the losses.
STEEPEST = 1e3


def maxwell_boltzmann(losses: Floats, mean: float) -> tuple[float, Floats]:
    """Return β and Theorem 1's distribution, shares ∝ e^(−βL) of losses [M] with this mean (Eqs. 7 to 9)."""
    from scipy.optimize import brentq

    # The bracket is relative to the spread: otherwise brentq would search where every share is 0 or 1.
    steepest = STEEPEST / (losses.std() or 1.0)

    def beyond(beta: float) -> float:
        return float(softmax64(-beta * losses) @ losses - mean)

    if beyond(steepest) >= 0 or beyond(-steepest) <= 0:  # all equal, or the mean is at an end
        beta = 0.0 if np.ptp(losses) == 0 else math.copysign(steepest, beyond(0.0))
    else:
        beta = float(brentq(beyond, -steepest, steepest))
    return beta, softmax64(-beta * losses)


def pac_bayes(error: float, divergence: float, samples: int, epsilon: float = EPSILON) -> tuple[float, float]:
    """Return the λ of Eq. 19 and Corollary 1's bound of the expected error with it.

    Args:
        error: mean error of the posterior on the samples.
        divergence: DKL[ς‖π].
        samples: number of samples n.
        epsilon: probability that the bound fails.
    """
    penalty = divergence + math.log(2 * math.sqrt(samples) / epsilon)
    weight = 2 / (math.sqrt(2 * samples * error / penalty + 1) + 1)
    return weight, error / (1 - weight / 2) + penalty / (samples * weight * (1 - weight / 2))


@dataclass(frozen=True)
class Evaluated:
    """The theorems' values for an architecture's networks that were trained with one γ.

    Attributes:
        gamma: γ of the networks; 0 is cross-entropy.
        networks: number of networks.
        largest_entropy: entropy of Theorem 1's distribution.
        divergence: divergence of Corollary 2.
        bound: Corollary 1's bound of the expected error.
        validation_error, test_error: mean errors.
        trace: mean trace of the training loss's Hessian; None if it was not measured.
        expected_trace: Eq. 28's value for it: the mean of (1 − p)^γ times the trace of cross-entropy's Hessian.
    """

    gamma: float
    networks: int
    largest_entropy: float
    divergence: float
    bound: float
    validation_error: float
    test_error: float
    trace: float | None
    expected_trace: float | None


def evaluated(rows: Rows, samples: int) -> list[Evaluated]:
    """Return the theorems' values for one architecture, by γ.

    Args:
        rows: rows of `final` with mean focal weights, for networks trained to the end.
        samples: number of validation samples.
    """
    known = [(gamma, row) for row in rows if (gamma := plain_gamma(row)) is not None and number(row, "nll") is not None]
    losses = np.array([number(row, "nll") for row in of_split([row for _, row in known], "test")], np.float64)
    by_gamma = []
    for gamma in sorted({gamma for gamma, _ in known}):
        val, test = (of_split([row for at, row in known if at == gamma], split) for split in ("val", "test"))
        if not val or not test:
            continue
        _, prior = maxwell_boltzmann(losses, trial_mean(test, "nll") or 0.0)
        # Shares can underflow to 0, where p ln p is 0 but ln p is −inf.
        entropy = float(-prior @ np.log(np.maximum(prior, np.finfo(np.float64).tiny)))
        divergence = entropy - math.log(len(test))
        # Corollary 1 bounds the expected error by the error on samples that chose no weights: validation data.
        wrong, right = (1 - (trial_mean(held, "accuracy") or 0.0) for held in (val, test))
        # Rounding can make a divergence of 0 slightly negative.
        bound = pac_bayes(wrong, max(0.0, divergence), samples)[1]
        traces = trial_mean(val, "hessian_training_trace"), trial_mean(val, _weighted_trace)
        by_gamma.append(Evaluated(gamma, len(test), entropy, divergence, bound, wrong, right, *traces))
    return by_gamma


def _weighted_trace(row: Row) -> float | None:
    weight, trace = number(row, "mean_focal_weight"), number(row, TRACE)
    return None if weight is None or trace is None else weight * trace


#: Label of each line → its field, and its panel.
LINES: Mapping[str, tuple[str, str]] = {
    "largest entropy at δ (Theorem 1)": ("largest_entropy", "entropy"),
    "divergence (Corollary 2)": ("divergence", "entropy"),
    "bound of the error (Corollary 1)": ("bound", "error"),
    "validation error": ("validation_error", "error"),
    "test error": ("test_error", "error"),
    "trace of the training loss's Hessian": ("trace", "trace"),
    "trace by Eq. 28": ("expected_trace", "trace"),
}


def curvature_bounds(results: Results) -> list[Figure]:
    """Return a sweep's bounds by γ, three panels per network; nothing for other papers' sweeps."""
    # The bounds need losses that differ only in γ, as in this paper's search spaces.
    if results.specification.get("header", {}).get("paper") != "curvature":
        return []
    # Counted in the reliability table, which every sweep has; predictions may not be stored.
    counts = results.rows(
        "SELECT sum(n)::BIGINT AS n FROM reliability WHERE split = 'val' GROUP BY trial, replicate, epoch"
    )
    samples = max((int_of(row, "n") for row in counts), default=0)
    panels, said = [], []
    for network, rows in by_network(trained_to_the_end(claim_rows(results))).items():
        by_gamma = evaluated(rows, samples) if samples else []
        if len(by_gamma) > 1:
            panels += [_panel(network, by_gamma, kind) for kind in dict.fromkeys(kind for _, kind in LINES.values())]
            said.append(f"{network}: {loose(by_gamma)}")
    words = f"{results.name}: the paper's bounds by γ, n = {samples} validation samples. {'. '.join(said)}."
    return [Figure("Bounds", words, [], panels, [], legend=[*LINES])] if panels else []


def _panel(network: str, by_gamma: Sequence[Evaluated], kind: str) -> Panel:
    lines = {
        label: [(point.gamma, getattr(point, field)) for point in by_gamma]
        for label, (field, of) in LINES.items() if of == kind
    }  # fmt: skip
    return Panel(network, curves(lines, [*LINES]), quantity("x", "γ"), quantity("y", kind, zero=kind != "entropy"))


def loose(by_gamma: Sequence[Evaluated]) -> str:
    """Return in words how loose the bounds are."""
    above = [point.bound - point.test_error for point in by_gamma]
    off = [e.expected_trace / e.trace for e in by_gamma if e.gamma and e.trace and e.expected_trace]
    gaps = [point.divergence for point in by_gamma]
    traces = f", Eq. 28's trace is {min(off):.2g} to {max(off):.2g} of what is measured" if off else ""
    vacuous = sum(point.bound >= 1 for point in by_gamma)
    empty = f", at {vacuous} of {len(by_gamma)} γ it is at least 1 and says nothing" if vacuous else ""
    return (
        f"the bound lies {min(above):.3f} to {max(above):.3f} above the test error (mean {fmean(above):.3f}){empty}, "
        f"the divergence is {min(gaps):.2f} to {max(gaps):.2f}{traces}"
    )
