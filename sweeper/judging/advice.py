"""How many seeds would decide an open comparison. No I/O.

The numbers come from the test that will judge these seeds: further seeds are drawn given the present ones, and the test
is repeated with all of them (predictive power: Spiegelhalter, Freedman & Parmar 1994, Bayesian approaches to randomized
trials).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sweeper.judging.pairs import Error, Pair
from sweeper.judging.question import Floats, Question

#: A number of seeds is proposed if it decides with this predicted probability. Users are promised 80 %, since the
#: prediction itself has an error.
CHANCE = 0.9

#: Numbers of further seeds that are tried.
TRIED = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)

#: Numbers of test samples that are tried, in times the present ones.
MORE_SAMPLES = (1.5, 2, 3, 5, 8, 12, 20, 30, 50, 100)

_DRAWS = 300


def needed(question: Question, pair: Pair, error: Error) -> int | None:
    """Return the common seeds of both sides that decide with probability `CHANCE`; None if no number tried does.

    Args:
        question: the question.
        pair: an undecided pair.
        error: its error, moderated; the prior stays as it is.
    """
    if not pair.freedom or question.skewed:  # units with skewed values are not seeds, and nobody can order more
        return None
    # The chance hardly ever falls with more seeds, so the first sufficient number is found by bisection.
    at = bisect_left(TRIED, CHANCE, key=lambda more: _chance(question, pair, error, more))
    return pair.count + TRIED[at] if at < len(TRIED) else None


def samples_needed(question: Question, pair: Pair, error: Error) -> float | None:
    """Return how many times the present test samples decide with probability `CHANCE`; None if no number tried does."""
    half = np.random.default_rng(0).standard_normal(_DRAWS // 2)
    normal = np.concatenate([half, -half])  # both sides of a pair need equally many samples
    for times in MORE_SAMPLES:
        estimates = pair.estimate + np.sqrt(error.samples * (1 - 1 / times)) * normal
        deviations = np.full(_DRAWS, np.sqrt(error.seeds + error.samples / times))
        low, high = pair.excess
        later = replace(pair, excess=(low / times**0.5, high / times**0.5))
        if np.mean(_decided(question, later, estimates, deviations, error.freedom, pair.count)) >= CHANCE:
            return times
    return None


def _chance(question: Question, pair: Pair, error: Error, more: int) -> float:
    """Return the probability that `more` common seeds decide.

    Draws a seed's variance σ² and the true difference (with a flat prior), then the mean and the squares of the further
    seeds. Sides without common seeds are treated as pairs with the same error.
    """
    held, rng = pair.count, np.random.default_rng(0)
    freedom = error.seed_freedom
    variance = error.seeds * held * freedom / rng.chisquare(freedom, _DRAWS)
    normal = rng.standard_normal((3, _DRAWS))
    samples = np.sqrt(error.samples) * normal[2]  # the same test samples measure the further seeds too
    truth = pair.estimate - np.sqrt(variance / held) * normal[0] - samples
    further = truth + samples + np.sqrt(variance / more) * normal[1]
    total = held + more
    squares = held * more / total * (further - pair.estimate) ** 2
    squares += error.seeds * held * freedom  # moderated squares of the present seeds, which include the prior's
    squares += variance * rng.chisquare(more - 1, _DRAWS) if more > 1 else 0.0
    estimates = (held * pair.estimate + more * further) / total
    deviations = np.sqrt(squares / (freedom + more) / total + error.samples)
    # The test samples' part has more degrees of freedom than the seeds', so this number is on the safe side.
    return float(np.mean(_decided(question, pair, estimates, deviations, freedom + more, total)))


def _decided(
    question: Question, pair: Pair, estimates: Floats, deviations: Floats, freedom: float, seeds: int
) -> NDArray[np.bool_]:
    """Return whether the test decides with so many seeds, for each draw of an estimate and its standard error."""
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    share = question.error(seeds)
    reach, nearer = stdtrit(freedom, [1 - share, 1 - 2 * share])
    margin = question.margin / abs(pair.means[1]) if pair.relative else question.margin
    least, most = pair.excess  # of the test samples, so it stays with more seeds
    apart = (estimates - most > reach * deviations) | (least - estimates > reach * deviations)
    same = np.maximum(most - estimates, estimates - least) + nearer * deviations <= margin
    return np.asarray(apart | same)
