"""How often the verdicts of `sweeper.judging` are wrong and how often they decide, by simulation.

`tests/benchmarks/bench_statistics.py` runs these simulations. Draws come from laws that the judge does not assume:
spreads that are equal, log-normal, 15 : 1 or one candidate's six times the others'; values that are log-normal,
heavy-tailed (Student's t₃) or skewed; seeds that are separate or common, with correlations up to .98; one seed in
five in a bad optimum. Real seeds come from `quickstart_seeds.csv`.

Level: all true means are equal, and a verdict says otherwise. Power: three quarters of the candidates are worse by
three median spreads of a seed (or by another distance), and a verdict says so.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sweeper.judging.judge import judge
from sweeper.judging.outliers import outliers
from sweeper.judging.question import BETTER, OPEN, SAME, WORSE, Data, Question, Verdicts
from sweeper.results.estimators import ESTIMATORS, SHOWN, Scored, measured
from trainables.metrics import softmax64
from trainables.posthoc import fit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Values = Mapping[str, Mapping[int, float]]

SEEDS = Path(__file__).with_name("quickstart_seeds.csv")
SPREAD = 0.2  # a seed's standard deviation on a logarithmic scale; .05 to .3 are the quickstart's


@dataclass(frozen=True)
class Law:
    """What is drawn: k candidates with n seeds each.

    Attributes:
        spreads: how candidates' spreads differ.
        noise: distribution of a seed's error.
        correlation: of two candidates' errors on a common seed; None for separate seeds.
        bad: share of seeds in a bad optimum, worse by 20 spreads.
        distance: of three quarters of the candidates from the best, in spreads; for power.
    """

    spreads: str = "equal"
    noise: str = "log-normal"
    correlation: float | None = 0.0
    seeds: int = 3
    candidates: int = 8
    bad: float = 0.0
    distance: float = 3.0

    def text(self) -> str:
        """Return the law in words."""
        parts = [f"{self.spreads} spreads, k = {self.candidates}, n = {self.seeds}"]
        parts += [f"three quarters worse by {self.distance:g} spreads"] * (self.distance != 3.0)
        parts += [self.noise] * (self.noise != "log-normal")
        parts += [] if self.correlation is None else [f"common seeds, correlation {self.correlation:g}"]
        return "; ".join(parts + [f"{self.bad:.0%} of seeds bad"] * (self.bad > 0))


def spreads_of(law: Law, rng: np.random.Generator) -> Floats:
    """Return each candidate's standard deviation, [k, 1]; the first is the truly best one."""
    k = law.candidates
    first = np.arange(k) == 0
    kinds: dict[str, Callable[[], Floats]] = {
        "equal": lambda: np.full(k, SPREAD),
        "log-normal": lambda: SPREAD * np.exp(0.7 * rng.standard_normal(k)),
        "best ×6": lambda: np.where(first, 3 * SPREAD, SPREAD / 2),
        "others ×6": lambda: np.where(first, SPREAD / 2, 3 * SPREAD),
        "15 : 1": lambda: np.where(rng.random(k) < 0.5, 0.008, 0.12),
    }
    return kinds[law.spreads]()[:, None]


def errors(law: Law, rng: np.random.Generator) -> Floats:
    """Return standardised errors, [k, n]."""

    def drawn(rows: int) -> Floats:
        shape = (rows, law.seeds)
        if law.noise == "t₃":
            return np.asarray(rng.standard_t(3, shape) / np.sqrt(3))
        if law.noise == "skewed":
            values = np.exp(0.8 * rng.standard_normal(shape))
            return np.asarray((values - np.exp(0.32)) / np.sqrt((np.exp(0.64) - 1) * np.exp(0.64)))
        return rng.standard_normal(shape)

    rho = law.correlation or 0.0
    return np.sqrt(1 - rho) * drawn(law.candidates) + np.sqrt(rho) * drawn(1)


