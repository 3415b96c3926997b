"""The curvature paper's bounds, evaluated on trained networks: Theorem 1, Corollaries 1 and 2, Eq. 28.

Θ is the finite set of a sweep's networks of one architecture, over which every integral is a sum. L_CE is cross-entropy
on test data, in the place of the population's, and δ_γ the mean over the networks trained with γ. The prior π is
Theorem 1's distribution at δ_γ; the posterior ς has these networks with equal shares; the n samples of R̂ are the
validation data, which chose none of the weights. Since ς and π have one mean of L_CE, Corollary 2's divergence
DKL[ς‖π] is H(π) − H(ς), which Theorem 1 says is no less than 0.

Two misprints: Corollary 1 says "≤ ε" of a probability that its source has at least 1 − ε (Thiemann et al. 2017, Theorem
3, for 0 < λ < 2), and the proof of Theorem 1 minimises the entropy that the theorem says is largest.
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
from search_spaces.papers.judging import claim_rows
from search_spaces.papers.loss_figures import Floats
from sweeper.core.cells import Row, Rows, int_of
from sweeper.reporting.figures.base import Figure, Panel, curves, quantity
from sweeper.results import Results
from trainables.metrics.base import softmax64

#: ε of Corollary 1: what it says holds with a probability of .95.
EPSILON = 0.05

#: |β| over the deviation of the losses, beyond which a distribution is on the least or the largest of them alone.
STEEPEST = 1e3


def maxwell_boltzmann(losses: Floats, mean: float) -> tuple[float, Floats]:
    """Return β and Theorem 1's distribution, shares ∝ e^(−βL) of losses [M] with this mean (Eqs. 7 to 9)."""
    from scipy.optimize import brentq

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
        error: the posterior's mean error on the samples.
        divergence: DKL[ς‖π].
        samples: n.
        epsilon: the probability with which the bound may fail.
    """
    penalty = divergence + math.log(2 * math.sqrt(samples) / epsilon)
    weight = 2 / (math.sqrt(2 * samples * error / penalty + 1) + 1)
    return weight, error / (1 - weight / 2) + penalty / (samples * weight * (1 - weight / 2))


@dataclass(frozen=True)
class Evaluated:
    """What the theorems say of an architecture's networks that were trained with one γ.

    Attributes:
        gamma: 0 of cross-entropy.
        networks: how many.
        largest_entropy: of Theorem 1's distribution.
        divergence: Corollary 2's.
        bound: Corollary 1's, of the expected error.
        validation_error, test_error: means.
        trace: mean of the training loss's Hessian; None where it was not measured.
        expected_trace: Eq. 28's in its place, the mean of (1 − p)^γ times the trace of cross-entropy's Hessian.
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
    """Return what the theorems say of one architecture, by γ.

    Args:
        rows: of `final` with their mean focal weights, of networks that were trained to the end.
        samples: on validation data.
    """
    known = [(gamma, row) for row in rows if (gamma := plain_gamma(row)) is not None and number(row, "nll") is not None]
    losses = np.array([number(row, "nll") for row in of_split([row for _, row in known], "test")], np.float64)
    found = []
    for gamma in sorted({gamma for gamma, _ in known}):
        val, test = (of_split([row for at, row in known if at == gamma], split) for split in ("val", "test"))
        if not val or not test:
            continue
        _, prior = maxwell_boltzmann(losses, trial_mean(test, "nll") or 0.0)
        entropy = float(-prior @ np.log(np.maximum(prior, np.finfo(np.float64).tiny)))
        divergence = entropy - math.log(len(test))
        wrong, right = (1 - (trial_mean(held, "accuracy") or 0.0) for held in (val, test))
        bound = pac_bayes(wrong, max(0.0, divergence), samples)[1]
        traces = trial_mean(val, "hessian_training_trace"), trial_mean(val, _weighted_trace)
        found.append(Evaluated(gamma, len(test), entropy, divergence, bound, wrong, right, *traces))
    return found


def _weighted_trace(row: Row) -> float | None:
    weight, trace = number(row, "mean_focal_weight"), number(row, TRACE)
    return None if weight is None or trace is None else weight * trace


#: What is drawn: of each line the field, and the panel.
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
    """Return a sweep's bounds by γ, three panels for each network; nothing of another paper's."""
    if results.specification.get("header", {}).get("paper") != "curvature":
        return []
    counts = results.rows(
        "SELECT sum(n)::BIGINT AS n FROM reliability WHERE split = 'val' GROUP BY trial, replicate, epoch"
    )
    samples = max((int_of(row, "n") for row in counts), default=0)
    panels, said = [], []
    for network, rows in by_network(trained_to_the_end(claim_rows(results))).items():
        found = evaluated(rows, samples) if samples else []
        if len(found) > 1:
            panels += [_panel(network, found, kind) for kind in dict.fromkeys(kind for _, kind in LINES.values())]
            said.append(f"{network}: {loose(found)}")
    words = f"{results.name}: the paper's bounds by γ, n = {samples} validation samples. {'. '.join(said)}."
    return [Figure("curvature-bounds", "Bounds", words, [], panels, [], legend=[*LINES])] if panels else []


def _panel(network: str, found: Sequence[Evaluated], kind: str) -> Panel:
    lines = {
        label: [(each.gamma, getattr(each, field)) for each in found]
        for label, (field, of) in LINES.items() if of == kind
    }  # fmt: skip
    return Panel(network, curves(lines, [*LINES]), quantity("x", "γ"), quantity("y", kind, zero=kind != "entropy"))


def loose(found: Sequence[Evaluated]) -> str:
    """Return how loose the bounds are, in words."""
    above = [each.bound - each.test_error for each in found]
    off = [e.expected_trace / e.trace for e in found if e.gamma and e.trace and e.expected_trace]
    gaps = [each.divergence for each in found]
    traces = f", Eq. 28's trace is {min(off):.2g} to {max(off):.2g} of what is measured" if off else ""
    vacuous = sum(each.bound >= 1 for each in found)
    empty = f", at {vacuous} of {len(found)} γ it is at least 1 and says nothing" if vacuous else ""
    return (
        f"the bound lies {min(above):.3f} to {max(above):.3f} above the test error (mean {fmean(above):.3f}){empty}, "
        f"the divergence is {min(gaps):.2f} to {max(gaps):.2f}{traces}"
    )
