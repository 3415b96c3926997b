"""The processor time of an evaluation's parts, and of a whole one of an mlp on digits; beside another checkout's.

    python -m tests.benchmarks.bench_evaluation [--beside ../other-checkout] [--rounds 9]

Two checkouts take turns, each in processes of its own; ratios above 1 are in favour of this one. The evaluation is that
of a network trained with the focal loss: two splits of 359 samples, temperature scaling, 100 resamples, no curvature.
The largest predictions come first, so that the allocator holds on to memory as it does in a trial's process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from sweeper.storage.metadata import hardware
from tests.benchmarks.bench_replicates import configuration
from tests.trainables.predictions import drawn_predictions
from trainables.datasets import load_dataset
from trainables.metrics import BOOTSTRAPPED, evaluate_probabilities, softmax64
from trainables.metrics.bootstrap import bootstrap_standard_error
from trainables.metrics.refinement import refinement_columns
from trainables.posthoc.confidence_regions import region_columns
from trainables.training.evaluation import EvaluationSettings
from trainables.training.loop import Replicate

SIZES = ((10_000, 100, 2), (10_000, 10, 5), (359, 10, 50))
"""Samples, classes, and calls of which the median is taken."""

FOCAL = {"name": "focal", "gamma": 3.0}


def parts(samples: int, classes: int) -> dict[str, Callable[[], object]]:
    """Return what is done to one split's predictions, by name."""
    logits, targets = drawn_predictions(0, samples, classes, 3.0)
    probabilities = softmax64(logits)
    scores = evaluate_probabilities(probabilities, targets)
    return {
        "metrics": lambda: evaluate_probabilities(probabilities, targets),
        "refinement": lambda: refinement_columns(logits, targets, scores),
        "standard errors": lambda: bootstrap_standard_error(BOOTSTRAPPED, probabilities, targets),
        "regions": lambda: region_columns(probabilities, FOCAL),
    }


def whole() -> Callable[[], object]:
    """Return the evaluation of an mlp that was trained on digits for five epochs."""
    data = load_dataset("digits")
    replicate = Replicate({**configuration("mlp", 128), "loss": FOCAL}, seed=0, dataset=data, max_epochs=10)
    for _ in range(5):
        replicate.train_epoch()
    settings = EvaluationSettings.from_mapping({"posthoc": ["temperature"]})
    return lambda: replicate.evaluate(settings, "rung")


def measured() -> dict[str, float]:
    """Return milliseconds of processor time by what is measured."""
    torch.set_num_threads(1)
    found = {}
    for samples, classes, calls in SIZES:
        for name, work in parts(samples, classes).items():
            found[f"{samples:,} × {classes} {name}"] = _median(work, calls)
    return {**found, "mlp on digits, whole": _median(whole(), SIZES[-1][2])}


def _median(work: Callable[[], object], calls: int) -> float:
    work()
    times = []
    for _ in range(calls):
        began = time.process_time()
        work()
        times.append(1000 * (time.process_time() - began))
    return statistics.median(times)


def in_checkout(checkout: Path) -> dict[str, float]:
    """Return what `measured` finds in a fresh process with a checkout's packages."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--once"],
        env={**os.environ, "PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"},
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another checkout of the repository")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measured()))
        return
    checkouts = [Path(__file__).resolve().parents[2], *([options.beside] if options.beside else [])]
    rounds = [[in_checkout(each) for each in checkouts] for _ in range(options.rounds)]
    for name in rounds[0][0]:
        times = [[found[name] for found in each] for each in rounds]
        line = f"{name:<32}{statistics.median(each[0] for each in times):9.3f} ms"
        if options.beside:
            ratios = [each[1] / each[0] for each in times]
            line += f", beside {statistics.median(each[1] for each in times):9.3f} ms, "
            line += f"{statistics.median(ratios):5.2f}× ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{line}, n = {options.rounds}", flush=True)
    print(f"one thread, {hardware()['processor']}")


if __name__ == "__main__":
    main()