def drawn(law: Law, rng: np.random.Generator, *, apart: bool) -> tuple[dict[str, dict[int, float]], Floats]:
    """Return candidate → seed → value, smaller is better, and the true means, [k]."""
    spread, k = spreads_of(law, rng), law.candidates
    worse = np.where(np.arange(k) < max(1, k // 4), 0.0, law.distance * float(np.median(spread)))[:, None] * apart
    if law.noise == "log-normal":  # the exponential of normal values, with equal true means
        table, truth = np.exp(worse + spread * errors(law, rng) - spread**2 / 2), np.exp(worse)
    else:
        table, truth = 1 + worse + spread * errors(law, rng), 1 + worse
    table = np.where(rng.random(table.shape) < law.bad, table * np.exp(20 * SPREAD), table)
    first = 0 if law.correlation is not None else 1000
    values = {str(at): {first * at + r: float(v) for r, v in enumerate(row)} for at, row in enumerate(table)}
    return (outliers(values, "min").kept(values) if law.bad else values), truth[:, 0]


def best_of(values: Values, first: int = 0) -> Verdicts:
    """Return the judge's verdicts on which candidate is the best."""
    return judge(Question([*values], "nll", relative=True, first=first), Data(values))


@dataclass(frozen=True)
class Simulated:
    """How often one statement failed.

    Attributes:
        statement: the statement, and how it fails.
        condition: the law under which it was simulated.
        draws: number of statements.
        rate: how often it failed.
        nominal: how often it may fail; None where nothing is promised.
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
        """The simulation's standard error of `rate`; for a rate of 0 that of one failure."""
        share = max(self.rate, 1 / max(1, self.draws))
        return float(np.sqrt(share * max(0.0, 1 - share) / max(1, self.draws)))


BEST, LOST = "best set: the truly best one is left out", "the leader loses more than is said"


def simulate_best(law: Law, draws: int, ask: Callable[[Values], tuple[set[str], float]]) -> list[Simulated]:
    """Return how often the truly best is called worse, and how often the leader loses more than is said.

    Args:
        law: the law.
        draws: number of sweeps.
        ask: returns the candidates that are worse, and the largest share that the leader can lose.
    """
    rng, wrong, lost, found, there = np.random.default_rng(1), 0, 0, 0, 0
    for _ in range(draws):
        worse, _ = ask(drawn(law, rng, apart=False)[0])
        wrong += "0" in worse
        values, truth = drawn(law, rng, apart=True)
        worse, share = ask(values)
        apart = {str(at) for at in np.flatnonzero(truth > truth[0] * (1 + 1e-9))}
        found, there = found + len(worse & apart), there + len(apart)
        means = {name: np.mean([*by_seed.values()]) for name, by_seed in values.items()}
        lost += truth[int(min(means, key=lambda name: means[name]))] > truth[0] * (1 + share) * (1 + 1e-9)
    return [
        Simulated(BEST, law.text(), draws, wrong / draws, 0.1, found / there),
        Simulated(LOST, law.text(), draws, lost / draws, 0.1, None),
    ]


def ask_judge(values: Values) -> tuple[set[str], float]:
    """Ask the judge for `simulate_best`."""
    verdicts = best_of(values)
    return {*verdicts.named(WORSE)}, verdicts.most_lost_ratio or 0.0


SHAPES = [
    *((spreads, "log-normal") for spreads in ("equal", "log-normal", "best ×6", "others ×6", "15 : 1")),
    *(("equal", noise) for noise in ("t₃", "skewed")),
]

#: Laws of the questions on the best: three seeds in detail, two and five for some, and seeds in bad optima.
LAWS = [
    *(Law(*shape, rho) for shape in SHAPES for rho in (None, 0.0, 0.5, 0.9, 0.98)),
    *(Law(*shape, rho, seeds) for seeds in (2, 5) for shape in SHAPES[:2] + SHAPES[4:6] for rho in (0.0, 0.9)),
    *(Law(correlation=rho, seeds=seeds, bad=0.2) for seeds in (3, 5) for rho in (None, 0.9)),
]

MARGIN, SAMPLE_ERROR = 0.01, 0.002
TRUTHS = (-4.0, -2.0, -1.01, 0.0, 0.0, 0.0, 1.01, 2.0)  # true changes of eight rows, in margins


def changes(noise: str, seeds: int, rng: np.random.Generator) -> Data:
    """Return ECE before and after a method for eight rows, on common test samples that shift each change by .002."""
    law = Law("equal", noise, 0.0, seeds)
    spread = 0.003 * np.exp(0.5 * rng.standard_normal((8, 1)))
    raw = errors(law, rng) if noise != "log-normal" else rng.standard_normal((8, seeds))
    change = np.array(TRUTHS)[:, None] * MARGIN + spread * raw + SAMPLE_ERROR * rng.normal(size=(8, 1))
    before = 0.1 + 0.01 * rng.normal(size=(8, 1)) + 0.003 * rng.normal(size=(8, seeds))
    # Groups whose jackknife variance is that of the samples, and which all seeds share.
    groups = np.linspace(-1, 1, 20)
    groups = groups / np.sqrt(19 / 20 * (groups**2).sum()) * SAMPLE_ERROR
    values, left_out = dict[str, dict[int, float]](), dict[str, dict[int, Floats]]()
    for at in range(8):
        for name, row, shift in ((f"before {at}", before[at], 0.0), (f"after {at}", before[at] + change[at], groups)):
            values[name] = dict(enumerate(row.tolist()))
            left_out[name] = {seed: value + np.zeros(20) + shift for seed, value in values[name].items()}
    return Data(values, left_out)


def ask_changes(data: Data) -> list[str]:
    """Return the judge's code for each row: after against before."""
    names = [name.removeprefix("after ") for name in data.values if name.startswith("after ")]
    rows = [f"after {name}" for name in names]
    question = Question(rows, "ece", margin=MARGIN, level=0.95, against=[f"before {name}" for name in names])
    verdicts = judge(question, data).of
    return [verdicts[row].code for row in rows]


def simulate_changes(
    noise: str, seeds: int, draws: int, ask: Callable[[Data], list[str]] = ask_changes
) -> list[Simulated]:
    """Return how often a verdict on a change is wrong, by its code."""
    rng, wrong, said, right = np.random.default_rng(seeds), dict[str, int](), dict[str, int](), 0
    for _ in range(max(1, draws // 8)):
        for truth, code in zip(TRUTHS, ask(changes(noise, seeds, rng)), strict=True):
            error = {BETTER: truth >= 0, WORSE: truth <= 0, SAME: abs(truth) > 1}.get(code, False)
            wrong[code], said[code] = wrong.get(code, 0) + error, said.get(code, 0) + 1
            right += code == {0.0: SAME, 2.0: WORSE, 1.01: WORSE}.get(truth, BETTER)
    count = sum(said.values())
    text = f"8 rows, {noise} errors, log-normal spreads, n = {seeds}"
    every = Simulated("change: a verdict is wrong", text, count, sum(wrong.values()) / count, 0.05, right / count)
    each = [
        Simulated(f"change: “{code}” is wrong", text, said[code], wrong[code] / count, 0.05, said[code] / count)
        for code in (BETTER, WORSE, SAME)
        if code in said
    ]
    return [every, *each]


ECE_CHANGE = "ECE's change by temperature scaling: the interval misses that of all samples"
PLAIN_CHANGE = "the same interval without the bias of binning"


def logits_of(classes: int, sharpness: float, samples: int, rng: np.random.Generator) -> tuple[Floats, Integers]:
    """Return Student's t₃ logits of a network, `sharpness` times those of a calibrated one, and targets."""
    logits = 2 * rng.standard_t(3, (samples, classes))
    targets = (softmax64(logits).cumsum(axis=1) < rng.random((samples, 1))).sum(axis=1)
    return logits * sharpness, np.minimum(targets, classes - 1)


def simulate_ece(classes: int, sharpness: float, samples: int, draws: int) -> list[Simulated]:
    """Return how often the 95 % interval of ECE's change misses the change on 200,000 samples.

    Power: how often the interval excludes 0. Temperatures are fitted anew in each draw, on as many other samples.
    """
    rng, whole = np.random.default_rng(6), logits_of(classes, sharpness, 200_000, np.random.default_rng(7))
    measure = ESTIMATORS[SHOWN]

    def scored(of: tuple[Floats, Integers], temperature: float) -> Scored:
        return Scored.of(softmax64(of[0] / temperature), of[1])

    grid = sharpness * np.linspace(0.6, 1.6, 11)  # the true change is smooth in T, so it is interpolated
    truths = [measure(scored(whole, temperature)) - measure(scored(whole, 1.0)) for temperature in grid]
    missed, shown = [0, 0], [0, 0]
    for _ in range(draws):
        val, test = (logits_of(classes, sharpness, samples, rng) for _ in range(2))
        temperature = float(fit("temperature", *val).parameters["temperature"])
        sides = {"after": {0: scored(test, temperature)}, "before": {0: scored(test, 1.0)}}
        truth, data = float(np.interp(temperature, grid, truths)), measured(sides, SHOWN)
        for at, asked in enumerate((data, replace(data, excess={}))):
            question = Question(["after"], "ece", level=0.95, against=["before"], samples_only=True)
            verdict = judge(question, asked).of["after"]
            missed[at] += not verdict.low <= truth <= verdict.high
            shown[at] += verdict.code in (BETTER, WORSE)
    text = f"{classes} classes, t₃ logits × {sharpness:g}, {samples:,} samples"
    return [
        Simulated(name, text, draws, missed[at] / draws, nominal, shown[at] / draws)
        for at, (name, nominal) in enumerate(((ECE_CHANGE, 0.05), (PLAIN_CHANGE, None)))
    ]


def simulate_race(law: Law, draws: int, most: int = 8) -> list[Simulated]:
    """Return how often a race from three to `most` common seeds ends with the truly best called worse."""
    rng, wrong, decided, spent = np.random.default_rng(2), 0, 0, 0
    for apart in (False, True):
        for _ in range(draws):
            values, _ = drawn(replace(law, seeds=most), rng, apart=apart)
            verdicts, trained = race(values, most)
            wrong += (not apart) and "0" in verdicts.named(WORSE)
            decided += apart and {*verdicts.named(WORSE)} >= {str(at) for at in range(2, law.candidates)}
            spent += apart * trained
    held = f"n = 3 to {most}, {spent / draws:.0f} of {most * law.candidates} trainings"
    text = law.text().replace(f"n = {law.seeds}", held)
    return [Simulated("race: the truly best is called worse", text, draws, wrong / draws, 0.1, decided / draws)]


def race(values: Values, most: int) -> tuple[Verdicts, int]:
    """Return the verdicts at the end of a race over common seeds, and the number of trainings."""
    held = dict.fromkeys(values, 3)
    while True:
        seen = {name: {r: v for r, v in by_seed.items() if r < held[name]} for name, by_seed in values.items()}
        verdicts = best_of(seen, first=3)
        asked = [name for name in verdicts.in_play if held[name] < most]
        if not asked:
            return verdicts, sum(held.values())
        least = min(held[name] for name in asked)
        held |= {name: held[name] + 1 for name in asked if held[name] == least}


def simulate_advice(draws: int) -> list[Simulated]:
    """Return how often the advised number of seeds does not decide; one in five is promised."""
    rng, asked, failed, silent = np.random.default_rng(3), 0, 0, 0
    for _ in range(draws):
        spread = 0.15 * np.exp(0.4 * rng.normal(size=(4, 1)))
        table = np.exp(rng.normal(0, 0.3, (4, 1)) + spread * rng.normal(size=(4, 80)))
        values = {str(at): dict(enumerate(row.tolist())) for at, row in enumerate(table)}
        first = best_of({name: {r: v for r, v in by_seed.items() if r < 3} for name, by_seed in values.items()})
        if first.code != OPEN:
            continue
        wanted = first.seeds_needed
        silent += wanted is None
        if wanted is not None:
            later = {name: {r: v for r, v in by_seed.items() if r < wanted} for name, by_seed in values.items()}
            asked, failed = asked + 1, failed + (best_of(later).code == OPEN)
    return [
        Simulated(
            "advice: so many seeds do not decide",
            f"4 candidates, {silent} without a number",
            asked,
            failed / max(1, asked),
            0.2,
            asked / max(1, asked + silent),
        )
    ]


def simulate_outliers(draws: int) -> list[Simulated]:
    """Return how often healthy seeds are flagged in a sweep, and the share of bad seeds found where two are good."""
    rates = []
    for spreads in ("equal", "15 : 1"):
        for seeds in (3, 5, 8):
            rng, healthy, found, there = np.random.default_rng(4), 0, 0, 0
            for _ in range(draws):
                law = Law(spreads, seeds=seeds)
                spread = spreads_of(law, rng)
                table = np.exp(spread * rng.standard_normal((8, seeds)))
                healthy += bool(flagged(table))
                bad = rng.random(table.shape) < 0.2
                findable = bad & ((~bad).sum(axis=1) >= 2)[:, None]
                table = np.where(bad, table * np.exp(20 * spread.max()), table)
                found += sum(findable[at] for at in flagged(table))
                there += int(findable.sum())
            text = f"8 candidates, {spreads} spreads, n = {seeds}; bad by 20 spreads"
            rates.append(
                Simulated("outliers: a healthy seed is flagged", text, draws, healthy / draws, 0.01, found / there)
            )
    return rates


def flagged(table: Floats) -> list[tuple[int, int]]:
    """Return the places of outliers in a table [k, n]."""
    values = {str(at): dict(enumerate(row.tolist())) for at, row in enumerate(table)}
    return [(int(name), int(str(seed))) for name, seed in outliers(values, "min").flagged]


def simulate_real(
    metric: str, seeds: int, draws: int, ask: Callable[[Values], tuple[set[str], float]]
) -> list[Simulated]:
    """Return the same for the quickstart's finalists, whose seeds are drawn from 32; sixteen others are the truth."""
    with SEEDS.open() as file:
        rows = list(csv.DictReader(file))
    trials = sorted({row["trial"] for row in rows})
    table = np.array([[float(row[metric]) for row in rows if row["trial"] == trial] for trial in trials])
    table = 1 - table if metric == "accuracy" else table
    best, rng, wrong, found, there = str(table.mean(axis=1).argmin()), np.random.default_rng(seeds), 0, 0, 0
    for _ in range(draws):
        order = rng.permutation(table.shape[1])
        truth, worse = ask(_table(table[:, order[16:]]))[0] - {best}, ask(_table(table[:, order[:seeds]]))[0]
        wrong, found, there = wrong + (best in worse), found + len(worse & truth), there + len(truth)
    text = f"quickstart's {len(trials)} finalists, {metric}, n = {seeds}"
    return [Simulated(BEST, text, draws, wrong / draws, 0.1, found / there)]


def _table(table: Floats) -> Values:
    return {str(at): dict(enumerate(row.tolist())) for at, row in enumerate(table)}


#: Laws of the races.
RACES = [Law(spreads, correlation=rho) for rho in (0.0, 0.9) for spreads in ("equal", "log-normal", "15 : 1")]


def tasks(draws: int) -> list[tuple[Callable[..., list[Simulated]], tuple[object, ...]]]:
    """Return all simulations and their arguments."""
    apart = [Law(correlation=None, seeds=n, distance=d) for d in (1.0, 2.0, 4.0, 8.0) for n in (2, 3, 5, 8)]
    real = [(metric, n) for metric in ("nll", "posthoc_temperature_nll", "ece", "accuracy") for n in (2, 3, 5)]
    noises = [(noise, n) for noise in ("normal", "t₃", "skewed") for n in (2, 3, 5)]
    return [
        *((simulate_real, (metric, n, draws // 2, ask_judge)) for metric, n in real),
        *((simulate_best, (law, draws, ask_judge)) for law in (*LAWS, *apart)),
        *((simulate_race, (law, draws // 4)) for law in RACES),
        *((simulate_changes, (noise, n, draws * 4)) for noise, n in noises),
        *(
            (simulate_ece, (k, by, n, draws // 2))
            for k in (10, 2)
            for by in (2.0, 1.3, 1.0, 0.6)
            for n in (300, 1000, 5000)
        ),
        (simulate_advice, (draws,)),
        (simulate_outliers, (draws,)),
    ]
