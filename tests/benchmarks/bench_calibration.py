"""What metrics, post-hoc methods, conformal scores and corruptions cost: 10,000 samples of 100 classes, on one core.

`python -m tests.benchmarks.bench_calibration [--samples 10000] [--classes 100] [--rounds 3] [--only PART …]` prints a
table in Markdown of processor seconds, the median of the rounds after one that is thrown away. The methods' options are
their defaults.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from trainables.datasets.splits.corrupted import KINDS, corrupted
from trainables.metrics import BOOTSTRAPPED, METRIC_NAMES, evaluate_probabilities, softmax64
from trainables.metrics.base import METRICS, further_metrics
from trainables.metrics.evaluate import bootstrap_standard_error
from trainables.metrics.isotonic import consistency_band, decomposition
from trainables.metrics.refinement import refinement
from trainables.posthoc import POSTHOC, fit
from trainables.posthoc.conformal import SCORES, fit_split

OPTIONS = {"focal_map": {"gamma": 2.0}, "metacal_acc": {"accuracy": 0.9}}


def example(samples: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 logits [samples, classes] that are right about three times in four, and targets."""
    random = np.random.default_rng(seed)
    targets = random.integers(0, classes, samples)
    logits = random.normal(size=(samples, classes)) * 2
    logits[np.arange(samples), targets] += 7 + 3 * random.normal(size=samples)
    return logits.astype(np.float32), targets


@dataclass(frozen=True)
class Given:
    """What is measured on: logits [N, K], targets [N], probabilities [N, K], and how often."""

    logits: np.ndarray
    targets: np.ndarray
    probabilities: np.ndarray
    rounds: int

    def seconds(self, action: Callable[[], object]) -> float:
        """Return the median processor seconds of `action`."""
        found = []
        for _ in range(self.rounds + 1):
            began = time.process_time()
            action()
            found.append(time.process_time() - began)
        return statistics.median(found[1:])


Rows = Iterator[tuple[str, float, float | None]]
"""(what, seconds, and those of applying a fitted method)."""


def of_metrics(given: Given) -> Rows:
    """Measure what every evaluation measures, and each further metric."""
    probabilities, targets = given.probabilities, given.targets
    names = ", ".join(f"`{name}`" for name in METRIC_NAMES)
    yield f"all of {names}", given.seconds(lambda: evaluate_probabilities(probabilities, targets)), None
    errors = partial(bootstrap_standard_error, BOOTSTRAPPED, probabilities, targets)
    names = ", ".join(f"`{name}_se`" for name in BOOTSTRAPPED)
    yield f"all of {names}", given.seconds(errors), None
    for name in (each.name for each in further_metrics().built_in()):
        yield f"`{name}`", given.seconds(partial(METRICS.build, name, probabilities, targets)), None
    yield "refinement of NLL and Brier score", given.seconds(lambda: refinement(given.logits, targets)), None
    confidence = probabilities.max(axis=1)
    correct = (probabilities.argmax(axis=1) == targets).astype(float)
    yield "CORP decomposition", given.seconds(lambda: decomposition(confidence, correct)), None
    yield "CORP consistency band", given.seconds(lambda: consistency_band(confidence)), None


def of_posthoc(given: Given) -> Rows:
    """Measure the fit of each method, and applying it."""
    for name in (name for name in POSTHOC if not POSTHOC.is_own(name)):
        options = OPTIONS.get(name, {})
        fitted = fit(name, given.logits, given.targets, **options)
        spent = given.seconds(partial(fit, name, given.logits, given.targets, **options))
        yield f"`{name}`", spent, given.seconds(partial(fitted, given.logits))
    small = [example(360, 10) for _ in range(100)]
    yield "100 temperatures of 360 × 10", given.seconds(lambda: [fit("temperature", *each) for each in small]), None


def of_conformal(given: Given) -> Rows:
    """Measure fitting and applying each score, together."""
    fitted = fit_split(None, given.logits, given.targets)
    for score in SCORES:
        yield f"conformal `{score}`", given.seconds(partial(fitted.sets, score, given.logits)), None


def of_corruptions(given: Given) -> Rows:
    """Measure each kind at its highest severity, on images of 32 × 32 pixels in three colours."""
    images = np.random.default_rng(0).integers(0, 256, size=(len(given.targets), 32, 32, 3)).astype(np.uint8)
    for kind in (kind for kind in KINDS if kind != "frost"):  # frost needs pictures that its package brings
        yield f"`{kind}`, images of 32 × 32", given.seconds(partial(corrupted, images, kind, 5)), None


PARTS: dict[str, Callable[[Given], Rows]] = {
    "metrics": of_metrics,
    "posthoc": of_posthoc,
    "conformal": of_conformal,
    "corruptions": of_corruptions,
}


def main() -> None:
    """Print the costs, one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    threadpool_limits(1)
    logits, targets = example(options.samples, options.classes)
    given = Given(logits, targets, softmax64(logits), options.rounds)
    print(f"{options.samples:,} samples of {options.classes} classes, processor seconds, n = {options.rounds}\n")
    print("| what | seconds | seconds of applying it |\n|---|---|---|")
    for part in options.only:
        for what, spent, applied in PARTS[part](given):
            print(f"| {what} | {spent:.3f} | {'' if applied is None else f'{applied:.3f}'} |", flush=True)


if __name__ == "__main__":
    main()
