"""How often verdicts, prediction sets and comparisons are wrong, by simulation: the rows of `docs/how_sure_details.md`.

    python -m tests.benchmarks.simulated_claims            # every row, about five minutes on one idle core

Everything goes through the functions that the program itself calls. Draws come from models that no method assumes:
configurations differ at random (`Draws.between`), replicates of one differ besides, both normal, with heavy tails (t₃)
or skewed (log-normal), with equal spreads or with one side three times as wide. An effect is measured in standard
deviations between configurations.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.papers.claims import CLAIMS
from search_spaces.papers.claims.base import HOLDS, UNDECIDED
from search_spaces.papers.claims.numbers import SIGNIFICANT
from sweeper.core.statistics.basics import correlation
from sweeper.judging.judge import change
from sweeper.judging.question import BETTER, WORSE
from sweeper.reporting.figures.loss_families import compare_families
from sweeper.results.recalibration import UNCALIBRATED, effects
from tests.search_spaces.papers.claims.constructed_tables import replicate_row, split_rows
from trainables.metrics.base import Floats, softmax64
from trainables.posthoc.conformal import fit_split, set_measures

Configuration = dict[str, Any]
Row = dict[str, Any]

EPOCHS = 8
"""Of the claims about trajectories: four at the first learning rate and four after it dropped."""

SAMPLES, CLASSES = 360, 10
"""Validation samples and classes of the data set that the quickstart trains on."""


@dataclass(frozen=True)
class Simulated:
    """One line of the table.

    Attributes:
        quantity: what the program prints, e.g. a claim's name.
        condition: what was drawn.
        draws: how many data sets.
        rate: of wrong verdicts without an effect; or of the truth covered.
        error: the simulation's standard error of `rate`.
        power: share of right verdicts at effects of one and two standard deviations; empty where there is no effect.
    """

    quantity: str
    condition: str
    draws: int
    rate: float
    error: float
    power: tuple[float, ...] = ()

    def line(self) -> str:
        """Return the row of a Markdown table."""
        power = ", ".join(f"{share:.2f}" for share in self.power) or "–"
        return f"| {self.quantity} | {self.condition} | {self.draws} | {self.rate:.3f} ± {self.error:.3f} | {power} |"


HEADING = "| quantity | condition | draws | rate ± s.e. | power |\n|---|---|---|---|---|"


def simulated(quantity: str, condition: str, hits: Iterable[bool], power: tuple[float, ...] = ()) -> Simulated:
    """Return the row of a rate."""
    seen = np.fromiter(hits, dtype=bool)
    likely = (seen.sum() + 1) / (len(seen) + 2)  # so that none of a few draws does not look certain
    error = math.sqrt(likely * (1 - likely) / len(seen))
    return Simulated(quantity, condition, len(seen), float(seen.mean()), error, power)


def noise(kind: str, random: np.random.Generator, size: int | tuple[int, ...]) -> NDArray[np.float64]:
    """Return draws of mean 0 and standard deviation 1: `normal`, `t3`, or `log-normal` (skewness 1.75)."""
    if kind == "t3":
        return random.standard_t(3, size) / math.sqrt(3)
    if kind == "log-normal":
        return (np.exp(0.5 * random.normal(size=size)) - math.exp(0.125)) / math.sqrt(math.exp(0.5) - math.exp(0.25))
    return random.normal(size=size)


Measure = Callable[[Configuration, float, Sequence[float]], Mapping[str, float]]
"""(configuration, effect on it, three draws of mean 0) → columns; `val.…` and `test.…` belong to one split."""


@dataclass(frozen=True)
class Model:
    """What one claim is drawn from.

    Attributes:
        configurations: n → configurations, without `config_`.
        effect: what a claim that holds adds to a configuration's values, in standard deviations.
        measure: see `Measure`.
        wide: which configurations have the wider spread, where spreads differ.
    """

    configurations: Callable[[int, np.random.Generator], list[Configuration]]
    effect: Callable[[Configuration], float]
    measure: Measure
    wide: Callable[[Configuration], bool]


def losses(*names: Mapping[str, Any], grid: bool = False) -> Callable[[int, np.random.Generator], list[Configuration]]:
    """Return n configurations of each loss, at learning rates of a common grid or drawn one by one."""

    def configurations(n: int, random: np.random.Generator) -> list[Configuration]:
        rates = 10 ** np.linspace(-2, 0, n)
        return [
            {**loss, "optimizer_lr": float(rate if grid else 10 ** random.uniform(-2, 0))}
            for loss in names
            for rate in rates
        ]

    return configurations


def gammas(first: Mapping[str, Any], then: Mapping[str, Any], key: str) -> Any:
    """Return n configurations that differ in one number alone, 0 (which is `first`) to 1."""

    def configurations(n: int, random: np.random.Generator) -> list[Configuration]:
        values = np.linspace(0, 10, n)[1:]
        return [dict(first), *({**then, key: float(value)} for value in values)]

    return configurations


def of_loss(name: str) -> Callable[[Configuration], bool]:
    return lambda configuration: configuration["loss_name"] == name


def by_number(key: str, n_scale: float = 10) -> Callable[[Configuration], float]:
    """Return the effect of a hyperparameter from 0 to 10: standardised, as if uniformly drawn."""
    return lambda configuration: (configuration.get(key, 0.0) / n_scale - 0.5) * math.sqrt(12)


def large(key: str) -> Callable[[Configuration], bool]:
    return lambda configuration: configuration.get(key, 0.0) > 5


def columns(*names: str, centre: float = 0.1, scale: float = 0.01, log: bool = False) -> Measure:
    """Return a measure that adds effect and its own draw to each column; a leading `-` turns the effect round."""

    def measure(configuration: Configuration, effect: float, draws: Sequence[float]) -> Mapping[str, float]:
        found = {}
        for name, draw in zip(names, draws, strict=False):
            value = (-effect if name.startswith("-") else effect) + draw
            found[name.lstrip("-")] = math.exp(value) if log else centre + scale * value
        return found

    return measure


def improved(before: str, after: str) -> Measure:
    """Return a measure of two columns: `after` is lower by the effect; both share their configuration's draw."""

    def measure(configuration: Configuration, effect: float, draws: Sequence[float]) -> Mapping[str, float]:
        base = 0.1 + 0.005 * draws[1]
        return {before: base, after: base - 0.01 * (effect + draws[0])}

    return measure


