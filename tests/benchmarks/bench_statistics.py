"""How often what the program says of uncertainty holds: coverage, false statements and power, by simulation.

    make bench-statistics                      # the table on stdout, under 20 minutes on two cores
    python -m tests.benchmarks.bench_statistics --write    # the same, kept in tests/benchmarks/STATISTICS.md

Draws come from models that the methods do not assume: spreads that are equal, log-normal, or one configuration's six
times the others'; values with heavy tails (Student's t of 3 degrees of freedom), skewed (log-normal), or quantised to
1/360 with ties; seeds separate or common; survivors of two rungs, picked by the same seeds' earlier values; and real
seeds: the quickstart's finalists, trained on 32 seeds each (`quickstart_seeds.csv`), drawn again and again. What is
asked is the program's own code: the first screen's intervals, marks and sentences, not a copy of their formulas.

Every row has its number of draws; a rate has a simulation error of √(rate (1 − rate) / draws).
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
from numpy.typing import NDArray

from sweeper.analysis.statistics.best_set import best_set
from sweeper.figures.shift import change
from sweeper.reporting.first_screen import which
from sweeper.reporting.matrix import Matrix, Measured
from sweeper.text.cells import Row
from tests.benchmarks.simulated_claims import HEADING, simulate_claims, simulate_conformal, simulate_intervals

Floats = NDArray[np.float64]

TABLE = Path(__file__).with_name("STATISTICS.md")
SEEDS = Path(__file__).with_name("quickstart_seeds.csv")
SPREAD = 0.2
"""A replicate's standard deviation, on a logarithmic scale; 0.05 to 0.3 are the quickstart's."""

NOMINAL = 0.95


@dataclass(frozen=True)
class Simulated:
    """How often one statement failed.

    Attributes:
        statement: what is printed, and how it fails.
        condition: under which it was simulated.
        draws: how many statements were judged.
        rate: how often it failed.
        nominal: how often it may; None where nothing is promised.
        power: how often what is truly worse was found to be; None where nothing is.
    """

    statement: str
    condition: str
    draws: int
    rate: float
    nominal: float | None
    power: float | None

    @property
    def error(self) -> float:
        """The simulation's standard error of `rate`; of a rate of 0 that of one failure."""
        share = max(self.rate, 1 / max(1, self.draws))
        return float(np.sqrt(share * max(0.0, 1 - share) / max(1, self.draws)))


@dataclass(frozen=True)
class Condition:
    """What is drawn.

    Attributes:
        spread: how configurations' spreads differ, and how values are distributed: a key of SPREADS.
        configurations: how many enter.
        replicates: of each.
        truth: `equal`: all true means the same, the hardest case for saying who is best; `apart`: a quarter share the
            best mean and the others are two spreads worse, for power.
        shared: the standard deviation of the seeds' common effect, in spreads; None where seeds are separate.
        scheduler: `none`, `stopping`, `promotion` or `strata`.
        correlation: of a replicate's errors at rungs and at the end.
        draws: how many sweeps.
        distance: of the others from the best where `apart`, in spreads.
    """

    spread: str
    configurations: int
    replicates: int
    truth: str = "equal"
    shared: float | None = None
    scheduler: str = "none"
    correlation: float = 0.0
    draws: int = 400
    distance: float = 2.0

    def text(self) -> str:
        """Return the condition in words."""
        parts = [f"{self.spread}, k = {self.configurations}, n = {self.replicates}"]
        if self.truth == "apart":
            parts.append(f"three quarters worse by {self.distance:g} spreads")
        if self.shared is not None:
            parts.append(f"common seeds, effect {self.shared:g} spreads")
        if self.scheduler != "none":
            parts.append(f"{self.scheduler}, rung correlation {self.correlation:g}")
        return "; ".join(parts)


def spreads_of(kind: str, k: int, rng: np.random.Generator) -> Floats:
    """Return each configuration's standard deviation; the first is the truly best one."""
    if kind == "log-normal spreads":
        return np.asarray(SPREAD * np.exp(0.7 * rng.standard_normal(k)))
    if kind == "best one noisy ×6":
        return np.where(np.arange(k) == 0, 3 * SPREAD, SPREAD / 2)
    if kind == "others noisy ×6":
        return np.where(np.arange(k) == 0, SPREAD / 2, 3 * SPREAD)
    if kind == "two networks ×5.5":
        return np.where(np.arange(k) % 2 == 0, 0.054, 0.296)
    return np.full(k, SPREAD)


