"""Where the time of a small sweep goes: the phases that `sweeper run --timings` prints, over several runs.

    python -m tests.benchmarks.bench_timings [--runs 5] [--executor auto]

48 configurations of the quickstart's space with resnet8 at its whole width, one replicate, no curvature, as
`bench_peers`. Everything is on: tables, report, MLflow. Fixed cost is what passes before the first report and after
the last.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sweeper.storage.metadata import hardware
from tests.benchmarks.bench_peers import WHOLE_WIDTH

ROOT = Path(__file__).resolve().parents[2]
ONE_POOL = "scheduler={name: asha, max_epochs: 27, grace_epochs: 3, reduction_factor: 3}"
LIGHT = tuple(
    word
    for setting in ("samples=48", "replicates=1", "which=[]", "evaluation.curvature=false", ONE_POOL, *WHOLE_WIDTH)
    for word in ("--set", setting)
)
LINE = re.compile(r"^ (?P<phase>\S.*?)\s+(?P<took>[\d.]+)\s+(?P<at>[\d.]+)\s*$")
PHASES = ("first report", "last report")


def run(arguments: list[str], output: Path) -> tuple[float, dict[str, float]]:
    """Run the sweep; return its wall time and the end of each phase, in seconds from its start."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "sweeper", "run", "quickstart", "--output", str(output), *arguments, "--timings"]
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=output.parent, capture_output=True, text=True)
    wall = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return wall, {match["phase"]: float(match["at"]) for match in map(LINE.match, done.stdout.splitlines()) if match}


def show(walls: list[float], phases: list[dict[str, float]]) -> None:
    """Print the median, least and greatest of wall time, each phase's end, and the fixed cost."""

    def line(name: str, values: list[float]) -> None:
        spread = f"({min(values):.2f} to {max(values):.2f}, n = {len(values)})"
        print(f"  {name:<26}{statistics.median(values):7.2f} {spread}")

    print("seconds from the command")
    for phase in phases[0]:
        line(phase, [ends[phase] for ends in phases])
    line("exit", walls)
    first, last = PHASES
    line("fixed cost", [wall - ends[last] + ends[first] for wall, ends in zip(walls, phases, strict=True)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--executor", default="auto", choices=("auto", "local", "ray"))
    options = parser.parse_args()
    walls: list[float] = []
    phases: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.runs):
            wall, ends = run(["--executor", options.executor, *LIGHT], Path(folder) / str(number))
            walls.append(wall)
            phases.append(ends)
            print(f"run {number + 1}: {wall:.1f} s", flush=True)
    show(walls, phases)
    print(hardware())


if __name__ == "__main__":
    main()
