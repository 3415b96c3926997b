"""Where the time of a small sweep goes: the phases that `sweeper run --timings` prints, over several runs.

    python -m tests.benchmarks.bench_timings [--runs 5] [--executor auto] [--full] [--against FOLDER]

48 configurations of the quickstart's space with resnet8 at its whole width, one replicate, no curvature, as
`bench_peers`; `--full`: the quickstart as it ships.
`--against` names another checkout: both take turns, and what that one does not print is left out. Everything is on:
tables, report, MLflow. Fixed cost is what passes before the first report and after the last.

    python -m tests.benchmarks.bench_timings --parts [--full]

says instead where the processor's seconds of one run go, by process and part: py-spy, which has to be installed, looks
at all processes fifty times a second. What waits for a core counts as busy, as MLflow's process at low priority does
while trials train. `TIMELINE.md` has such a table.
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

PROCESSES = {
    "multiprocessing.forkserver": "trials",
    "sweeper.tracking.sync": "MLflow",
    "write_report": "driver",
    "sweeper run": "driver",
    '""': "driver",
}
"""What is in a process's command, and its name in the table; py-spy 0.4 can read the first one before it is set."""

PARTS = {
    "MLflow: store": ("Projection.prepare ",),
    "imports": ("<frozen importlib",),
    "curvature": ("curvature_columns ", "_curvature_together "),
    "post-hoc methods": ("posthoc_columns ", "cross_fitted_columns "),
    "standard errors": ("standard_errors ",),
    "other metrics": ("metrics_row ", "metrics_of_networks "),
    "predictions to evaluate": ("Trial._evaluate ", "evaluated_together "),
    "validation after an epoch": ("validation_logits ",),
    "training: backward": ("Tensor.backward ",),
    "training: forward and loss": ("Replicate._loss_of ",),
    "training: the rest": ("train_epoch ",),
    "checkpoints": ("Trial.save ", "CheckpointWriter"),
    "report": ("write_report ",),
    "summary": ("_print_run ",),
    "tables": ("tables/",),
    "space and plan": ("load_spec ", "_run_spec "),
    "MLflow: runs": ("Projection.advance ",),
    "MLflow: files": ("Projection.attach ",),
}
"""Parts by what a stack has in it; the first that matches counts."""

SAMPLES_A_SECOND = 50


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
    return wall, {match["phase"]: float(match["at"]) for match in map(LINE.match, done.stdout.splitlines()) if match}


def parts_of(stacks: list[str]) -> dict[tuple[str, str], float]:
    """Return (process, part) → seconds of processor time, from py-spy's collapsed stacks."""
    seconds: dict[tuple[str, str], float] = {}
    for line in stacks:
        stack, _, samples = line.rstrip().rpartition(" ")
        if not samples.isdigit():  # a command of several lines
            continue
        frames = stack.split(";")
        command = next((frame for frame in reversed(frames) if frame.startswith("process ")), frames[0])
        process = next((name for text, name in PROCESSES.items() if text in command), "others")
        part = next((name for name, texts in PARTS.items() if any(text in stack for text in texts)), "the rest")
        seconds[process, part] = seconds.get((process, part), 0.0) + int(samples) / SAMPLES_A_SECOND
    return seconds


def show_parts(arguments: list[str]) -> None:
    """Print the table of parts of one run as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        stacks, output = Path(folder) / "stacks", Path(folder) / "results"
        subprocess.run(
            ["py-spy", "record", "--subprocesses", "--rate", str(SAMPLES_A_SECOND), "--format", "raw",
             "--output", str(stacks), "--", sys.executable, "-m", "sweeper", "run", "quickstart",
             "--output", str(output), *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True,
        )  # fmt: skip
        seconds = parts_of(stacks.read_text().splitlines())
    print(f"{hardware()}\n\n| process | part | seconds | share |\n|---|---|---|---|")
    whole = sum(seconds.values())
    for (process, part), took in sorted(seconds.items(), key=lambda item: -item[1]):
        if took >= 0.2:
            print(f"| {process} | {part} | {took:.1f} | {took / whole:.1%} |")
    print(f"| all | | {whole:.1f} | |")


def show(label: str, walls: list[float], phases: list[dict[str, float]]) -> None:
    """Print the median, least and greatest of wall time, each phase's end, and the fixed cost."""

    def line(name: str, values: list[float]) -> None:
        spread = f"({min(values):.2f} to {max(values):.2f}, n = {len(values)})"
        print(f"  {name:<26}{statistics.median(values):7.2f} {spread}")

    print(f"{label}: seconds from the command")
    for phase in phases[0]:
        line(phase, [ends[phase] for ends in phases])
    line("exit", walls)
    if phases[0]:
        first, last = PHASES
        line("fixed cost", [wall - ends[last] + ends[first] for wall, ends in zip(walls, phases, strict=True)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--executor", default="auto", choices=("auto", "local", "ray"))
    parser.add_argument("--full", action="store_true", help="fresh seeds and curvature, as the quickstart ships")
    parser.add_argument("--against", type=Path, help="another checkout, run in turns")
    parser.add_argument("--parts", action="store_true", help="processor time by process and part, of one run")
    options = parser.parse_args()
    arguments = ["--executor", options.executor, *(() if options.full else LIGHT)]
    if options.parts:
        show_parts(arguments)
        return
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
