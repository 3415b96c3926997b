"""Peak memory of replicates trained together, each count in a fresh process.

On a CPU it is the growth of the process's resident peak since its libraries and data were loaded; on a card, what
torch's allocator held at most. A lane costs its weights, gradients, optimiser state and activations of one batch.
"""

from __future__ import annotations

import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor

import torch

from tests.benchmarks.bench_replicates import ROWS, build, data_for
from tests.packs import pack

WARM_UP_BYTES = 2**22


def peak_megabytes(architecture: str, lanes: int, packing: str, device: str = "cpu") -> float:
    """Train `lanes` replicates for two epochs of a step each in this process; return what that took at most, in MiB."""
    torch.set_num_threads(1)
    torch.ones(WARM_UP_BYTES).square().sum().item()  # libraries take their own memory with the first operation
    data = data_for(ROWS[architecture][0], 1, ROWS[architecture][2]).to(device)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    group = pack([build(architecture, seed, data, device) for seed in range(lanes)], packing)
    for _ in range(2):
        group.train_epoch()
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def in_a_process(architecture: str, lanes: int, packing: str, device: str = "cpu") -> float:
    """Return `peak_megabytes` of a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(peak_megabytes, architecture, lanes, packing, device).result()


def megabytes_a_lane(counts: list[int], peaks: list[float]) -> float:
    """Return the slope of a straight line through the peaks, by least squares."""
    x, y = torch.tensor(counts, dtype=torch.float64), torch.tensor(peaks, dtype=torch.float64)
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())
