"""Seeds where they decide, against the same number for all: replays of `confirm` on values that many seeds gave.

A sweep trains every configuration on two seeds. Those that may be the best get fresh ones, round by round, until one is
left or each has had `at_most` (`sweeper.analysis.selection`); beside it, five fixed seeds for every configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sweeper.analysis.statistics.best_set import best_set, level_of
from sweeper.analysis.statistics.spreads import LEVEL
from tests.benchmarks.public.curves import Floats, Task

FIRST, FIXED = 2, 5


@dataclass
class Judged:
    """Of each replay: seeds × configurations trained, the set's size, whether the best is in it, regret in per cent."""

    cost: list[float] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    regret: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)

    def line(self, name: str) -> str:
        """Return a row of a table; the interval is Wilson's."""
        n, p, z = len(self.covered), float(np.mean(self.covered)), 1.96
        half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        return (
            f"| {name} | {np.mean(self.cost):.0%} | {np.mean(self.size):.1f} | {p:.1%} ({centre - half:.1%} … "
            f"{centre + half:.1%}) | {np.mean(self.regret):.2f} | {np.mean(self.same):.0%} |"
        )


def fixed(values: Floats, seeds: Floats) -> tuple[list[int], int]:
    """Return the best set and the winner of configurations with these seeds each."""
    found = best_set([{int(s): float(row[s]) for s in seeds} for row in values], "min")
    return ([*range(len(values))], int(np.argmin(values[:, seeds].mean(1)))) if found is None else (
        [*found.members], found.members[0],
    )  # fmt: skip


def raced(values: Floats, seeds: Floats, count: int, at_most: int, most: int | None) -> tuple[list[int], int, int]:
    """Return the set that is left, its winner, and how many trainings that took."""
    members, winner = fixed(values, seeds[:FIRST])
    members, spent = members[:most], FIRST * len(values)
    for given in range(count, at_most + 1, count):
        if len(members) < 2:
            break
        fresh = seeds[FIRST : FIRST + given]
        spent += count * len(members)
        pooled = [{int(s): float(values[m][s]) for s in fresh} for m in members]
        found = best_set(pooled, "min", level_of(given // count) if at_most > count else LEVEL)
        members = members if found is None else [members[at] for at in found.members]
        winner = members[0]
    return members, winner, spent


def replays(
    tasks: Sequence[Task], trials: int, orders: int, plans: Sequence[tuple[int, int, int | None]], seed: int = 13
) -> dict[str, Judged]:
    """Return what every plan (seeds a round, at most, configurations at most) and five fixed seeds did."""
    rng, found = np.random.default_rng(seed), dict[str, Judged]()
    for task in tasks:
        everything = task.val[:, -1]
        for _ in range(orders):
            values = everything[rng.permutation(len(everything))[:trials]]
            seeds = rng.permutation(values.shape[1])
            worth = values.mean(axis=1)
            best, five = int(np.argmin(worth)), fixed(values, seeds[:FIXED])
            outcomes = {"five fixed seeds": (*five, FIXED * len(values))}
            outcomes["two fixed seeds"] = (*fixed(values, seeds[:FIRST]), FIRST * len(values))
            for count, at_most, most in plans:
                name = f"two, then {count} at a time, at most {at_most}{f', of the best {most}' if most else ''}"
                outcomes[name] = raced(values, seeds, count, at_most, most)
            for name, (members, winner, spent) in outcomes.items():
                judged = found.setdefault(name, Judged())
                judged.cost.append(spent / (FIXED * len(values)))
                judged.size.append(len(members))
                judged.covered.append(best in members)
                judged.regret.append(100 * (worth[winner] / worth[best] - 1))
                judged.same.append(set(members) <= set(five[0]))
    return found
