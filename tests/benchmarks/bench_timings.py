"""Where the time of a small sweep goes: the phases that `sweeper run --timings` prints, over several runs.

    python -m tests.benchmarks.bench_timings [--runs 5] [--executor auto] [--full] [--against FOLDER]

48 configurations of the quickstart's space, one replicate, no curvature, as `bench_peers`; `--full`: as it ships.
`--against` names another checkout: both take turns, and what that one does not print is left out. Everything is on:
tables, report, MLflow. Fixed cost is what passes before the first report and after the last.
"""

from __future__ import annotations

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

ROOT = Path(__file__).resolve().parents[2]
ONE_POOL = "scheduler={name: asha, max_epochs: 27, grace_epochs: 3, reduction_factor: 3}"
LIGHT = tuple(
    word
    for setting in ("samples=48", "replicates=1", "which=[]", "evaluation.curvature=false", ONE_POOL)
    for word in ("--set", setting)
)
LINE = re.compile(r"^ (?P<phase>\S.*?)\s+(?P<took>[\d.]+)\s+(?P<at>[\d.]+)\s*$")
PHASES = ("first report", "last report")


def run(checkout: Path, arguments: list[str], output: Path) -> tuple[float, dict[str, float]]:
    """Run the sweep from `checkout`; return its wall time and the end of each phase, in seconds from its start."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "sweeper", "run", "quickstart", "--output", str(output), *arguments]
    asked = subprocess.run([*command[:3], "run", "--help"], env=environment, capture_output=True, text=True, check=True)
    command += ["--timings"] if "--timings" in asked.stdout else []
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=output.parent, capture_output=True, text=True)
    wall = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return wall, {found["phase"]: float(found["at"]) for found in map(LINE.match, done.stdout.splitlines()) if found}


def show(label: str, walls: list[float], phases: list[dict[str, float]]) -> None:
    """Print the median, least and greatest of wall time, each phase's end, and the fixed cost."""

    def line(name: str, values: list[float]) -> None:
        spread = f"({min(values):.2f} to {max(values):.2f}, n = {len(values)})"
        print(f"  {name:<26}{statistics.median(values):7.2f} {spread}")

    print(f"{label}: seconds from the command")
    for phase in phases[0]:
        line(phase, [each[phase] for each in phases])
    line("exit", walls)
    if phases[0]:
        first, last = PHASES
        line("fixed cost", [wall - each[last] + each[first] for wall, each in zip(walls, phases, strict=True)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--executor", default="auto", choices=("auto", "local", "ray"))
    parser.add_argument("--full", action="store_true", help="fresh seeds and curvature, as the quickstart ships")
    parser.add_argument("--against", type=Path, help="another checkout, run in turns")
    options = parser.parse_args()
    arguments = ["--executor", options.executor, *(() if options.full else LIGHT)]
    checkouts = {"this checkout": ROOT, **({str(options.against): options.against} if options.against else {})}
    walls: dict[str, list[float]] = {label: [] for label in checkouts}
    phases: dict[str, list[dict[str, float]]] = {label: [] for label in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.runs):
            for place, (label, checkout) in enumerate(checkouts.items()):
                wall, ends = run(checkout, arguments, Path(folder) / f"{number}-{place}")
                walls[label].append(wall)
                phases[label].append(ends)
                print(f"run {number + 1}, {label}: {wall:.1f} s", flush=True)
    for label in checkouts:
        show(label, walls[label], phases[label])
    print(hardware())


if __name__ == "__main__":
    main()
