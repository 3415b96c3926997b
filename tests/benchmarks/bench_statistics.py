"""How often what the program says of uncertainty holds: coverage, false statements and power, by simulation.

    make bench-statistics                      # the table on stdout, some ten minutes on two idle cores
    python -m tests.benchmarks.bench_statistics --write    # the same, kept in tests/benchmarks/STATISTICS.md
    python -m tests.benchmarks.bench_statistics --claims --write    # claims and prediction sets too

Draws come from models that the methods do not assume: spreads that are equal, log-normal, or one configuration's six
times the others'; values with heavy tails (Student's t of 3 degrees of freedom), skewed (log-normal), with one long
tail (gamma, skewness 6), or quantised to 1/360 with ties; one seed in five in a bad optimum; seeds separate or common;
survivors of two rungs, picked by the same seeds' earlier values; and real seeds: the quickstart's finalists (resnet8 at
its whole width), trained on 32 seeds each (`quickstart_seeds.csv`), drawn again and again. What is asked is the
program's own code, not a copy of its formulas, after seeds that ended far from the others are left out (`outliers`).

Every row has its number of draws; a rate has a simulation error of √(rate (1 − rate) / draws). Power comes from a
second simulation in which three quarters of the configurations are worse by three spreads of a seed.
"""

import argparse
import csv
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
from numpy.typing import NDArray

from sweeper.core.statistics.best_set import best_set, most_lost
from sweeper.core.statistics.spreads import outliers, spreads
from sweeper.reporting.figures.shift import change
from tests.benchmarks.simulated_claims import HEADING, simulate_claims, simulate_conformal, simulate_intervals
from tests.benchmarks.simulated_verdicts import Simulated, noise, simulate_needed, simulate_race, simulate_verdicts

Floats = NDArray[np.float64]

TABLE = Path(__file__).with_name("STATISTICS.md")
SEEDS = Path(__file__).with_name("quickstart_seeds.csv")
SPREAD = 0.2
"""A replicate's standard deviation, on a logarithmic scale; 0.05 to 0.3 are the quickstart's."""

BAD = "one seed in five bad"
LONG_TAIL = "long tail (gamma, skewness 6)"


