"""What metrics, post-hoc methods, conformal scores and corruptions cost: 10,000 samples of 100 classes, on one core.

`python -m tests.benchmarks.bench_calibration [--samples 10000] [--classes 100] [--rounds 3]` prints processor seconds,
the median of the rounds after one that is thrown away; a method's are those of its fit, and of applying it besides.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from tests.benchmarks.bench_posthoc import example
from trainables.datasets.corruptions import KINDS, corrupted
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.further import METRICS
from trainables.metrics.isotonic import consistency_band, decomposition
from trainables.posthoc import POSTHOC, fit, fit_many
from trainables.posthoc.conformal import SCORES, fit_sets

OPTIONS = {"focal_map": {"gamma": 2.0}, "metacal_acc": {"accuracy": 0.9}}
LEFT_OUT = {"focal_temperature"}  # bench_posthoc's


def seconds(action: Callable[[], object], rounds: int) -> float:
    """Return the median processor seconds of `action`."""
    found = []
    for _ in range(rounds + 1):
        began = time.process_time()
        action()
        found.append(time.process_time() - began)
    return statistics.median(found[1:])


def main() -> None:
    """Print the costs, one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    threadpool_limits(1)
    logits, targets = example(options.samples, options.classes)
    probabilities = softmax64(logits)
    print(f"{options.samples:,} samples of {options.classes} classes, processor seconds, n = {options.rounds}")
    spent = seconds(lambda: evaluate_probabilities(probabilities, targets), options.rounds)
    print(f"  {'every evaluation’s metrics':28}{spent:8.3f}")
    for name in (name for name in METRICS if not METRICS.is_own(name)):
        spent = seconds(lambda name=name: METRICS.build(name, probabilities, targets), options.rounds)
        print(f"  {name:28}{spent:8.3f}")
    confidence = probabilities.max(axis=1)
    correct = (probabilities.argmax(axis=1) == targets).astype(float)
    print(f"  {'CORP decomposition':28}{seconds(lambda: decomposition(confidence, correct), options.rounds):8.3f}")
    print(f"  {'CORP band':28}{seconds(lambda: consistency_band(confidence), options.rounds):8.3f}")
    for name in (name for name in POSTHOC if not POSTHOC.is_own(name) and name not in LEFT_OUT):
        given = OPTIONS.get(name, {})
        fitted = fit(name, logits, targets, **given)
        spent = seconds(lambda name=name, given=given: fit(name, logits, targets, **given), options.rounds)
        applied = seconds(lambda fitted=fitted: fitted(logits), options.rounds)
        print(f"  {name:28}{spent:8.3f} fit{applied:8.3f} applied  {fitted.parameters}")
    small = [example(360, 10) for _ in range(100)]
    alone = seconds(lambda: [fit("temperature", *each) for each in small], options.rounds)
    together = seconds(lambda: fit_many("temperature", small), options.rounds)
    print(f"  {'100 temperatures of 360 × 10':28}{alone:8.3f} one by one{together:8.3f} at once")
    for score in SCORES:
        spent = seconds(lambda score=score: fit_sets(score, probabilities, targets)(probabilities), options.rounds)
        print(f"  {'conformal ' + score:28}{spent:8.3f}")
    images = np.random.default_rng(0).integers(0, 256, size=(options.samples, 32, 32, 3)).astype(np.uint8)
    print(f"{options.samples:,} images of 32 × 32 pixels in three colours, severity 5")
    for kind in (kind for kind in KINDS if kind != "frost"):
        print(f"  {kind:28}{seconds(lambda kind=kind: corrupted(images, kind, 5), 1):8.3f}")


if __name__ == "__main__":
    main()
