"""What each measurement of curvature takes as a share of a training epoch: `make bench-curvature-shares`.

An evaluation measures one sample in 64, or `--samples`: plain (six Lanczos steps, four probes, cross-entropy alone),
and what blocks, H = G + R, SAM's and ASAM's sharpness, the Fisher trace and the tempered loss take besides. Random
images: 50,000 of 1×28×28 for mlp, 8,960 of 3×8×8 for the ResNets. An epoch's time is that of two batches times their
number. The least of several rounds, in turns: on a machine that others use, it varies least. A measurement takes at
least about 10 ms (a copy of the network, three forward passes), which is all of a digits epoch of an mlp.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from trainables.curvature import CurvatureSettings
from trainables.curvature.blocks import block_names
from trainables.curvature.measure import Tempered, measure_by_block
from trainables.datasets.base import Split
from trainables.losses import build_loss
from trainables.models import build_model
from trainables.training.evaluation import curvature_subset
from trainables.training.fine_tuning import layer_numbers

BATCH = 64


#: Network → training samples and their shape.
DATA = {"mlp": (50_000, (1, 28, 28)), "resnet8": (8960, (3, 8, 8)), "resnet20": (8960, (3, 8, 8))}


def least(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Least seconds of each call, taken in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return {name: min(each) for name, each in seconds.items()}


def shares(name: str, rounds: int, samples: int | None) -> tuple[float, dict[str, float]]:
    """Seconds of an epoch, and measurement → its share."""
    torch.manual_seed(0)
    count, shape = DATA[name]
    train = Split(torch.randn(count, *shape), torch.randint(0, 10, (count,)))
    model = build_model(name, shape, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss, (inputs, targets) = build_loss("cross_entropy"), curvature_subset(train, 2 * BATCH)

    def two_steps() -> None:
        model.train()
        for x, y in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()

    calls: dict[str, Callable[[], object]] = {"epoch": two_steps}
    two_steps()  # allocations
    plain = CurvatureSettings(lanczos_steps=6, trace_probes=4, samples=samples or len(train.targets) // 64)
    data = curvature_subset(train, plain.samples)
    cases: dict[str, tuple[CurvatureSettings, dict[str, Any], dict[str, str] | None]] = {
        "plain": (plain, {"loss": loss}, None),
        "blocks": (plain, {"loss": loss}, block_names(layer_numbers(model))),
        "H = G + R": (replace(plain, statistics=("gauss_newton",)), {"loss": loss}, None),
        "sharpness": (replace(plain, statistics=("sharpness",)), {"loss": loss}, None),
        "Fisher": (replace(plain, statistics=("fisher",)), {"loss": loss}, None),
        "tempered": (plain, {"loss": loss, "tempered": Tempered(1.5)}, None),
    }
    for label, (settings, losses, blocks) in cases.items():
        calls[label] = partial(measure_by_block, model, *data, losses, settings=settings, seed=0, blocks=blocks)
    found = least(calls, rounds)
    epoch = found.pop("epoch") * count / (2 * BATCH)
    base = found.get("plain", 0.0)
    return epoch, {k: (v - (0 if k == "plain" else base)) / epoch for k, v in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=[*DATA])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for at, name in enumerate(asked.networks):
        epoch, found = shares(name, asked.rounds, asked.samples)
        if at == 0:
            print(f"| network | epoch, s | {' | '.join(found)} |\n|---|---|{'---|' * len(found)}", flush=True)
        print(f"| {name} | {epoch:.2f} | {' | '.join(f'{share:.1%}' for share in found.values())} |", flush=True)


if __name__ == "__main__":
    main()
