"""How often what the program says of uncertainty holds: coverage, false statements and power, by simulation.

    make bench-statistics                      # the table on stdout, some twenty minutes on two idle cores
    python -m tests.benchmarks.bench_statistics --write    # the same, kept in tests/benchmarks/STATISTICS.md
    python -m tests.benchmarks.bench_statistics --claims --write    # claims and prediction sets too

`simulated_judge` has the laws and the questions to the judge, `simulated_claims` the claims and prediction sets.
Every row has its number of draws; a rate has a simulation error of √(rate (1 − rate) / draws).
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

from sweeper.judging.means import means
from sweeper.judging.question import Data, Question
from sweeper.reporting.figures.shift import change
from tests.benchmarks.simulated_claims import HEADING, simulate_claims, simulate_conformal, simulate_intervals
from tests.benchmarks.simulated_judge import Law, Simulated, drawn, errors, spreads_of, tasks as judge_tasks

TABLE = Path(__file__).with_name("STATISTICS.md")


def intervals(law: Law, draws: int) -> list[Simulated]:
    """Return how often intervals of means miss, of all candidates and of a winner chosen from 48 of them."""
    rng, missed, winner, narrow = np.random.default_rng(5), 0.0, 0, 0.0
    for _ in range(draws):
        values, truth = drawn(law, rng, apart=False)
        question = Question([*values], "nll", relative=True, level=0.95)
        known = means(question, Data(values))
        best = min(known, key=lambda name: known[name].value)
        chosen = means(question, Data(values), chosen_from=law.candidates)[best]
        missed += np.mean([not known[n].low <= t <= known[n].high for n, t in zip(values, truth, strict=True)])
        narrow += np.mean([0 < mean.high <= 2 * mean.low for mean in known.values()])
        winner += not chosen.low <= truth[int(best)] <= chosen.high
    count = draws * law.candidates
    return [
        Simulated("intervals of all configurations miss", law.text(), count, missed / draws, 0.05, narrow / draws),
        Simulated("winner's interval misses its true mean", law.text(), draws, winner / draws, 0.05, None),
    ]


INTERVALS = [
    *(Law(spreads, correlation=None, seeds=n) for spreads in ("equal", "log-normal", "15 : 1") for n in (2, 3, 5)),
    *(Law(noise=noise, correlation=None, seeds=n) for noise in ("t₃", "skewed") for n in (2, 3, 5)),
    *(Law(correlation=None, seeds=n, bad=0.2) for n in (3, 5)),
]


def shifted(kind: str, replicates: int, common: bool, draws: int = 200) -> list[Simulated]:
    """Return how often the report's finding under distribution shift is wrong, and how often it finds a doubling.

    Eight trials on clean and corrupted data; what a replicate has on the one, it has in part on the other.
    """
    rng, rates = np.random.default_rng(replicates), []
    for factor in (1.0, 2.0):
        wrong = 0
        for _ in range(draws):
            law = Law(kind, correlation=None, seeds=replicates)
            spread = spreads_of(law, rng)
            first = spread * errors(law, rng)
            second = 0.6 * first + 0.8 * spread * errors(law, rng) + np.log(factor)
            by = [
                {
                    f"c{at}": {(0 if common else 1000 * at) + r: 0.03 * float(np.exp(v)) for r, v in enumerate(row)}
                    for at, row in enumerate(table)
                }
                for table in (first, second)
            ]
            _, interval = change(by[0], by[1], "c0")
            assert interval is not None
            wrong += not interval[0] <= 1 <= interval[1]
        rates.append(wrong / draws)
    text = f"{kind} spreads, k = 8, n = {replicates}, {'common' if common else 'separate'} seeds"
    return [Simulated("shift: worse or better without a change", text, draws, rates[0], 0.05, rates[1])]


def claims(part: str) -> list[str]:
    """Return the lines of what `simulated_claims` simulates: claims, prediction sets, other intervals."""
    parts = {"claims": simulate_claims, "prediction sets": simulate_conformal, "intervals": simulate_intervals}
    return [row.line() for row in parts[part]()]


def job(task: tuple[Callable[..., list[Any]], tuple[object, ...]]) -> list[Any]:
    """Return the rows of one task; two processes share two cores, so each has one thread."""
    function, arguments = task
    with threadpoolctl.threadpool_limits(1):
        return function(*arguments)


def tasks(draws: int) -> list[tuple[Callable[..., list[Any]], tuple[object, ...]]]:
    """Return everything that is simulated but the claims, in the order of the table."""
    return [
        *judge_tasks(draws),
        *((intervals, (law, draws // 2)) for law in INTERVALS),
        *((shifted, (kind, n, False)) for kind in ("equal", "log-normal", "best ×6") for n in (2, 5)),
    ]


def verdict(row: Simulated) -> str:
    """Return whether a rate keeps its nominal value, is above it by no more than two simulation errors, or fails."""
    if row.nominal is None:
        return ""
    if row.rate <= row.nominal + 0.02:
        return "holds"
    return "unclear" if row.rate <= row.nominal + 0.02 + 2 * row.error else "**fails**"


def table(rows: Sequence[Simulated], more: Sequence[str], seconds: float) -> str:
    """Return the rows as Markdown, those of one statement together."""
    lines = [
        "# What the program says of uncertainty, and how often it is wrong",
        "",
        f"`make bench-statistics`: {len(rows)} rows, {sum(row.draws for row in rows):,} judged draws, "
        f"{seconds / 60:.0f} minutes. A rate is how often the statement fails; ± is its simulation error. A statement "
        "holds where it fails at most as often as it says, 5 % (10 % for what may be the best), + 2 points; it is "
        "unclear where two simulation errors may be why it is above. Power, where three quarters of the configurations "
        "are worse by three spreads of a seed: how often what is truly worse is found to be; of an interval, how often "
        "its ends are within a factor of two. What is drawn: `tests/benchmarks/simulated_judge.py`.",
    ]
    for statement in dict.fromkeys(row.statement for row in rows):
        lines += ["", f"## {statement}", "", "| under | draws | wrong | | power |", "|---|---|---|---|---|"]
        for row in rows:
            if row.statement == statement:
                power = "" if row.power is None else f"{row.power:.2f}"
                wrong = f"{row.rate:.3f} ± {row.error:.3f}"
                lines.append(f"| {row.condition} | {row.draws:,} | {wrong} | {verdict(row)} | {power} |")
    if more:
        note = "Of claims and comparisons, wrong verdicts without an effect, with the power at effects of one and two "
        note += "standard deviations; of sets, the share covered."
        lines += ["", CLAIMS, "", note, "", *HEADING.splitlines(), *more]
    return "\n".join(lines) + "\n"


CLAIMS = "## Claims, prediction sets, comparisons"


def kept_claims() -> list[str]:
    """Return the lines of the claims as they were last measured."""
    text = TABLE.read_text("utf-8").partition(CLAIMS)[2]
    return [line for line in text.splitlines() if line.startswith("| ") and line not in HEADING.splitlines()]


def main() -> int:
    """Print the table, or keep it; 1 where a statement fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    parser.add_argument("--only", default="", help="conditions that contain this text")
    parser.add_argument("--claims", action="store_true", help="claims too; else those of the last time are kept")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    started = time.perf_counter()
    wanted = [task for task in tasks(options.draws) if options.only in str(task)]
    wanted += [(claims, (part,)) for part in ("claims", "prediction sets", "intervals") if options.claims]
    rows, more = list[Simulated](), list[str]()
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for at, answers in enumerate(pool.imap(job, wanted, chunksize=1), 1):
            rows += [row for row in answers if isinstance(row, Simulated)]
            more += [row for row in answers if isinstance(row, str)]
            print(f"\r{at} of {len(wanted)} conditions", end="", file=sys.stderr, flush=True)
    text = table(rows, more or kept_claims(), time.perf_counter() - started)
    print(text)
    if options.write:
        TABLE.write_text(text, "utf-8")
    return 1 if any(verdict(row) == "**fails**" for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
