"""Whether evaluations gain from lanes: predictions and Hessian-vector products of all replicates at once, or in turn.

Validation after each epoch runs over all lanes; a rung's evaluation takes the replicates in turn. Here is what that
costs: the processor's time of both ways for the same weights, alternating; ratios above 1 are in favour of lanes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from sweeper.storage.metadata import hardware
from tests.benchmarks.bench_replicates import configuration
from trainables.datasets import load_dataset
from trainables.training.lanes.cohort import Lanes
from trainables.training.loop import Replicate
from trainables.training.prediction import predict

SAMPLES = 128  # of a Hessian, as the quickstart's
REPEATS = 5

Work = Callable[[], object]


def predictions(replicates: list[Replicate], lanes: Lanes) -> tuple[Work, Work]:
    """Return the logits of the test split: in turn, and of all lanes."""
    test = replicates[0].dataset.test
    return lambda: [predict(r.model, test) for r in replicates], lambda: lanes.predict(test)


def products(replicates: list[Replicate], lanes: Lanes) -> tuple[Work, Work]:
    """Return Hessian-vector products through retained graphs: a replicate's in turn, and of stacked weights."""
    val = replicates[0].dataset.val
    inputs, targets = val.prepare(val.inputs[:SAMPLES]), val.targets[:SAMPLES]
    graphs = []
    for replicate in replicates:
        held = [*replicate.model.eval().parameters()]
        value = cross_entropy(replicate.model(inputs), targets)
        graphs.append((held, torch.autograd.grad(value, held, create_graph=True)))
    lanes.predict(val)  # puts the shared network into evaluation mode
    logits = lanes._forward(lanes._stack.weights, inputs, False)
    every = cross_entropy(logits.flatten(0, 1), targets.repeat(len(logits)), reduction="none")
    stacked = [*lanes._stack.parameters.values()]
    gradients = torch.autograd.grad(every.view(len(logits), -1).mean(1).sum(), stacked, create_graph=True)
    return (
        lambda: [torch.autograd.grad(g, held, [*map(torch.ones_like, held)], retain_graph=True) for held, g in graphs],
        lambda: torch.autograd.grad(gradients, stacked, [*map(torch.ones_like, stacked)], retain_graph=True),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", default=["mlp", "resnet8"])
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load_dataset("digits")
    for row in options.rows:
        values = configuration(row, 128)
        alone, together = (
            [Replicate(values, seed=seed, dataset=data, max_epochs=1) for seed in range(options.count)] for _ in "ab"
        )
        lanes = Lanes(together)
        for name, make in (("predictions", predictions), ("Hessian-vector products", products)):
            ways, times = make(alone, lanes), ([], [])
            for _ in range(options.rounds + 1):
                for way, taken in zip(ways, times, strict=True):
                    started = time.process_time()
                    for _ in range(REPEATS):
                        way()
                    taken.append((time.process_time() - started) / REPEATS)
            ratios = [a / b for a, b in zip(*(taken[1:] for taken in times), strict=True)]
            print(
                f"{row:<10}{name:<26}in turn {1000 * statistics.median(times[0][1:]):8.2f} ms, lanes "
                f"{1000 * statistics.median(times[1][1:]):8.2f} ms, {statistics.median(ratios):.2f}× "
                f"({min(ratios):.2f} to {max(ratios):.2f}, n = {len(ratios)})",
                flush=True,
            )
    print(f"{options.count} replicates, one thread, {hardware()['processor']}")


if __name__ == "__main__":
    main()