@dataclass(frozen=True)
class Condition:
    """What is drawn.

    Attributes:
        spread: how configurations' spreads differ, and how values are distributed: one of KINDS.
        configurations: how many enter.
        replicates: of each.
        truth: `equal`: all true means the same, the hardest case for saying who is best; `apart`: a quarter share the
            best mean and the others are worse, for power.
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
    draws: int = 200
    distance: float = 3.0

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
    if condition.spread in ("heavy tails (t₃)", "skewed (log-normal)", LONG_TAIL):  # values themselves are so
        truth, table = 1.0 + worse, 1.0 + logs
    else:
        truth = np.exp(worse + (spread**2 + (SPREAD * (condition.shared or 0)) ** 2) / 2)
        truth, table = truth / truth.min() if condition.truth == "equal" else truth, np.exp(logs)
        if condition.truth == "equal":  # equal means of values, not of logarithms
            table = table / np.exp((spread**2 + (SPREAD * (condition.shared or 0)) ** 2) / 2)[:, None]
            truth = np.ones(k)
        if condition.spread == BAD:  # by 20 spreads; the truth is that of seeds that train
            table = np.where(rng.random((k, n)) < 0.2, table * np.exp(20 * SPREAD), table)
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


def simulate(condition: Condition) -> list[Simulated]:
    """Return how often each statement failed; power where three quarters of the configurations are worse."""
    wrong, missed, bounded = judged(condition)
    away = replace(condition, truth="apart", draws=max(40, condition.draws // 2))
    power, _, bounded_away = judged(away) if condition.truth == "equal" else (wrong, missed, bounded)
    text, n = condition.text(), len(wrong)
    cells = int(sum(row["configurations"] for row in wrong))

    def rate(key: str, rows: Sequence[dict[str, float]] = wrong) -> float:
        return float(np.mean([row[key] for row in rows])) if rows else float("nan")

    found_out = sum(row["excluded"] for row in power) / max(1, sum(row["worse"] for row in power))
    return [
        Simulated("best set: the truly best one is left out", text, n, rate("best left out"), 0.1, found_out),
        Simulated("the leader loses more than is said", text, n, rate("loses more"), 0.1, rate("small loss", power)),
        Simulated("winner's interval misses its true mean", text, n, rate("winner missed"), 0.05, bounded_away),
        Simulated("intervals of all configurations miss", text, cells, rate("missed"), 0.05, rate("narrow", power)),
        Simulated("… of the one that they miss most", text, n, float(missed.max()), None, None),
    ]


def judged(condition: Condition) -> tuple[list[dict[str, float]], Floats, float]:
    """Return what was wrong and found in each sweep, how often each place's interval missed, and narrow winners'."""
    # The seed is the condition's own: a condition added to the list changes no other row.
    rng = np.random.default_rng(list(condition.text().encode()))
    rows, misses, narrow_winner = list[dict[str, float]](), np.zeros((2, condition.configurations)), 0
    mode = "max" if condition.spread == "ties (1/360)" else "min"
    sign = 1 if mode == "min" else -1
    for _ in range(condition.draws):
        sweep = drawn(condition, rng)
        named = {str(at): by_seed for at, by_seed in zip(sweep.survivors, sweep.values, strict=True)}
        values = [*outliers(named, mode).kept(named).values()]
        known, answer = spreads(values, mode), best_set(values, mode, entered=sweep.entered)
        if answer is None or known is None:
            continue
        best, leader = int(np.argmin(sign * sweep.truth)), answer.members[0]
        lost, worse = most_lost(known), sign * (sweep.truth - sweep.truth[best]) > 1e-9
        held = [known.interval(at) for at in range(len(values))]
        outside = [not low <= true <= high for (low, high), true in zip(held, sweep.truth, strict=True)]
        misses[:, sweep.survivors] += outside, np.ones(len(values))
        narrow_winner += is_narrow(answer.interval)
        rows.append(
            {
                "best left out": best not in answer.members,
                "loses more": sign * (sweep.truth[leader] - sweep.truth[best]) > lost.value + 1e-12,
                "small loss": lost.ratio is not None and lost.ratio <= 1.25,
                "winner missed": not answer.interval[0] <= sweep.truth[leader] <= answer.interval[1],
                "missed": float(np.mean(outside)),
                "narrow": float(np.mean([is_narrow(ends) for ends in held])),
                "excluded": sum(at not in answer.members for at in np.flatnonzero(worse)),
                "worse": int(worse.sum()),
                "configurations": len(values),
            }
        )
    return rows, misses[0] / np.maximum(misses[1], 1), narrow_winner / max(1, len(rows))


def is_narrow(ends: tuple[float, float]) -> bool:
    """Return whether an interval's ends are within a factor of two."""
    return 0 < ends[1] <= 2 * ends[0]


def real_seeds(replicates: int, metric: str, draws: int = 200) -> list[Simulated]:
    """Return the same for sweeps of the quickstart's finalists whose seeds are drawn from 32 that were trained."""
    with SEEDS.open() as file:
        rows = list(csv.DictReader(file))
    trials = sorted({row["trial"] for row in rows})
    table = np.array([[float(row[metric]) for row in rows if row["trial"] == trial] for trial in trials])
    networks = np.array([next(row["network"] for row in rows if row["trial"] == trial) for trial in trials])
    mode, sign = ("max", -1) if metric == "accuracy" else ("min", 1)
    truth, rng = table.mean(axis=1), np.random.default_rng(replicates)
    best = int((sign * truth).argmin())
    missed = lost_more = winner = inside = excluded = network = wrong_network = narrow = 0.0
    for _ in range(draws):
        values = [
            {1000 * at + r: float(v) for r, v in enumerate(rng.choice(row, replicates, replace=False))}
            for at, row in enumerate(table)
        ]
        answer, known = best_set(values, mode, entered=48), spreads(values, mode)
        assert answer is not None and known is not None
        left, leader = {*networks[[*answer.members]]}, answer.members[0]
        missed += best not in answer.members
        lost_more += sign * (truth[leader] - truth[best]) > most_lost(known).value
        winner += not answer.interval[0] <= truth[leader] <= answer.interval[1]
        held = [known.interval(at) for at in range(len(values))]
        inside += np.mean([low <= mean <= high for (low, high), mean in zip(held, truth, strict=True)])
        narrow += np.mean([is_narrow(ends) for ends in held])
        excluded += (len(trials) - len(answer.members)) / (len(trials) - 1)
        network += len(left) == 1
        wrong_network += len(left) == 1 and networks[best] not in left
    text = f"quickstart's {len(trials)} finalists, validation {metric}, n = {replicates} of {table.shape[1]} seeds"
    return [
        Simulated("best set: the truly best one is left out", text, draws, missed / draws, 0.1, excluded / draws),
        Simulated("which network: the wrong one", text, draws, wrong_network / draws, 0.1, network / draws),
        Simulated("the leader loses more than is said", text, draws, lost_more / draws, 0.1, None),
        Simulated("winner's interval misses its true mean", text, draws, winner / draws, 0.05, None),
        Simulated(
            "intervals of all configurations miss", text, draws * len(trials), 1 - inside / draws, 0.05, narrow / draws
        ),
    ]


