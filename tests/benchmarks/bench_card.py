"""What a GPU does for a sweep, in minutes and on one page: `make check-gpu` ends with it.

Samples/s of training steps on images of CIFAR's shape: networks by ways to compute; processes that share the card, each
capped at its share of the memory; lanes of one network; and seconds of one curvature measurement and of one grid of
focal temperature. A figure is the median of epochs that fill `--seconds`, after one that does not count; the spread is
said beside it where it is more than a tenth. What no time is left for (`--budget`) is said to be so.

`--device cpu --smoke` runs the same code on tiny networks without a card; its figures mean nothing.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from sweeper.storage.metadata import hardware
from tests.benchmarks.bench_replicates import configuration, data_for
from tests.packs import Packed, pack
from trainables.curvature import CurvatureSettings, measure_curvature
from trainables.losses import build_loss
from trainables.training.acceleration import PLAIN, TrainingSettings, prepare_arithmetic
from trainables.training.evaluation import curvature_subset
from trainables.training.lanes.packing import LANES, SEQUENTIAL
from trainables.training.loop import Replicate

BEST = "bfloat16, channels-last"
WAYS = {
    "float32": PLAIN,
    "TF32": TrainingSettings(precision="tf32"),
    "bfloat16": TrainingSettings(precision="bfloat16"),
    "channels-last": TrainingSettings(memory_format="channels_last"),
    BEST: TrainingSettings("bfloat16", "channels_last"),
    "deterministic": TrainingSettings(deterministic=True),
    "data on host": TrainingSettings(data="host"),
    "compiled": TrainingSettings(compile=True),  # last: it takes longest to begin
}
ON_CARDS = {"TF32"}
"""Ways that a CPU does not have."""

SHARES = "shares"
CLASSES = 100


@dataclass(frozen=True)
class Size:
    """How much is measured; the defaults are a card's."""

    device: str = "cuda"
    networks: tuple[str, ...] = ("resnet8", "resnet20", "resnet18", "resnet50")
    ways: tuple[str, ...] = tuple(WAYS)
    lanes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    shares: tuple[int, ...] = (1, 2, 4)
    steps: int = 40
    batch_size: int = 128
    width: float | None = None
    seconds: float = 1.5
    curvature: CurvatureSettings = field(default_factory=CurvatureSettings)


SMOKE = Size("cpu", ("resnet8",), tuple(WAYS), (1, 2), (1,), 1, 4, 0.25, 0.0, 60,
             CurvatureSettings(lanczos_steps=2, trace_probes=2))  # fmt: skip


class Clock:
    """Whether there is time left."""

    def __init__(self, budget: float) -> None:
        """Begin with `budget` seconds."""
        self._end = time.monotonic() + budget

    def spent(self) -> bool:
        """Return whether it is over."""
        return time.monotonic() >= self._end


def build(size: Size, network: str, training: TrainingSettings = PLAIN, count: int = 1) -> list[Replicate]:
    """Return networks of one kind, ready to be trained."""
    prepare_arithmetic(training, size.device)
    data = data_for("cifar", size.steps, size.batch_size)
    # One sample to validate on: validation is plain whatever the way.
    data = replace(data, val=replace(data.val, inputs=data.val.inputs[:1], targets=data.val.targets[:1]))
    data = data.to(size.device, streamed=training.data == "host")
    values = configuration(network, size.batch_size)
    values["architecture"] |= {"width": size.width} if size.width is not None else {}
    return [
        Replicate(values, seed=seed, dataset=data, max_epochs=10_000, device=size.device, training=training)
        for seed in range(count)
    ]


def rate(size: Size, ready: Packed, samples: int) -> str:
    """Return samples/s, `samples` being those of an epoch of all lanes."""
    _timed(size, ready.train_epoch)
    times: list[float] = []
    while len(times) < 2 or (sum(times) < size.seconds and len(times) < 50):
        times.append(_timed(size, ready.train_epoch))
    rates = [samples / taken for taken in times]
    spread = f" ({min(rates):,.0f} … {max(rates):,.0f})" if max(rates) > 1.1 * min(rates) else ""
    return f"{statistics.median(rates):,.0f}{spread}"


def measured(clock: Clock, measure: Callable[[], str], size: Size) -> str:
    """Return a cell of the table: a figure, or why there is none."""
    if clock.spent():
        return "no time left"
    try:
        return measure()
    except Exception as error:  # the other cells count whatever is wrong with this one
        return f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:60]}"
    finally:
        prepare_arithmetic(PLAIN, size.device)
        if size.device == "cuda":
            torch.cuda.empty_cache()


def speeds(size: Size, clock: Clock) -> list[list[str]]:
    """Return samples/s, a row for each way and a column for each network."""
    rows = [["samples/s", *size.networks]]
    for way in size.ways:
        cells = []
        for network in size.networks:
            if size.device == "cpu" and way in ON_CARDS:
                cells.append("needs a GPU")
                continue

            def measure(network: str = network, way: str = way) -> str:
                return rate(size, pack(build(size, network, WAYS[way]), SEQUENTIAL), size.steps * size.batch_size)

            cells.append(measured(clock, measure, size))
        rows.append([way, *cells])
        print(f"  {way}: {', '.join(cells)}", flush=True)
    return rows