def ours(*names: str) -> Callable[[Configuration], float]:
    """Return the effect of being one of the losses that the claim is about: lower by one."""
    return lambda configuration: -1.0 if configuration["loss_name"] in names else 0.0


def with_validation(configuration: Configuration, effect: float, draws: Sequence[float]) -> Mapping[str, float]:
    return {"test.ece": 0.1 + 0.01 * (effect + draws[0]), "val.nll": 0.5 + 0.1 * draws[1], "val.ece": draws[1]}


def straight(configuration: Configuration, effect: float, draws: Sequence[float]) -> Mapping[str, float]:
    """Return best temperatures at the grid's γ_ev whose line has an R² of .95 plus effect and draw, by hundredths."""
    from trainables.posthoc.focal_temperature import GAMMAS

    x = np.asarray(GAMMAS, dtype=np.float64)
    line = (x - x.mean()) / x.std()
    bent = line**2 - 1 - (line**3).mean() * line
    share = min(0.9999, 0.95 + 0.01 * (effect + draws[0]))
    temperatures = 2 + 0.1 * (math.sqrt(share) * line + math.sqrt(1 - share) * bent / bent.std())
    names = (f"temperature_at_{g:g}".replace("-", "minus_").replace(".", "_") for g in GAMMAS)
    return dict(zip((f"val.posthoc_focal_temperature_{name}" for name in names), temperatures.tolist(), strict=True))


def divergences(configuration: Configuration, effect: float, draws: Sequence[float]) -> Mapping[str, float]:
    return {
        "test.kl_to_posterior": 0.1 * math.exp(0.1 * (effect + draws[0])),
        "test.posthoc_temperature_kl_to_posterior": 0.1 * math.exp(0.1 * (effect + draws[1])),
        "test.posthoc_focal_map_kl_to_posterior": 0.1,
    }


