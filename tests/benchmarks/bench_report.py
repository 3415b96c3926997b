"""Reading a large sweep: report, SQL, the trials as CSV, and how soon a browser shows the page.

On generated results folders of 1,000 and 10,000 trials × 2 replicates with successive halving, as a real sweep leaves
them. Each task runs in a fresh process, several times; printed are the medians and ranges of wall seconds, of processor
seconds and of the growth of peak resident memory since the libraries were loaded. The page is opened from the disk in a
fresh headless Chromium, network off; its time runs from the address to the first plot on the screen.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from sweeper.reporting.page import write_report
from sweeper.results import load
from sweeper.storage.metadata import hardware
from sweeper.text.display import format_table
from tests.sweeper.reporting.browser import chromium
from tests.sweeper.synthetic_sweep import write_sweep

QUERY = (
    "SELECT config_loss_name, config_architecture_name, count(*), avg(ece), avg(nll) FROM final "
    "WHERE split = 'test' AND status = 'completed' GROUP BY ALL ORDER BY 4"
)


def report(folder: Path) -> None:
    """Write the page."""
    write_report(folder)


def query(folder: Path) -> None:
    """Group the last evaluations by loss and network."""
    load(folder).sql(QUERY)


def trials_as_csv(folder: Path) -> None:
    """Write the whole table of trials as CSV."""
    format_table(load(folder).table("trials"), "csv")


TASKS: dict[str, Callable[[Path], None]] = {
    "report.html": report, "SQL, grouped": query, "trials as CSV": trials_as_csv,
}  # fmt: skip


def measured(task: str, folder: Path) -> tuple[float, float, float]:
    """Return wall seconds, processor seconds and growth of peak memory in MiB of one task in this process."""
    before, began, worked = peak(), time.perf_counter(), time.process_time()
    TASKS[task](folder)
    return time.perf_counter() - began, time.process_time() - worked, peak() - before


def peak() -> float:
    """Return this process's peak resident memory in MiB.

    From the kernel's high-water mark: `ru_maxrss` of a child begins at what its parent held when it was started.
    """
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def in_a_process(task: str, folder: Path) -> tuple[float, float, float]:
    """Return `measured` of a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measured, task, folder).result()


async def page_seconds(page: Path) -> float:
    """Return the seconds from a page's address to its first plot on the screen, in a fresh browser."""
    with tempfile.TemporaryDirectory() as profile:
        async with chromium(Path(profile)) as tab:
            began = time.perf_counter()
            await tab.open(page, width=1280, height=900)
            await tab.wait_for("document.querySelector('.plot[data-drawn] .main-svg') !== null")
            return time.perf_counter() - began


def line(values: Sequence[float], unit: str, places: int = 2) -> str:
    """Return median and range."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{places}f} ({low:.{places}f} … {high:.{places}f}) {unit}"


def show(trials: int, folder: Path, rounds: int) -> None:
    """Measure and print one size of sweep."""
    files = [path.stat().st_size for path in folder.glob("generations/**/*.parquet")]
    print(f"\n{trials:,} trials × 2 replicates, {sum(files) / 2**20:.1f} MiB of Parquet, n = {rounds} each")
    for task in TASKS:
        wall, worked, memory = zip(*(in_a_process(task, folder) for _ in range(rounds)), strict=True)
        print(f"  {task:14} {line(wall, 's')}, processor {line(worked, 's')}, memory +{line(memory, 'MiB', 0)}")
    page = folder / "report.html"
    seconds = [asyncio.run(page_seconds(page)) for _ in range(rounds)]
    print(f"  opened         {line(seconds, 's')}, page of {page.stat().st_size / 2**20:.1f} MiB")


def main() -> None:
    """Generate the sweeps, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{hardware()}, load {os.getloadavg()[0]:.1f}")
    for trials in options.trials:
        with tempfile.TemporaryDirectory() as root:
            folder = write_sweep(
                Path(root) / f"of-{trials}", configurations=trials, samples=60, keep_predictions="finished"
            )
            show(trials, folder, options.rounds)


if __name__ == "__main__":
    main()
