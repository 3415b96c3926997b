"""Memory a lane: peak against the number of lanes, fused and one after the other, by network."""

from __future__ import annotations

import argparse

import torch

from tests.benchmarks.bench_replicates import ROWS
from tests.benchmarks.lane_memory import in_a_process, megabytes_a_lane
from trainables.training.lanes.packing import FUSED, SEQUENTIAL


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS])
    parser.add_argument("--lanes", nargs="+", type=int, default=[1, 2, 5, 10])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("bench-lane-memory --device cuda needs a CUDA card, and torch sees none; choose --device cpu")
    if len(options.lanes) < 2:
        raise SystemExit("bench-lane-memory needs two counts of lanes to tell what one more takes, e.g. --lanes 1 5")
    print(f"peak MiB by lanes {options.lanes}, {options.device}; a process each")
    for row in options.rows:
        for packing in (FUSED, SEQUENTIAL):
            peaks = [in_a_process(row, lanes, packing, options.device) for lanes in options.lanes]
            listed = "".join(f"{peak:9.1f}" for peak in peaks)
            slope = megabytes_a_lane(options.lanes, peaks)
            print(f"{row:<10}batch {ROWS[row][2]:<5}{packing:<12}{listed}   {slope:7.1f} a lane", flush=True)


if __name__ == "__main__":
    main()