def traced(configuration: Configuration, effect: float, draws: Sequence[float]) -> Mapping[str, float]:
    """Return ECE over a trace that the learning rate sets: flat, or with a valley as deep as `effect`."""
    place = 1 + math.log10(configuration["optimizer_lr"])  # −1 to 1
    return {
        "val.hessian_cross_entropy_trace": 10 ** (2 + place + 0.02 * draws[1]),
        "val.ece": 10 ** (-1.5 + 0.1 * (2 * effect * place**2 + draws[0])),
    }


def traces(n: int, random: np.random.Generator) -> list[Configuration]:
    return [{"loss_name": "focal", "optimizer_lr": 10 ** random.uniform(-2, 0)} for _ in range(n)]


def networks(n: int, random: np.random.Generator) -> list[Configuration]:
    """Return n networks (at most 8) with six γ each."""
    return [
        {"architecture_name": f"resnet{8 + 6 * place}", "place": place / (min(n, 8) - 1), "loss_name": name, **gamma}
        for place in range(min(n, 8))
        for name, gamma in (("cross_entropy", {}), *(("focal", {"loss_gamma": float(g)}) for g in (1, 2, 3, 4, 5)))
    ]


def valley(configuration: Configuration, effect: float, draws: Sequence[float]) -> Mapping[str, float]:
    """Return ECE over γ: noise alone, or a valley that moves from γ 0 to γ 5 as the network grows."""
    away = abs(configuration.get("loss_gamma", 0.0) - 5 * configuration["place"])
    return {"test.ece": 0.1 + 0.01 * (effect * away + draws[0])}


def norms(configuration: Configuration, effect: float, draws: Sequence[float]) -> Mapping[str, float]:
    late = configuration["epoch"] > EPOCHS // 2
    value = math.exp(0.1 * ((1 if late else -1) * effect + draws[int(late)]))
    return {"lr": 0.01 if late else 0.1, "last_layer_weight_norm": value}


def rising(configuration: Configuration, effect: float, draws: Sequence[float]) -> Mapping[str, float]:
    epoch, late = configuration["epoch"], configuration["epoch"] > EPOCHS // 2
    wiggle = 0.5 * math.sin(37 * epoch)
    return {
        "lr": 0.01 if late else 0.1,
        "test_nll_wrong": 2 + 0.1 * ((effect + draws[0]) * epoch + wiggle),
        "test_nll_correct": 1 + 0.1 * ((draws[1] - effect) * epoch + wiggle),
    }


CE: Mapping[str, Any] = {"loss_name": "cross_entropy"}
FLSD: Mapping[str, Any] = {"loss_name": "focal_sample_dependent", "loss_variant": "flsd_53"}
FOCAL: Mapping[str, Any] = {"loss_name": "focal"}
SMOOTHED: Mapping[str, Any] = {"loss_name": "focal", "loss_smoothing": 0.1}
SELECTIVE: Mapping[str, Any] = {"loss_name": "selective_risk", "loss_coverage": 0.8, "loss_nu": 0.1}
TRACE: Mapping[str, Any] = {"loss_name": "hessian_trace", "loss_base": "cross_entropy"}


def always(configuration: Configuration) -> float:
    return 1.0


def focal_gammas(n: int, random: np.random.Generator) -> list[Configuration]:
    return [{**FOCAL, "loss_gamma": float(g)} for g in np.linspace(0.5, 10, n)]


def smoothed_gammas(n: int, random: np.random.Generator) -> list[Configuration]:
    return [{**each, "loss_smoothing": 0.1} for each in focal_gammas(n, random)]


def margins(configuration: Configuration) -> float:
    return -1.0 if configuration["loss_score"] == "margin" else 0.0


def mapped(n: int, random: np.random.Generator) -> list[Configuration]:
    return focal_gammas(n, random)


def _falls(key: str) -> Callable[[Configuration], float]:
    return lambda configuration: -by_number(key)(configuration)


TAU = "loss_weight"
GAMMA = "loss_gamma"
DECAY = "optimizer_weight_decay"
_FITTED = {"posthoc_temperature_fitted_by": "ece", "posthoc_focal_temperature_fitted_by": "ece"}