def shifted(kind: str, replicates: int, common: bool, draws: int = 200) -> list[Simulated]:
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
    "heavy tails (t₃)", "skewed (log-normal)", LONG_TAIL, BAD, "ties (1/360)",
)  # fmt: skip


def conditions() -> Iterator[Condition]:
    """Yield what is simulated."""
    for kind in KINDS:
        for n in (2, 3, 5):
            yield Condition(kind, 8, n)
    for kind in ("equal spreads", "log-normal spreads", "heavy tails (t₃)", LONG_TAIL, BAD):
        yield Condition(kind, 24, 2, draws=100)
        yield Condition(kind, 48, 2, draws=60)
    for kind in ("equal spreads", "log-normal spreads", BAD):
        yield Condition(kind, 24, 5, draws=60)
        for n in (2, 5):
            yield Condition(kind, 8, n, shared=1.0)
    for distance in (1.0, 2.0, 4.0, 8.0):
        for n in (2, 3, 5, 8):
            yield Condition("equal spreads", 8, n, "apart", draws=80, distance=distance)
    for scheduler in ("stopping", "promotion", "strata"):
        for correlation in (0.0, 0.8, 0.95):
            yield Condition("log-normal spreads", 48, 2, "equal", None, scheduler, correlation, 100)


def claims(part: str) -> list[str]:
    """Return the lines of what `simulated_claims` simulates: claims, prediction sets, other intervals."""
    parts = {"claims": simulate_claims, "prediction sets": simulate_conformal, "intervals": simulate_intervals}
    return [row.line() for row in parts[part]()]


def job(task: tuple[Callable[..., list[Any]], tuple[object, ...]]) -> list[Any]:
    """Return the rows of one task; two processes share two cores, so each has one thread."""
    function, arguments = task
    with threadpoolctl.threadpool_limits(1):
        return function(*arguments)


def tasks() -> list[tuple[Callable[..., list[Any]], tuple[object, ...]]]:
    """Return everything that is simulated but the claims, in the order of the table."""
    return [
        *((real_seeds, (n, metric)) for metric in ("nll", "ece", "accuracy") for n in (2, 3, 5)),
        *((simulate_verdicts, (kind, n)) for kind in ("normal", "t3", "gamma", "bad") for n in (2, 3, 5)),
        *((simulate_race, (kind,)) for kind in ("normal", "log-normal spreads", "t3", "gamma", "bad")),
        *((simulate_needed, (what,)) for what in ("best set", "temperature")),
        *((shifted, (kind, n, False)) for kind in KINDS[:3] for n in (2, 5)),
        *((simulate, (condition,)) for condition in conditions()),
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
        "are worse by three spreads of a seed: how often what is truly worse is found to be; of a loss, how often at "
        "most 25 % is said; of an interval, how often its ends are within a factor of two. What is drawn: "
        "`tests/benchmarks/bench_statistics.py`.",
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
    options = parser.parse_args()
    started = time.perf_counter()
    wanted = [task for task in tasks() if options.only in str(task)]
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
