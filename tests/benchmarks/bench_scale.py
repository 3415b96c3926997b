"""What a sweep of many small trials costs, and what it costs to read one: `SCALE.md` has the result.

    python -m tests.benchmarks.bench_scale [--trials 1000 3000 10000] [--rounds 3] [--beside CHECKOUT] [--kept FOLDER]

Mlps of 4 to 16 units on digits, one to three epochs under ASHA, evaluation with temperature scaling, all tables, and
MLflow in an SQLite file. Then each command reads each sweep, `--rounds` times. Measured are processor time of the
command and of all processes that it waits for, which other programs on the machine disturb less than wall time, and the
largest resident memory of one process. `--beside` measures another checkout on the same sweeps, in turn. `--kept` makes
the sweeps in a folder that stays, and uses those that are there.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from sweeper.storage.metadata import hardware

ROOT = Path(__file__).resolve().parents[2]

SPACE = {
    "dataset": {"name": "digits"},
    "objective": {"metric": "val_posthoc_temperature_nll"},
    "scheduler": {"name": "asha", "variant": "promotion", "max_epochs": 3, "grace_epochs": 1, "reduction_factor": 3},
    "seed": 0,
    "space": {
        "loss": {"one_of": [{"name": "cross_entropy"}, {"name": "focal", "gamma": {"uniform": [0.5, 10]}}]},
        "architecture": {"name": "mlp", "width": {"randint": [4, 16]}},
        "optimizer": {
            "name": "sgd",
            "lr": {"loguniform": [0.01, 0.3]},
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 128,
            "schedule": "cosine",
        },
    },
    "resources": {"cpu": 1, "gpu": 0},
    "evaluation": {"bins": 15, "posthoc": ["temperature"], "curvature": False},
}

COMMANDS = ("status {}", "results {}", "show {}", "status {} --audit", "report {} --to page.html", "resume {}")


def measured(checkout: Path, folder: Path, words: str) -> tuple[float, float, float]:
    """Run a command in `folder`; return processor seconds, wall seconds and largest resident memory in MB."""
    began, environment = time.perf_counter(), {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "sweeper", *words.split()]
    with (folder / "output.txt").open("wb") as output:
        started = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)
        _, status, used = os.wait4(started.pid, 0)
    if status:
        raise SystemExit((folder / "output.txt").read_text("utf-8", "replace"))
    return used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss / 1024


def line(name: str, runs: list[tuple[float, float, float]], size: int = 0) -> None:
    """Print a row of the table: the median and range of processor time, the medians of the others."""
    processor, wall, memory = zip(*runs, strict=True)
    spread = f"{statistics.median(processor):.2f} ({min(processor):.2f} … {max(processor):.2f})"
    page = f"{size / 2**20:.2f}" if size else ""
    print(f"| {name} | {spread} | {statistics.median(wall):.1f} | {max(memory):.0f} | {page} |", flush=True)


def make(count: int, folder: Path) -> None:
    """Run a sweep of `count` trials in `folder`, unless it is there, and print its row."""
    name = f"s{count}"
    if (folder / "results" / name).exists():
        return
    (folder / "space.yaml").write_text(yaml.safe_dump({**SPACE, "samples": count}), "utf-8")
    line(f"run {name}", [measured(ROOT, folder, f"run space.yaml --name {name} --executor local")])


def read(count: int, folder: Path, checkouts: list[Path], rounds: int) -> None:
    """Print a row for each command on a sweep and each checkout."""
    for command in COMMANDS:
        words, runs = command.format(f"s{count}"), {checkout: [] for checkout in checkouts}
        for _ in range(rounds):
            for checkout in checkouts:
                runs[checkout].append(measured(checkout, folder, words))
        for checkout in checkouts:
            size = (folder / "page.html").stat().st_size if "--to" in words and checkout == checkouts[-1] else 0
            line(f"{words.split(' --to')[0]}{'' if checkout == ROOT else ' beside'}", runs[checkout], size)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[1000, 3000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--kept", type=Path)
    options = parser.parse_args()
    print("| command | processor s, median (range) | wall s | peak MB | page MB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.kept or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        checkouts = [*([options.beside.resolve()] if options.beside else []), ROOT]
        for count in options.trials:
            make(count, folder)
            read(count, folder, checkouts, options.rounds)
    print(hardware())


if __name__ == "__main__":
    main()
