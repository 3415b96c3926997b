"""How often verdicts on temperature, races and numbers of further seeds are wrong, by simulation.

Rows of a table are drawn with unequal spreads, common test samples and common seeds; what is asked is the program's own
code, after it left out the seeds that ended far from the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.core.statistics.equivalence import HIGHER, LOWER, NO_DIFFERENCE, OPEN, Pair, Samples, equivalences
from sweeper.core.statistics.racing import DECIDED, OPEN as STILL_OPEN, needed_seeds, open_questions
from sweeper.core.statistics.spreads import outliers

Floats = NDArray[np.float64]

MARGIN = 0.01
"""Of ECE: what counts as no difference unless `objective.margin` says otherwise."""


@dataclass(frozen=True)
class Simulated:
    """How often one statement failed.

    Attributes:
        statement: what is said, and how it fails.
        condition: under which it was simulated.
        draws: how many statements were judged.
        rate: how often it failed.
        nominal: how often it may; None where nothing is promised.
        power: how often it said what it could; None where it cannot.
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


def noise(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Return standardised errors."""
    if kind in ("heavy tails (t₃)", "t3"):
        return np.asarray(rng.standard_t(3, shape) / np.sqrt(3))
    if kind == "skewed (log-normal)":
        values = np.exp(0.8 * rng.standard_normal(shape))
        return np.asarray((values - np.exp(0.32)) / np.sqrt((np.exp(0.64) - 1) * np.exp(0.64)))
    if kind in ("long tail (gamma, skewness 6)", "gamma"):
        return np.asarray(3 * rng.gamma(1 / 9, 1, shape) - 1 / 3)
    return rng.standard_normal(shape)


TRUTHS = (-4.0, -2.0, -1.01, 0.0, 0.0, 0.0, 1.01, 2.0)
"""True differences of eight rows (four losses on two networks), in margins."""


def rows_of(kind: str, seeds: int, rng: np.random.Generator, truths: Sequence[float]) -> list[Pair]:
    """Return ECE before and after temperature scaling of each row, on common seeds and 2,000 common test samples.

    A difference spreads by .003, log-normally unequal, and its test samples shift it by .002. In a bad optimum ECE is
    .3 before, and temperature takes off .2 more than otherwise.
    """
    k = len(truths)
    spread = 0.003 * np.exp(0.5 * rng.standard_normal((k, 1)))
    change = (
        np.array(truths)[:, None] * MARGIN + spread * noise(kind, (k, seeds), rng) + 0.002 * rng.normal(size=(k, 1))
    )
    before = 0.05 + 0.01 * rng.normal(size=(k, 1)) + 0.003 * rng.normal(size=(k, seeds))
    astray = (rng.random((k, seeds)) < 0.2) & (kind == "bad")
    before, change = before + 0.25 * astray, change - 0.2 * astray
    named = {str(at): dict(enumerate(row.tolist())) for at, row in enumerate(np.abs(before))}
    trained = outliers(named, "min").kept(named)
    return [
        Pair(
            trained[str(at)], {seed: value + float(change[at, seed]) for seed, value in trained[str(at)].items()}, parts
        )
        for at, parts in enumerate([Samples(0.002**2, 0.0)] * k)
    ]


NAMES = {
    "normal": "normal, log-normal spreads",
    "t3": "heavy tails (t₃)",
    "gamma": "long tail (gamma, skewness 6)",
    "bad": "one seed in five bad",
}


def simulate_verdicts(kind: str, seeds: int, draws: int = 60) -> list[Simulated]:
    """Return how often a row's verdict on temperature is wrong, by what it says, and how often it says anything."""
    rng = np.random.default_rng([seeds, *kind.encode()])
    wrong: dict[str, list[bool]] = {LOWER: [], HIGHER: [], NO_DIFFERENCE: [], OPEN: []}
    missed, right = [], []
    for _ in range(draws):
        for truth, verdict in zip(TRUTHS, equivalences(rows_of(kind, seeds, rng, TRUTHS), MARGIN), strict=True):
            if verdict is None:
                continue
            low, high = verdict.interval
            missed.append(not low <= truth * MARGIN <= high)
            error = {LOWER: truth >= 0, HIGHER: truth <= 0, NO_DIFFERENCE: abs(truth) > 1, OPEN: False}[verdict.code]
            wrong[verdict.code].append(error)
            if truth in (-4.0, -2.0, 0.0, 2.0):
                right.append(verdict.code == {0.0: NO_DIFFERENCE, 2.0: HIGHER}.get(truth, LOWER))
    text = f"8 rows, {NAMES[kind]}, n = {seeds}"
    every = [error for code in wrong.values() for error in code]
    same = wrong[NO_DIFFERENCE]
    return [
        Simulated(
            "temperature: a verdict is wrong", text, len(every), float(np.mean(every)), 0.05, float(np.mean(right))
        ),
        Simulated(
            "temperature: of verdicts “no difference” wrong", text, len(same), float(np.mean(same or [0])), None, None
        ),
        Simulated("temperature: the interval misses", text, len(missed), float(np.mean(missed)), 0.05, None),
    ]


GROUPS = {
    "network": {"resnet8": ["a", "b", "c"], "mlp": ["d", "e"]},
    "loss": {"cross_entropy": ["a", "d"], "focal": ["b"], "brier": ["c", "e"]},
}


def simulate_race(kind: str, draws: int = 40, most: int = 8) -> list[Simulated]:
    """Return how often a race (at most eight seeds, three before the first look) ends wrong, and how often it decides.

    The best of each network and loss: five units, of which the other network's are worse by three spreads, one loss by
    one spread, and one is as good.
    """
    rng = np.random.default_rng(list(kind.encode()))
    truth = {"a": 0.0, "b": 0.0, "c": 1.0, "d": 3.0, "e": 4.0}
    wrong = network = dropped = trainings = equal_wrong = 0
    for away in (True, False):
        for _ in range(draws):
            spread = 0.1 * (np.exp(0.7 * rng.standard_normal(5)) if kind == "log-normal spreads" else np.ones(5))
            errors = spread[:, None] * noise(kind, (5, most), rng) + 0.05 * rng.standard_normal(most)
            mean = np.log(np.exp(spread[:, None] * noise(kind, (5, 4000), rng)).mean(axis=1))
            table = np.exp(errors - mean[:, None] + 0.1 * np.array([*truth.values()])[:, None] * away)
            table = np.where((rng.random(table.shape) < 0.2) & (kind == "bad"), table * np.exp(2.0), table)
            race, spent = run_race(table, most)
            loss, net = race["loss"], race["network"]
            if away:
                wrong += (net.state == DECIDED and net.leader != "resnet8") or not {"cross_entropy", "focal"} & {
                    *loss.left
                }
                network += net.state == DECIDED
                trainings += spent
                dropped += "brier" not in loss.left
            else:
                equal_wrong += net.state == DECIDED or loss.state == DECIDED
    text = f"5 contenders, {kind}, 3 to {most} seeds; {trainings / draws:.0f} trainings a race of {5 * most}"
    return [
        Simulated("race: the wrong network or loss", text, draws, wrong / draws, 0.1, network / draws),
        Simulated("race: decided although all are the same", text, draws, equal_wrong / draws, 0.2, dropped / draws),
    ]


def run_race(table: Floats, most: int) -> tuple[dict[str, object], int]:
    """Return the questions at the end of a race over rounds of common seeds [5, most], and the trainings it took."""
    values: dict[str, dict[int, float]] = {unit: {} for unit in "abcde"}
    asked, race = tuple(values), None
    for number in range(most):
        for unit in asked:
            values[unit][number] = float(table["abcde".index(unit), number])
        if number >= 2:
            race = open_questions(outliers(values, "min").kept(values), GROUPS, "min", first=3)
            asked = race.units
            if not asked:
                break
    assert race is not None
    return dict(race.questions), sum(map(len, values.values()))


def simulate_needed(what: str, draws: int = 60) -> list[Simulated]:
    """Return how often the number of further seeds that was said does not decide; at most one in five is promised."""
    rng, asked, failed, silent = np.random.default_rng(len(what)), 0, 0, 0
    for _ in range(draws):
        if what == "best set":
            table = np.exp(
                rng.normal(0, 0.5, (4, 1)) + 0.15 * np.exp(0.4 * rng.normal(size=(4, 1))) * rng.normal(size=(4, 24))
            )
            groups = {"loss": {unit: [unit] for unit in "abcd"}}
            values = {unit: dict(enumerate(row[:3].tolist())) for unit, row in zip("abcd", table, strict=True)}
            if open_questions(values, groups, "min", 0.1, first=3).questions["loss"].state != STILL_OPEN:
                continue
            needed = needed_seeds(values, groups, "min", 0.1, first=3)
            silent += needed is None
            if needed is not None:
                later = {
                    u: dict(enumerate(row[: 3 + needed.seeds.get(u, 0)].tolist()))
                    for u, row in zip("abcd", table, strict=True)
                }
                asked += 1
                failed += open_questions(later, groups, "min", 0.1, first=3).questions["loss"].state == STILL_OPEN
            continue
        rows = rows_of("normal", 80, rng, rng.normal(0, 2, 8).tolist())
        for at, verdict in enumerate(equivalences([first_seeds(row, 3) for row in rows], MARGIN)):
            if verdict is None or verdict.code != OPEN:
                continue
            silent += verdict.more_seeds is None
            if verdict.more_seeds is not None and not verdict.both:
                more = [
                    first_seeds(row, 3 + (verdict.more_seeds if at == place else 0)) for place, row in enumerate(rows)
                ]
                later_verdict = equivalences(more, MARGIN)[at]
                asked += 1
                failed += later_verdict is None or later_verdict.code == OPEN
    text = f"{what}, 3 seeds, {asked} open ones with a number, {silent} without"
    return [
        Simulated(
            "“n more seeds”: they do not decide",
            text,
            asked,
            failed / max(1, asked),
            0.2,
            asked / max(1, asked + silent),
        )
    ]


def first_seeds(row: Pair, count: int) -> Pair:
    """Return a row with its first seeds only."""
    return Pair(
        {s: v for s, v in row.a.items() if s < count}, {s: v for s, v in row.b.items() if s < count}, row.samples
    )