MODELS: dict[str, Model] = {
    "curvature_falls_with_gamma": Model(
        gammas(CE, FOCAL, GAMMA),
        _falls(GAMMA),
        lambda c, e, d: {
            **columns("val.hessian_cross_entropy_lambda_max", "val.hessian_training_lambda_max", centre=9.0)(c, e, d),
            "val.mean_focal_weight": 1.0,
        },
        large(GAMMA),
    ),
    "lower_layer_curvature_calibrates": Model(
        losses(CE, {**CE, "optimizer_sharpness": "sam", "optimizer_rho": 0.1}, grid=True),
        lambda configuration: -1.0 if "optimizer_sharpness" in configuration else 0.0,
        lambda c, e, d: {
            "test.ece": 0.1 + 0.01 * (e + d[0]),
            "val.trace of 0 only": math.exp(0.1 * d[1] - 2 * ("optimizer_sharpness" in c)),
        },
        lambda configuration: "optimizer_sharpness" in configuration,
    ),
    "every_loss_controls_curvature": Model(
        losses(CE, {"loss_name": "brier"}, {"loss_name": "aurc"}, grid=True),
        ours("brier", "aurc"),
        columns("val.hessian_cross_entropy_lambda_max", log=True),
        of_loss("brier"),
    ),
    "ece_smallest_at_intermediate_trace": Model(traces, always, traced, lambda c: c["optimizer_lr"] > 0.3),
    "trace_regularisation_calibrates": Model(
        gammas(CE, TRACE, TAU), _falls(TAU), columns("val.ece", "val.hessian_cross_entropy_trace"), large(TAU)
    ),
    "focal_temperature_beats_temperature": Model(
        mapped, always, improved("posthoc_temperature_ada_ece", "posthoc_focal_temperature_ada_ece"), large(GAMMA)
    ),
    "choosing_by_ece_lowers_ece": Model(
        mapped,
        always,
        improved("posthoc_focal_temperature_own_nll_ada_ece", "posthoc_focal_temperature_ada_ece"),
        large(GAMMA),
    ),
    "temperature_falls_with_training_gamma": Model(
        gammas(CE, FOCAL, GAMMA), _falls(GAMMA), columns("posthoc_temperature_temperature"), large(GAMMA)
    ),
    "temperature_linear_in_gamma_ev": Model(mapped, always, straight, large(GAMMA)),
    "focal_map_recovers_posterior": Model(mapped, always, divergences, large(GAMMA)),
    "coverage_and_nu_calibrate": Model(
        losses(CE, SELECTIVE), ours("selective_risk"), with_validation, of_loss("selective_risk")
    ),
    "cross_entropy_overconfident_on_mistakes": Model(
        losses(CE, FLSD),
        ours("focal_sample_dependent"),
        lambda c, e, d: {"test.confidence_wrong": 0.6 + 0.05 * (e + d[0]), "test.accuracy": 0.9},
        of_loss("cross_entropy"),
    ),
    "flsd_beats_baselines": Model(
        losses(CE, {"loss_name": "brier"}, FLSD),
        ours("focal_sample_dependent"),
        columns("test.ece", "test.posthoc_temperature_ece"),
        of_loss("focal_sample_dependent"),
    ),
    "au_beats_every_baseline": Model(
        losses(CE, {"loss_name": "aurc"}, SELECTIVE), ours("selective_risk"), with_validation, of_loss("selective_risk")
    ),
    "focal_in_stage_one_helps": Model(
        losses(CE, {"loss_name": "two_stage"}),
        ours("two_stage"),
        columns("test.ece", "test.posthoc_temperature_nll"),
        of_loss("two_stage"),
    ),
    "weight_decay_hurts_calibratability": Model(
        lambda n, random: [{**CE, DECAY: float(each)} for each in np.linspace(0, 10, n)],
        by_number(DECAY),
        columns("test.posthoc_temperature_ece", "test.ece"),
        large(DECAY),
    ),
    "focal_translates_best": Model(
        losses(CE, FOCAL), ours("focal"), columns("test.ece", "-test.bleu"), of_loss("focal")
    ),
    "margin_is_the_best_score": Model(
        losses({**SELECTIVE, "loss_score": "margin"}, {**SELECTIVE, "loss_score": "msp"}),
        margins,
        with_validation,
        lambda c: c["loss_score"] == "msp",
    ),
    "focal_map_lowers_ece": Model(mapped, always, improved("test.ece", "test.posthoc_focal_map_ece"), large(GAMMA)),
    "focal_map_lowers_ece_with_label_smoothing": Model(
        smoothed_gammas, always, improved("test.ece", "test.posthoc_focal_map_ece"), large(GAMMA)
    ),
    "focal_map_lowers_ece_after_ts_fl": Model(
        mapped, always, improved("test.posthoc_ts_fl_ece", "test.posthoc_ts_fl_map_ece"), large(GAMMA)
    ),
    "ece_rises_with_gamma_with_label_smoothing": Model(
        gammas({"loss_name": "label_smoothing"}, SMOOTHED, GAMMA), by_number(GAMMA), columns("test.ece"), large(GAMMA)
    ),
    "ece_rises_with_gamma_after_ts_fl": Model(
        gammas(CE, FOCAL, GAMMA), by_number(GAMMA), columns("test.posthoc_ts_fl_ece"), large(GAMMA)
    ),
    "best_gamma_grows_with_network_size": Model(networks, always, valley, lambda c: c["place"] > 0.5),
    "weight_norm_order_reverses": Model(
        losses(CE, {**FOCAL, GAMMA: 1.0}, {**FOCAL, GAMMA: 3.0}, grid=True),
        lambda c: 1.0 if c["loss_name"] == "cross_entropy" else 0.0,
        norms,
        of_loss("cross_entropy"),
    ),
    "nll_rises_through_wrong_samples_only": Model(
        losses(CE), always, rising, lambda c: c["optimizer_lr"] > 0.1
    ),
}  # fmt: skip
"""By the claim's name."""