def lanes(size: Size, clock: Clock) -> list[list[str]]:
    """Return samples/s of all lanes of the first network, with the most memory they took."""
    rows = [[f"lanes of {size.networks[0]}", "samples/s together", "MiB"]]
    for count in size.lanes:

        def measure(count: int = count) -> str:
            together = pack(build(size, size.networks[0], count=count), LANES if count > 1 else SEQUENTIAL)
            return rate(size, together, count * size.steps * size.batch_size)

        if size.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        cell = measured(clock, measure, size)
        taken = f"{torch.cuda.max_memory_allocated() / 2**20:,.0f}" if size.device == "cuda" else "-"
        rows.append([str(count), cell, taken])
    return rows


_trained: dict[str, Packed] = {}


def _prepare_share(size: Size, network: str, share: float) -> None:
    """Cap this process at `share` of the GPU's memory, build a network in it and train one epoch."""
    if size.device == "cuda" and share < 1:
        torch.cuda.set_per_process_memory_fraction(share)
    torch.set_num_threads(1)
    _trained["network"] = pack(build(size, network), SEQUENTIAL)
    _train_share(size)


def _train_share(size: Size) -> None:
    _timed(size, _trained["network"].train_epoch)


def together(size: Size, network: str, count: int) -> str:
    """Return samples/s of `count` processes, each capped at its share of the GPU's memory: median of three rounds."""
    spawn = multiprocessing.get_context("spawn")
    rates: list[float] = []
    with ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn)) for _ in range(count)]
        for preparing in [pool.submit(_prepare_share, size, network, 1 / count) for pool in pools]:
            preparing.result()
        for _ in range(3):
            started = time.perf_counter()
            for running in [pool.submit(_train_share, size) for pool in pools]:
                running.result()
            rates.append(count * size.steps * size.batch_size / (time.perf_counter() - started))
    return f"{statistics.median(rates):,.0f} samples/s ({min(rates):,.0f} … {max(rates):,.0f})"


def shares(size: Size, clock: Clock) -> list[list[str]]:
    """Return samples/s of processes that share the GPU."""
    network = size.networks[min(1, len(size.networks) - 1)]
    heading = [f"processes of {network}", "together"]
    figures = {n: measured(clock, partial(together, size, network, n), size) for n in size.shares}
    return [heading, *([f"{n} × 1/{n}", figure] for n, figure in figures.items())]


def measurements(size: Size, clock: Clock) -> list[list[str]]:
    """Return seconds of one curvature measurement on the device."""
    rows = [["once at a rung", "seconds"]]
    network = size.networks[0]

    def curvature() -> str:
        (replicate,) = build(size, network)
        inputs, targets, _ = curvature_subset(replicate.dataset.train, size.curvature.samples)
        losses = {"training": build_loss("focal", gamma=2.0), "cross_entropy": build_loss("cross_entropy")}

        def measure() -> object:
            return measure_curvature(replicate.model, inputs, targets, losses, settings=size.curvature, seed=0)

        return f"{_timed(size, measure):.2f} ({len(targets):,} samples)"

    rows.append([f"curvature of {network}, two losses", measured(clock, curvature, size)])
    return rows


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table, the first being its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


SECTIONS: dict[str, Callable[[Size, Clock], list[list[str]]]] = {
    "measurements": measurements, LANES: lanes, SHARES: shares, "speeds": speeds,
}  # fmt: skip


def summary(size: Size, sections: Sequence[str], budget: float) -> str:
    """Measure, and return all tables."""
    clock = Clock(budget)
    torch.set_num_threads(1)
    return "\n\n".join(text_table(SECTIONS[section](size, clock)) for section in SECTIONS if section in sections)


def _timed(size: Size, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    if size.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--smoke", action="store_true", help="tiny networks, to see that the command works")
    parser.add_argument("--budget", type=float, default=330.0, help="seconds after which nothing more is begun")
    parser.add_argument("--seconds", type=float, default=Size.seconds, help="that a figure is measured for")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=[*SECTIONS])
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "bench-card needs a CUDA card, and torch sees none; to see the command work without one: "
            "python -m tests.benchmarks.bench_card --device cpu --smoke"
        )
    size = SMOKE if options.smoke else replace(Size(), seconds=options.seconds)
    size = replace(size, device=options.device)
    name = torch.cuda.get_device_name() if options.device == "cuda" else hardware()["processor"]
    head = f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, batches of {size.batch_size}, 3×32×32"
    print(head + ", smoke: figures mean nothing" * options.smoke, flush=True)
    tables = summary(size, options.sections, options.budget)
    print(f"\n{head}\n\n{tables}", flush=True)


if __name__ == "__main__":
    main()
