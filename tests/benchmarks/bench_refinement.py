"""The time of refinement and calibration error beside the prediction's: 10,000 samples of 100 classes, one core.

`python -m tests.benchmarks.bench_refinement [--samples 10000] [--classes 100] [--rounds 30]` prints the median and the
least processor time of a call in milliseconds. Processor time, because other programs are no cost of this one.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from tests.trainables.predictions import drawn_predictions
from trainables.metrics.refinement import refinement


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=30)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for scale in (0.3, 3.0, 20.0):
        logits, targets = drawn_predictions(0, asked.samples, asked.classes, scale)
        refinement(logits, targets)
        times = []
        for _ in range(asked.rounds):
            started = time.thread_time()
            refinement(logits, targets)
            times.append((time.thread_time() - started) * 1e3)
        print(f"logits of scale {scale:g}: median {statistics.median(times):.2f} ms, least {min(times):.2f} ms")


if __name__ == "__main__":
    main()
