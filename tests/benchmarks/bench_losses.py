"""How long each loss takes, forward and backward, relative to cross-entropy measured in the same run.

`python -m tests.benchmarks.bench_losses [--rounds 30] [--device cpu]` prints two tables: the losses alone on random
logits, and whole training steps of resnet8 with several of them. Contenders take turns, and each ratio is to a
cross-entropy timed right before, so drifts of the machine cancel.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from trainables.losses import LOSSES, build_loss
from trainables.models import build_model

SIZES = ((128, 100), (1024, 1000))
VARIANTS = (
    ("focal", {"smoothing": 0.1}),
    ("dual_focal", {"smoothing": 0.1}),
    ("mmce", {"variant": "plain"}),
    ("kde_xe", {"variant": "top_label"}),
    ("kde_xe", {"bandwidth": 0.1}),
)
STEPS = ("aurc", "selective_risk", "focal", "mmce", "kde_xe", "hessian_trace")


def contenders() -> dict[str, tuple[str, dict]]:
    """Every loss on logits with its defaults, cross-entropy first, and some variants."""
    names = [name for name, component in LOSSES.items() if "needs_model" not in component.tags]
    plain = {name: (name, {}) for name in names}
    variants = {f"{name} {' '.join(f'{k}={v}' for k, v in o.items())}": (name, o) for name, o in VARIANTS}
    return plain | variants


def loss_step(name: str, options: dict, samples: int, classes: int, device: str) -> Callable[[], None]:
    """Return one forward and backward pass of a loss on fixed random logits."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(samples, classes, generator=generator) * 2).to(device).requires_grad_()
    targets = torch.randint(classes, (samples,), generator=generator).to(device)
    loss = build_loss(name, **options)

    def step() -> None:
        logits.grad = None
        loss(logits, targets).backward()

    return step


def training_step(name: str, device: str) -> Callable[[], None]:
    """Return one SGD step of resnet8 on a batch of 128 digit-sized images."""
    torch.manual_seed(0)
    model = build_model("resnet8", (1, 8, 8), 10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, targets = torch.randn(128, 1, 8, 8, device=device), torch.randint(10, (128,), device=device)
    loss = build_loss(name)

    def step() -> None:
        optimizer.zero_grad()
        value = loss(model, inputs, targets) if loss.needs_model else loss(model(inputs), targets)
        value.backward()
        optimizer.step()

    return step


Readings = dict[str, list[tuple[float, float]]]


def measure(steps: dict[str, Callable[[], None]], rounds: int, device: str) -> Readings:
    """Return (seconds a step, ratio to cross-entropy) by contender and round.

    Cross-entropy is timed anew right before each contender.
    """
    baseline = steps["cross_entropy"]
    readings: Readings = {label: [] for label in steps}
    for _ in range(rounds):
        for label, step in steps.items():
            reference = timed(baseline, device)
            seconds = timed(step, device)
            readings[label].append((seconds, seconds / reference))
    return readings


def timed(step: Callable[[], None], device: str) -> float:
    """Return seconds a step, averaged over about 5 ms, after two untimed ones that warm caches and allocator."""
    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    step()
    synchronise()
    start = time.perf_counter()
    step()
    synchronise()
    repeats = max(1, min(100, int(0.005 / (time.perf_counter() - start))))
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    synchronise()
    return (time.perf_counter() - start) / repeats


def print_table(title: str, readings: Readings) -> None:
    """Print median milliseconds and the ratio to cross-entropy with its quartiles over rounds."""
    print(f"\n{title}\n{'loss':<34} {'median ms':>10} {'ratio':>7} {'quartiles':>15} {'n':>4}")
    for label, pairs in readings.items():
        seconds, ratios = zip(*pairs, strict=True)
        low, middle, high = statistics.quantiles(ratios, n=4)
        spread = f"{low:.2f} … {high:.2f}"
        print(f"{label:<34} {1e3 * statistics.median(seconds):>10.3f} {middle:>7.2f} {spread:>15} {len(ratios):>4}")


def hardware(device: str) -> str:
    """Return what the figures were measured on."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {torch.get_num_threads()} threads"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(f"{hardware(options.device)}; torch {torch.__version__}; float32")
    for samples, classes in SIZES:
        steps = {
            label: loss_step(name, chosen, samples, classes, options.device)
            for label, (name, chosen) in contenders().items()
        }
        title = f"forward and backward of the loss alone, {samples} samples × {classes} classes"
        print_table(title, measure(steps, options.rounds, options.device))
    steps = {name: training_step(name, options.device) for name in ("cross_entropy", *STEPS)}
    print_table("training step, resnet8 on 128 images 1×8×8, SGD", measure(steps, 2 * options.rounds, options.device))


if __name__ == "__main__":
    main()