def noise(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Return standardised errors."""
    if kind == "heavy tails (t₃)":
        return np.asarray(rng.standard_t(3, shape) / np.sqrt(3))
    if kind == "skewed (log-normal)":
        values = np.exp(0.8 * rng.standard_normal(shape))
        return np.asarray((values - np.exp(0.32)) / np.sqrt((np.exp(0.64) - 1) * np.exp(0.64)))
    return rng.standard_normal(shape)


@dataclass(frozen=True)
class Sweep:
    """One simulated sweep: who was trained to the end, their values, and the truth (smaller is better)."""

    truth: Floats
    values: list[dict[int, float]]
    survivors: list[int]
    entered: int


def drawn(condition: Condition, rng: np.random.Generator) -> Sweep:
    """Return one sweep."""
    k, n = condition.configurations, condition.replicates
    spread = spreads_of(condition.spread, k, rng)
    worse = np.where(
        np.arange(k) < max(1, k // 4), 0.0, condition.distance * SPREAD if condition.truth == "apart" else 0
    )
    common = rng.standard_normal(n) * SPREAD * (condition.shared or 0.0)
    last = noise(condition.spread, (k, n), rng)
    errors = spread[:, None] * last + common
    if condition.spread == "ties (1/360)":  # an accuracy of 360 samples, of which few seeds differ; larger is better
        truth = 0.95 - 0.01 * worse / SPREAD
        table = np.round((truth[:, None] + 0.004 * last) * 360) / 360
        return Sweep(truth, [by_seed(row, at, condition) for at, row in enumerate(table)], [*range(k)], k)
    logs = worse[:, None] + errors
    kept = survivors(condition, worse, spread, last, rng)
    if condition.spread in ("heavy tails (t₃)", "skewed (log-normal)"):  # values themselves are so distributed
        truth, table = 1.0 + worse, 1.0 + logs
    else:
        truth = np.exp(worse + (spread**2 + (SPREAD * (condition.shared or 0)) ** 2) / 2)
        truth, table = truth / truth.min() if condition.truth == "equal" else truth, np.exp(logs)
        if condition.truth == "equal":  # equal means of values, not of logarithms
            table = table / np.exp((spread**2 + (SPREAD * (condition.shared or 0)) ** 2) / 2)[:, None]
            truth = np.ones(k)
    return Sweep(truth[kept], [by_seed(table[at], at, condition) for at in kept], kept, k)


def by_seed(row: Floats, at: int, condition: Condition) -> dict[int, float]:
    """Return a configuration's values by seed."""
    first = 0 if condition.shared is not None else 1000 * at
    return {first + r: float(value) for r, value in enumerate(row)}


def survivors(condition: Condition, worse: Floats, spread: Floats, last: Floats, rng: np.random.Generator) -> list[int]:
    """Return who is trained to the end: the best third at each of two rungs, by the same replicates' earlier values."""
    k = condition.configurations
    if condition.scheduler == "none":
        return [*range(k)]
    kept, rho = [int(at) for at in rng.permutation(k)], condition.correlation
    for _ in range(2):
        earlier = rho * last + np.sqrt(1 - rho**2) * rng.standard_normal(last.shape)
        scores = worse + (spread[:, None] * earlier).mean(axis=1)
        if condition.scheduler == "stopping":  # each is compared with those that came before it
            ahead = [sum(scores[other] < scores[at] for other in kept[:place]) for place, at in enumerate(kept)]
            kept = [at for place, at in enumerate(kept) if ahead[place] <= place / 3]
        elif condition.scheduler == "promotion":
            kept = sorted(kept, key=lambda at: scores[at])[: max(2, len(kept) // 3)]
        else:  # strata of four, of which the best one always continues
            parts = [[at for at in kept if at % 4 == part] for part in range(4)]
            kept = [at for part in parts for at in sorted(part, key=lambda at: scores[at])[: max(1, len(part) // 3)]]
    return sorted(kept)


def cell_of(at: int) -> int:
    """Return the cell of a configuration: of four losses on two networks, each network with every second one."""
    return at % 8


def first_screen(sweep: Sweep, condition: Condition) -> tuple[Matrix, list[Row]]:
    """Return what the first screen is made from: each configuration a γ of its own, all else equal."""
    rows: list[Row] = [
        {"trial": f"c{at:05d}", "status": "completed", "epochs": 27, "config_loss_gamma": float(at)}
        for at in sweep.survivors
    ]
    values = {str(row["trial"]): {27: each} for row, each in zip(rows, sweep.values, strict=True)}
    larger = condition.spread == "ties (1/360)"
    entered = Counter(cell_of(at) for at in range(sweep.entered))
    cells = {str(row["trial"]): entered[cell_of(at)] for row, at in zip(rows, sweep.survivors, strict=True)}
    measured = Measured("objective", values, larger, dict.fromkeys(values, ""), cells)
    return Matrix({("", "focal", "mlp"): rows}, measured, None, measured, (None, None), ["config_loss_gamma"]), rows


def simulate(condition: Condition) -> list[Simulated]:
    """Return how often each statement of the first screen failed."""
    # The seed is the condition's own: a condition added to the list changes no other row.
    rng = np.random.default_rng(list(condition.text().encode()))
    missed = marked_wrong = winner = gamma = found_all = found_out = judged = 0.0
    cells: list[Floats] = []
    width, shown, others = [], 0, 0
    for _ in range(condition.draws):
        sweep = drawn(condition, rng)
        larger = condition.spread == "ties (1/360)"
        found, rows = first_screen(sweep, condition)
        answer = best_set(sweep.values, "max" if larger else "min", entered=sweep.entered)
        if answer is None:
            continue
        judged += 1
        sign = -1 if larger else 1
        best = int(np.argmin(sign * sweep.truth))
        if condition.truth == "equal" and condition.scheduler == "none":
            best = 0
        missed += best not in answer.members
        low, high = answer.interval
        winner += not low <= sweep.truth[answer.members[0]] <= high
        shown += answer.is_bounded
        width.append(high - low)
        leader = rows[answer.members[0]]
        marked_wrong += found.decides.none_may_be_best(leader, [rows[best]]) is True
        covered = np.full(8, np.nan)
        for place, row in enumerate(rows):  # each cell shows its best
            value = found.decides.last(row)
            cell = [other for other, at in enumerate(sweep.survivors) if cell_of(at) == cell_of(sweep.survivors[place])]
            best_of_cell = min(cell, key=lambda other: sign * np.mean([*sweep.values[other].values()]))
            if value is not None and place == best_of_cell:
                held = found.decides.interval(str(row["trial"]))
                inside = held is not None and held[0] <= sweep.truth[place] <= held[1]
                covered[cell_of(sweep.survivors[place])] = inside
        cells.append(covered)
        if condition.truth == "apart":
            truly = sign * (sweep.truth - sweep.truth[best]) > 1e-9
            found_out += sum(at not in answer.members for at in np.flatnonzero(truly))
            others += int(truly.sum())
            found_all += len(answer.members) == len(sweep.values)
        said, compared, _ = which(rows, "config_loss_gamma", found)
        gamma += bool(compared) and not names(said, float(sweep.survivors[best]))
    each: Floats = np.nanmean(cells, axis=0)
    power = found_out / others if others else None
    kept = float(np.mean([np.sum(~np.isnan(row)) for row in cells]))
    text, n = condition.text(), int(judged)
    return [
        Simulated("best set: the truly best one is left out", text, n, missed / n, 0.1, power),
        Simulated("winner's interval misses its true mean", text, n, winner / n, 0.05, None),
        Simulated(
            "intervals of the matrix miss, on average", text, int(n * kept), 1 - float(np.nanmean(each)), 0.05, None
        ),
        Simulated("… in the cell in which they miss most", text, n, 1 - float(np.nanmin(each)), None, None),
        Simulated("≈: the truly best one is marked worse", text, n, marked_wrong / n, 0.1, power),
        Simulated("which γ: the truly best value is not named", text, n, gamma / n, 0.1, power),
        Simulated("(winner's interval is too wide to be shown)", text, n, 1 - shown / n, None, None),
    ]


def names(said: str, value: float) -> bool:
    """Return whether an answer names a value, or says that any may be the best; many are given by their range."""
    if "any of" in said:
        return True
    if " values from " in said:
        low, high = said.split(" values from ")[1].split(" may")[0].split(" to ")
        return float(low) <= value <= float(high)
    listed = said.split(" may be")[0].split(" is the best")[0].replace(" or ", ", ").split(", ")
    return f"{value:.3g}" in listed


def real_seeds(replicates: int, metric: str, draws: int = 800) -> list[Simulated]:
    """Return the same for sweeps of the quickstart's finalists whose seeds are drawn from 32 that were trained."""
    with SEEDS.open() as file:
        rows = list(csv.DictReader(file))
    trials = sorted({row["trial"] for row in rows})
    table = np.array([[float(row[metric]) for row in rows if row["trial"] == trial] for trial in trials])
    larger = metric == "accuracy"
    truth, rng = table.mean(axis=1), np.random.default_rng(replicates)
    best, missed, winner, cells, found_out = int((-truth if larger else truth).argmin()), 0, 0, np.zeros(len(trials)), 0
    for _ in range(draws):
        values = [
            {1000 * at + r: float(v) for r, v in enumerate(rng.choice(row, replicates, replace=False))}
            for at, row in enumerate(table)
        ]
        answer = best_set(values, "max" if larger else "min", entered=48)
        assert answer is not None
        missed += best not in answer.members
        winner += not answer.interval[0] <= truth[answer.members[0]] <= answer.interval[1]
        found_out += len(trials) - len(answer.members)
        named = {f"c{at}": {27: each} for at, each in enumerate(values)}
        measured = Measured("", named, larger, dict.fromkeys(named, ""), dict.fromkeys(named, 1))
        held = [measured.interval(name) for name in named]
        cells += [each is not None and each[0] <= mean <= each[1] for each, mean in zip(held, truth, strict=True)]
    drawn = f"n = {replicates} of {table.shape[1]} seeds, drawn without replacement"
    text = f"quickstart's {len(trials)} finalists, validation {metric}, {drawn}"
    power = found_out / draws / (len(trials) - 1)
    return [
        Simulated("best set: the truly best one is left out", text, draws, missed / draws, 0.1, power),
        Simulated("winner's interval misses its true mean", text, draws, winner / draws, 0.05, None),
        Simulated("intervals of the matrix miss, on average", text, draws, 1 - float(cells.mean()) / draws, 0.05, None),
        Simulated("… in the cell in which they miss most", text, draws, 1 - cells.min() / draws, None, None),
    ]


def shifted(kind: str, replicates: int, common: bool, draws: int = 400) -> list[Simulated]:
    """Return how often the report's finding under distribution shift is wrong, and how often it finds a doubling.

    Eight trials on clean and corrupted data; what a replicate has on the one, it has in part on the other.
    """
    rng, rates = np.random.default_rng(replicates), []
    for factor in (1.0, 2.0):
        wrong = 0
        for _ in range(draws):
            spread = spreads_of(kind, 8, rng)[:, None]
            first = spread * noise(kind, (8, replicates), rng)
            second = 0.6 * first + 0.8 * spread * noise(kind, (8, replicates), rng) + np.log(factor)
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
    text = f"{kind}, k = 8, n = {replicates}, {'common' if common else 'separate'} seeds"
    return [Simulated("shift: worse or better without a change", text, draws, rates[0], 0.05, rates[1])]


KINDS = (
    "equal spreads", "log-normal spreads", "best one noisy ×6", "others noisy ×6", "two networks ×5.5",
    "heavy tails (t₃)", "skewed (log-normal)", "ties (1/360)",
)  # fmt: skip


def conditions() -> Iterator[Condition]:
    """Yield what is simulated."""
    for kind in KINDS:
        for n in (2, 3, 5, 8):
            yield Condition(kind, 8, n)
        yield Condition(kind, 48, 2, draws=150)
        yield Condition(kind, 48, 5, draws=150)
    for kind in ("equal spreads", "log-normal spreads", "best one noisy ×6"):
        yield Condition(kind, 4, 2)
        yield Condition(kind, 96, 3, draws=80)
        for shared in (0.0, 1.0):
            for n in (2, 5):
                yield Condition(kind, 8, n, shared=shared)
    for distance in (1.0, 2.0, 4.0, 8.0):
        for n in (2, 3, 5, 8):
            yield Condition("equal spreads", 8, n, "apart", draws=250, distance=distance)
        yield Condition("log-normal spreads", 8, 5, "apart", draws=250, distance=distance)
    for scheduler in ("stopping", "promotion", "strata"):
        for correlation in (0.0, 0.5, 0.8, 0.95):
            for n in (2, 5):
                yield Condition("log-normal spreads", 48, n, "equal", None, scheduler, correlation, 200)
        yield Condition("equal spreads", 48, 5, "equal", None, scheduler, 0.95, 200)


def others(part: str) -> list[str]:
    """Return the lines of what `simulated_claims` simulates: claims, prediction sets, other intervals."""
    parts = {"claims": simulate_claims, "prediction sets": simulate_conformal, "intervals": simulate_intervals}
    return [row.line() for row in parts[part]()]


OTHERS = ("claims", "prediction sets", "intervals")


def job(task: tuple[Callable[..., list[Any]], tuple[object, ...]]) -> list[Any]:
    """Return the rows of one task; two processes share two cores, so each has one thread."""
    function, arguments = task
    with threadpoolctl.threadpool_limits(1):
        return function(*arguments)


def tasks() -> list[tuple[Callable[..., list[Any]], tuple[object, ...]]]:
    """Return everything that is simulated, what takes longest first."""
    real = [(real_seeds, (n, metric)) for metric in ("nll", "ece", "accuracy") for n in (2, 3, 5, 8)]
    shift = [(shifted, (kind, n, common)) for kind in KINDS[:-1] for n in (2, 3, 5, 8) for common in (False, True)]
    return [
        *((others, (part,)) for part in OTHERS),
        *real,
        *shift,
        *((simulate, (condition,)) for condition in conditions()),
    ]


def verdict(row: Simulated) -> str:
    """Return whether a rate keeps its nominal value: within two points, and two simulation errors."""
    if row.nominal is None:
        return ""
    if "interval" in row.statement and row.condition.startswith("skewed"):
        return "says less: [how sure](../../docs/how_sure.md)"
    return "holds" if row.rate <= row.nominal + 0.02 + 2 * row.error else "**fails**"


def table(rows: Sequence[Simulated], more: Sequence[str], seconds: float) -> str:
    """Return the rows as Markdown, those of one statement together."""
    lines = [
        "# What the program says of uncertainty, and how often it is wrong",
        "",
        f"`make bench-statistics`: {len(rows)} rows, {sum(row.draws for row in rows):,} judged draws, "
        f"{seconds / 60:.0f} minutes on two cores. A rate is how often the statement fails; ± is its simulation "
        "error. A statement holds where it fails at most as often as it says, 5 % (10 % for what may be the best), "
        "+ 2 points and two simulation errors. "
        "Power: how often what is truly worse is found to be. What is drawn: `tests/benchmarks/bench_statistics.py`.",
    ]
    for statement in dict.fromkeys(row.statement for row in rows):
        lines += ["", f"## {statement}", "", "| under | draws | wrong | | power |", "|---|---|---|---|---|"]
        for row in rows:
            if row.statement == statement:
                power = "" if row.power is None else f"{row.power:.2f}"
                wrong = f"{row.rate:.3f} ± {row.error:.3f}"
                lines.append(f"| {row.condition} | {row.draws:,} | {wrong} | {verdict(row)} | {power} |")
    if more:
        lines += [
            "",
            "## Claims, prediction sets, comparisons",
            "",
            "Of claims and comparisons, wrong verdicts without an",
        ]
        lines[-1] += (
            " effect, with the power at effects of one and two standard deviations; of sets, the share covered."
        )
        lines += ["", *HEADING.splitlines(), *more]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the table, or keep it; 1 where a statement fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    parser.add_argument("--only", default="", help="conditions that contain this text")
    options = parser.parse_args()
    started = time.perf_counter()
    wanted = [task for task in tasks() if options.only in str(task)]
    rows: list[Simulated] = []
    more: list[str] = []
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for at, found in enumerate(pool.imap(job, wanted, chunksize=1), 1):
            rows += [row for row in found if isinstance(row, Simulated)]
            more += [row for row in found if isinstance(row, str)]
            print(f"\r{at} of {len(wanted)} conditions", end="", file=sys.stderr, flush=True)
    text = table(rows, more, time.perf_counter() - started)
    print(text)
    if options.write:
        TABLE.write_text(text, "utf-8")
    return 1 if any(verdict(row) == "**fails**" for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
