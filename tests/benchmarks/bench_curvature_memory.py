"""The memory of a Hessian-vector product by how many samples pass together, beside checkpointed segments.

Peak resident memory of a process less that of one that does everything but the product, for ResNet-20 and vit_small_32
on 64 images of 3×32×32: chunks of 1 to 64 samples without kept graphs, and all 64 samples at once with every block of
the network recomputed in the backward passes (torch.utils.checkpoint). Seconds are one product's, on one thread.

    make bench-curvature-memory
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

SAMPLES = 64
CHUNKS = (1, 4, 16, 64)
WAYS = ("nothing", *(f"chunks of {size}" for size in CHUNKS), "segments")


class Segment(nn.Module):
    """A block that keeps its inputs alone, and computes the rest again where it is needed."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the block."""
        found: torch.Tensor = checkpoint(self.block, inputs, use_reentrant=False, preserve_rng_state=False)
        return found


def segmented(model: nn.Module) -> nn.Module:
    """Wrap each block of a network."""
    for name, child in model.named_children():
        if type(child).__name__ in ("BasicBlock", "Block", "PreActivationBlock"):
            setattr(model, name, Segment(child))
        else:
            segmented(child)
    return model


def one(network: str, way: str) -> None:
    """Take one product in this process; print its peak in MiB and the seconds."""
    from trainables.curvature import hessian
    from trainables.curvature.hessian import HessianOperator, Surface, no_graphs_kept, second_order
    from trainables.losses import build_loss
    from trainables.models import build_model

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build_model(network, (3, 32, 32), 10)
    model = segmented(model) if way == "segments" else model
    inputs, targets = torch.randn(SAMPLES, 3, 32, 32), torch.arange(SAMPLES) % 10
    hessian.LARGEST_CHUNK = int(way.split()[-1]) if way.startswith("chunks") else SAMPLES
    seconds = 0.0
    with no_graphs_kept(), second_order(torch.device("cpu")):
        surface = Surface(model, inputs, targets, batch_size=1)
        if way != "nothing":
            operator = HessianOperator(surface, build_loss("cross_entropy"))
            vector = torch.ones(surface.dimension, dtype=surface.basis_type)
            started = time.perf_counter()
            operator.product(vector)
            seconds = time.perf_counter() - started
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, seconds)


def main() -> None:
    """Run each way in a process of its own and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=2)
    parser.add_argument("--networks", nargs="+", default=["resnet20", "vit_small_32"])
    options = parser.parse_args()
    if options.one:
        one(*options.one)
        return
    for network in options.networks:
        idle = 0.0
        for way in WAYS:
            command = [sys.executable, "-m", "tests.benchmarks.bench_curvature_memory", "--one", network, way]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"{network}, {way}: {done.stderr.strip().splitlines()[-1]}")
                continue
            peak, seconds = map(float, done.stdout.split())
            idle = peak if way == "nothing" else idle
            print(f"{network}, {way}: {peak - idle:.0f} MiB, {seconds:.2f} s")


if __name__ == "__main__":
    main()
