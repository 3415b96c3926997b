"""The verdict on post-hoc methods in words: it names one method, or none where none is shown to help."""

import numpy as np

from sweeper.judging.question import OPEN, WORSE
from sweeper.reporting.methods import gained, method_sentence, number_of, wanted
from sweeper.results.estimators import Scored
from sweeper.results.improvements import NONE, SCORES, Methods, methods_on
from trainables.metrics import softmax64


def methods(samples: int, sharpness: float) -> Methods:
    """Judge a division of the logits by 1.5, for a network whose logits are `sharpness` times the right ones."""
    random = np.random.default_rng(1)
    logits = 1.2 * random.standard_t(3, (samples, 3))
    targets = (random.random((samples, 1)) > softmax64(logits).cumsum(axis=1)).sum(axis=1)
    sides = {NONE: 1.0, "halved": 1.5}
    stages = {name: {0: Scored.of(softmax64(sharpness * logits / by), targets)} for name, by in sides.items()}
    return methods_on("network", stages, dict.fromkeys(SCORES, 1e-6))


def test_a_method_is_recommended_only_if_it_is_shown_to_help() -> None:
    helps, harms, few = methods(3000, 2.0), methods(3000, 0.8), methods(60, 1.6)
    assert helps.best.of[NONE].code == WORSE and method_sentence(helps).startswith("Use halved")
    assert harms.best.of["halved"].code == WORSE and method_sentence(harms).startswith("Use no post-hoc method")
    assert few.best.of["halved"].code == OPEN and not method_sentence(few).startswith("Use halved")
    for found in (helps, harms):
        assert f"{found.scores['NLL'][NONE]:.3f}" in method_sentence(found)


def test_an_open_gain_says_how_many_samples_would_decide() -> None:
    few = methods(160, 1.6)
    gain = few.improvements[0].gains["NLL"]
    assert gain.verdict is not None and gain.verdict.code == OPEN and gain.verdict.samples_needed is not None
    wanted_samples = number_of(160 * gain.verdict.samples_needed)
    assert wanted_samples in gained(gain, few.samples) and wanted_samples not in gained(gain)
    assert wanted(few) == "" or wanted_samples in wanted(few)
