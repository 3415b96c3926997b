"""Verdicts on finalists without and with temperature scaling, against a truth that was planted."""

import math
from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from sweeper.judging.question import NOT_COMPARED, WORSE
from sweeper.results.deployed import deployed
from sweeper.results.estimators import Networks, Scored
from trainables.posthoc import fit

SAMPLES, CLASSES = 2000, 5


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def stages(signal: float, sharpness: float, seeds: int, seed: int = 0) -> tuple[Networks, Networks, float, float]:
    """Networks whose logits hold a signal, times a sharpness that temperature scaling undoes; naive means of NLL."""
    before, after, naive = dict[int, Scored](), dict[int, Scored](), list[tuple[float, float]]()
    for number in range(seeds):
        draws, data = np.random.default_rng([seed, number]), np.random.default_rng(7)
        targets = data.integers(0, CLASSES, 2 * SAMPLES)
        logits = draws.normal(size=(2 * SAMPLES, CLASSES))
        logits[np.arange(2 * SAMPLES), targets] += signal
        logits *= sharpness
        val, test = slice(0, SAMPLES), slice(SAMPLES, None)
        before[number] = Scored.of(softmax(logits[test]), targets[test], logits[test])
        after[number] = Scored.of(fit("temperature", logits[val], targets[val])(logits[test]), targets[test])

        def nll(part: slice, temperature: float, logits=logits, targets=targets) -> float:
            chosen = softmax(logits[part] / temperature)[np.arange(SAMPLES), targets[part]]
            return float(-np.log(chosen).mean())

        fitted = minimize_scalar(partial(nll, val), bounds=(0.01, 100), method="bounded").x
        naive.append((nll(test, 1.0), nll(test, fitted)))
    return before, after, *np.mean(naive, axis=0)


def test_the_order_can_be_another_one_after_temperature_scaling() -> None:
    # `soft` separates the classes better, and its confidences are far too low, as with label smoothing.
    sharp, soft = stages(signal=2.0, sharpness=2.0, seeds=4), stages(signal=2.8, sharpness=0.25, seeds=4, seed=1)
    found = deployed({"sharp": sharp[:2], "soft": soft[:2]})
    assert found is not None and found.nll["sharp"][0] < found.nll["soft"][0]
    assert found.verdicts.leader == "soft" and found.verdicts.of["sharp"].code == WORSE
    for name, made in (("sharp", sharp), ("soft", soft)):
        assert found.nll[name] == pytest.approx(made[2:], rel=1e-3)
        hits = [float(network.correct.mean()) for network in made[0].values()]
        accuracy = found.accuracy[name]
        assert accuracy.value == pytest.approx(np.mean(hits)) and accuracy.low < min(hits) <= max(hits) < accuracy.high


def test_equal_finalists_keep_an_order_that_is_not_decided() -> None:
    found = deployed({name: stages(2.0, 1.0, seeds=3, seed=seed)[:2] for seed, name in enumerate("ab")})
    assert found is not None
    assert WORSE not in {verdict.code for verdict in found.verdicts.of.values()}


def test_one_seed_each_is_compared_only_where_no_other_can_be_trained() -> None:
    single = {name: stages(signal, 1.0, seeds=1)[:2] for name, signal in (("a", 2.0), ("b", 1.0))}
    few, alone = deployed(single), deployed(single, alone=True)
    assert few is not None and few.verdicts.code == NOT_COMPARED and math.isnan(few.accuracy["a"].low)
    assert alone is not None and alone.verdicts.of["b"].code == WORSE


def test_a_finalist_without_a_fit_is_left_out() -> None:
    before, after = stages(2.0, 1.0, seeds=2)[:2]
    found = deployed({"a": (before, after), "b": (before, {})})
    assert found is not None and [*found.nll] == ["a"] and found.verdicts.code == NOT_COMPARED
    assert deployed({"b": (before, {})}) is None