@dataclass(frozen=True)
class Draws:
    """What is drawn for one table.

    Attributes:
        kind: of `noise`, of configurations and of replicates.
        configurations: of each loss, or in all where one number varies.
        replicates: of each configuration.
        within: standard deviation of replicates; that between configurations is 1.
        wide: how many times wider the wide configurations spread, in both.
    """

    kind: str = "normal"
    configurations: int = 8
    replicates: int = 3
    within: float = 1.0
    wide: float = 1.0

    def __str__(self) -> str:
        """Return e.g. `normal, 8 configurations × 3, spreads 1:3`."""
        spreads = "" if self.wide == 1 else f", spreads 1:{self.wide:g}"
        return f"{self.kind}, {self.configurations} configurations × {self.replicates}{spreads}"


def table(claim: str, draws: Draws, effect: float, random: np.random.Generator) -> list[Row]:
    """Return rows of `final`, or of `epochs`, drawn for a claim."""
    model = MODELS[claim]
    rows: list[Row] = []
    for index, configuration in enumerate(model.configurations(draws.configurations, random)):
        wide = draws.wide if model.wide(configuration) else 1.0
        between = wide * noise(draws.kind, random, 3)
        for replicate in range(draws.replicates):
            drawn = between + draws.within * wide * noise(draws.kind, random, 3)
            kept = {key: value for key, value in configuration.items() if key != "place"}
            common = {**replicate_row(index, replicate, kept), **_FITTED}
            shift = effect * model.effect(configuration)
            if CLAIMS[claim].table == "epochs":
                for epoch in range(1, EPOCHS + 1):
                    measured = model.measure({**configuration, "epoch": epoch}, shift, drawn.tolist())
                    rows.append({**common, "split": "", "epoch": epoch, **measured})
                continue
            measured = model.measure(configuration, shift, drawn.tolist())
            rows += split_rows(common, measured)
    return rows


def verdicts(claim: str, draws: Draws, effect: float, count: int, seed: int = 0) -> list[str]:
    """Return the verdicts of `count` tables."""
    random = np.random.default_rng([seed, *map(ord, claim)])
    return [CLAIMS[claim].judge(table(claim, draws, effect, random)).verdict for _ in range(count)]


CONDITIONS = (
    Draws("normal", 8, 3),
    Draws("normal", 24, 2),
    Draws("t3", 8, 3),
    Draws("log-normal", 8, 3),
    Draws("normal", 8, 3, wide=3.0),
    Draws("log-normal", 6, 8, wide=3.0),
)
"""Few enough for the benchmark's minutes; `python -m tests.benchmarks.simulated_claims --wide` has 3 to 48 of them."""

WIDE = tuple(
    Draws(kind, configurations, replicates, wide=wide)
    for kind in ("normal", "t3", "log-normal")
    for configurations, replicates in ((3, 2), (4, 8), (6, 3), (12, 2), (48, 3))
    for wide in (1.0, 3.0)
)


def simulate_claims(
    draws: int = 160, conditions: Sequence[Draws] = CONDITIONS, *, powers: Sequence[float] = (1.0, 2.0)
) -> Iterator[Simulated]:
    """Yield, for every claim and condition, the rate of verdicts without an effect, and power at effects of 1 and 2."""
    for claim in MODELS:
        for condition in conditions:
            wrong = [found != UNDECIDED for found in verdicts(claim, condition, 0.0, draws)]
            found = tuple(
                float(np.mean([v == HOLDS for v in verdicts(claim, condition, effect, max(1, draws // 4), seed=1)]))
                for effect in powers
            )
            yield simulated(f"claim {claim}", str(condition), wrong, found)


# Prediction sets, and the intervals of comparisons and correlations


def confused(samples: int, random: np.random.Generator, strength: float = 5.0) -> tuple[Floats, NDArray[np.int64]]:
    """Return over-confident logits [N, CLASSES] whose classes are mixed up in pairs, with heavy tails, and targets."""
    targets = random.integers(0, CLASSES, samples)
    logits = 1.5 * random.standard_t(3, (samples, CLASSES))
    logits[np.arange(samples), targets] += strength
    logits[np.arange(samples), targets ^ 1] += 2
    return logits, targets


def covered(quantity: str, condition: str, shares: Sequence[float]) -> Simulated:
    """Return the row of a mean coverage, of which each draw measures one on new samples."""
    error = float(np.std(shares, ddof=1)) / math.sqrt(len(shares))
    return Simulated(quantity, condition, len(shares), float(np.mean(shares)), error)


def simulate_conformal(draws: int = 24, alpha: float = 0.1) -> Iterator[Simulated]:
    """Yield the coverage of sets at 1 − α, after each method fitted apart, and of a network chosen on the same data."""
    for method in ("temperature", "dirichlet", "matrix", "isotonic"):
        for crosswise in (False, True):
            shares = []
            for seed in range(draws):
                random = np.random.default_rng([seed, 1])
                fitted = fit_split(method, *confused(SAMPLES, random), crosswise=crosswise, seed=seed)
                logits, targets = confused(2000, random)
                shares.append(set_measures(fitted.sets("thr", logits, alpha=alpha, seed=seed), targets)["coverage"])
            way = "CV+" if crosswise else "half and half"
            yield covered(f"conformal --method {method}", f"{SAMPLES} samples, {way}, 1 − α = {1 - alpha:g}", shares)
    yield covered(
        "conformal", f"{SAMPLES} samples that chose 1 of 48 networks by NLL", list(_chosen(10 * draws, alpha))
    )


def _chosen(draws: int, alpha: float) -> Iterator[float]:
    """Yield the coverage of sets of the network with the best validation NLL of 48, by those validation samples."""
    for seed in range(draws):
        random = np.random.default_rng([seed, 2])
        logits, targets = confused(SAMPLES + 2000, random)
        networks = (logits + random.normal(0, 1, logits.shape) for _ in range(48))
        best = min((softmax64(each) for each in networks), key=lambda p: float(-np.log(p[_of(targets)]).mean()))
        sets = fit_split(None, np.log(best[:SAMPLES]), targets[:SAMPLES]).sets(
            "thr", np.log(best[SAMPLES:]), alpha=alpha
        )
        yield set_measures(sets, targets[SAMPLES:])["coverage"]


def _of(targets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.arange(SAMPLES), targets[:SAMPLES]


def simulate_intervals(draws: int = 1000) -> Iterator[Simulated]:
    """Yield how often intervals exclude the truth, and marks are given without an effect; power at one and two."""
    for kind in ("normal", "t3", "log-normal"):
        for trials in (4, 9, 24):
            yield rates("post-hoc effect", f"{kind}, {trials} trials × 3", draws, partial(_effect, kind, trials))
        for pairs in (4, 8, 16):
            yield rates("compare", f"{kind}, {pairs} configurations", draws, partial(_paired, kind, pairs))
        for sizes, wide in (((4, 4), 1.0), ((4, 24), 3.0), ((24, 8), 3.0), ((24, 24), 3.0)):
            condition = f"{kind}, {sizes[0]} and {sizes[1]} configurations × 3, spreads {wide:g}:1"
            yield rates("loss families", condition, draws, partial(_families, kind, sizes, wide))
        for pairs in (6, 8, 12, 24):
            yield rates("correlation", f"{kind}, {pairs} pairs", draws // 4, partial(_correlated, kind, pairs))


Judged = Callable[[float, np.random.Generator], bool]
"""(effect, random) → whether the interval excludes no effect, or the mark is given."""


def rates(quantity: str, condition: str, draws: int, judged: Judged) -> Simulated:
    """Return the rate without an effect, and power at effects of one and two standard deviations."""
    random = np.random.default_rng([*map(ord, condition)])
    wrong = [judged(0.0, random) for _ in range(draws)]
    power = tuple(float(np.mean([judged(size, random) for _ in range(draws // 10)])) for size in (1.0, 2.0))
    return simulated(quantity, condition, wrong, power)


def _effect(kind: str, trials: int, effect: float, random: np.random.Generator) -> bool:
    rows = []
    for trial, of_one in enumerate(noise(kind, random, trials)):
        for replicate, (before, gained) in enumerate(noise(kind, random, (3, 2))):
            key = {"trial": f"c{trial:05d}", "replicate": replicate, "split": "test", "options": "{}", "bins": 15}
            rows.append({**key, "method": UNCALIBRATED, "ece": 0.1 + 0.01 * before, "nll": None})
            after = 0.1 + 0.01 * before - 0.01 * (effect + of_one + gained)
            rows.append({**key, "method": "temperature", "ece": after, "nll": None})
    return effects(rows)[0].changes[0].verdict.code in (BETTER, WORSE)


def _paired(kind: str, pairs: int, effect: float, random: np.random.Generator) -> bool:
    before, after = noise(kind, random, pairs), effect * math.sqrt(2) + noise(kind, random, pairs)
    return change("ece", dict(enumerate(before)), dict(enumerate(after))).code in (BETTER, WORSE)


def _families(kind: str, sizes: tuple[int, int], wide: float, effect: float, random: np.random.Generator) -> bool:
    rows = []
    for name, size, spread, shift in (("cross_entropy", sizes[0], wide, 0.0), ("focal", sizes[1], 1.0, effect * wide)):
        for place, of_one in enumerate(noise(kind, random, size)):
            value = shift + spread * (of_one + float(noise(kind, random, 3).mean()))
            rows.append(
                {
                    "trial": f"{name}{place}",
                    "loss": name,
                    "judged": 1.0,
                    "test_ece": value,
                    "config_loss_name": name,
                    "config_optimizer_lr": float(random.uniform()),
                }
            )
    (found,) = compare_families(rows, ("config_loss_name", "config_optimizer_lr"), "test_ece", "min", {})
    return found.verdict.code in (BETTER, WORSE)


def _correlated(kind: str, pairs: int, effect: float, random: np.random.Generator) -> bool:
    x = random.normal(size=pairs)
    found = correlation(x, effect * x + noise(kind, random, pairs))
    return found is not None and found.p < SIGNIFICANT


def main() -> None:
    """Print every row as a Markdown table."""
    conditions = WIDE if "--wide" in sys.argv else CONDITIONS
    print(HEADING)
    for row in chain(simulate_claims(conditions=conditions), simulate_conformal(), simulate_intervals()):
        print(row.line(), flush=True)


if __name__ == "__main__":
    main()
