"""Verdicts against a naive reference, and what must hold of them whatever the data are."""

import itertools

import numpy as np
import pytest
from scipy import optimize, special, stats

from sweeper.judging.judge import judge
from sweeper.judging.moderation import MOST, Prior
from sweeper.judging.pairs import pair_of
from sweeper.judging.question import BETTER, NOT_COMPARED, OPEN, SAME, SAMPLES, WORSE, Data, Question


def drawn(seed: int, k: int = 5, n: int = 4) -> dict[str, dict[int, float]]:
    random = np.random.default_rng(seed)
    table = np.exp(0.3 * random.standard_normal((k, 1)) + 0.1 * random.standard_normal((k, n)))
    return {f"c{at}": dict(enumerate(row.tolist())) for at, row in enumerate(table)}


def naive(values: dict[str, dict[int, float]], level: float = 0.9) -> dict[str, str]:
    """The definition, one pair after the other: scipy's t, and Smyth's prior by a root finder."""
    tests = {}
    step = min(b - a for a, b in itertools.pairwise(sorted(v for row in values.values() for v in row.values())))
    for one, other in itertools.permutations(values, 2):
        common = [seed for seed in values[one] if seed in values[other]]
        means = [np.mean([values[name][seed] for seed in common]) for name in (one, other)]
        scores = [
            [np.log(mean) + values[name][seed] / mean - 1 for seed in common]
            for name, mean in zip((one, other), means, strict=True)
        ]
        differences = np.subtract(*scores)
        ratios = [np.log(values[one][seed] / values[other][seed]) for seed in common]
        rounding = sum((step / mean) ** 2 / 12 for mean in means)
        square = max(differences.var(ddof=1), np.var(ratios, ddof=1)) + rounding
        tests[one, other] = differences.mean(), square, len(common)
    error, codes = (1 - level) / 2 / (len(values) - 1), {}
    for name in values:
        ps = []
        for (one, other), (mean, square, n) in tests.items():
            if one == name:
                shared = [pair for pair in itertools.combinations(values, 2) if {*pair} & {one, other}]
                prior, typical = smyth([(tests[pair][1], tests[pair][2] - 1) for pair in shared])
                moderated = (prior * typical + (n - 1) * square) / (prior + n - 1)
                ps.append(stats.t.sf(mean / np.sqrt(moderated / n), prior + n - 1))
        codes[name] = WORSE if min(ps) < error else OPEN
    return codes


def smyth(every: list[tuple[float, int]]) -> tuple[float, float]:
    """Degrees of freedom and variance of the prior, from variances with theirs."""
    logs = np.array([np.log(s) - special.digamma(d / 2) + np.log(d / 2) for s, d in every])
    excess = logs.var(ddof=1) - np.mean([special.polygamma(1, d / 2) for _, d in every])
    prior = MOST
    if excess > special.polygamma(1, MOST / 2):
        prior = 2 * optimize.brentq(lambda y: special.polygamma(1, y) - excess, 1e-3, MOST / 2)
    return prior, np.exp(logs.mean() + special.digamma(prior / 2) - np.log(prior / 2))


def test_the_best_of_several_as_in_the_definition() -> None:
    codes = set()
    for seed in range(20):
        values = drawn(seed)
        del values["c1"][3], values["c2"][0]  # each pair has its own common seeds
        verdicts, expected = judge(Question([*values], "nll", relative=True), Data(values)), naive(values)
        assert {name for name, code in expected.items() if code == WORSE} == {*verdicts.named(WORSE)}
        codes |= {*expected.values()}
    assert codes == {WORSE, OPEN}


def test_pairs_use_all_their_common_seeds_and_more_seeds_of_one_pair_change_its_interval_alone() -> None:
    values = {
        name: {s: v for s, v in row.items() if name in ("c0", "c1") or s < 3} for name, row in drawn(1, n=9).items()
    }
    question = Question([*values], "nll", relative=True)
    of = judge(question, Data(values)).of
    leader = judge(question, Data(values)).leader
    assert {len(verdict.seeds) for name, verdict in of.items() if {name, leader} & {"c2", "c3", "c4"}} == {3}
    pair = judge(Question(["c0", "c1"], "nll", relative=True), Data(values)).of["c1"]
    assert len(pair.seeds) == 9 and pair.paired


@pytest.mark.parametrize("mode", ["min", "max"])
def test_verdicts_do_not_depend_on_the_order_of_candidates_or_on_the_side(mode: str) -> None:
    values = {name: {s: 1 - v / 9 if mode == "max" else v for s, v in row.items()} for name, row in drawn(3).items()}
    first = judge(Question([*values], "m", mode, margin=0.01), Data(values))
    again = judge(Question([*reversed(values)], "m", mode, margin=0.01), Data(values))
    assert first.leader == again.leader and {n: v.code for n, v in first.of.items()} == {
        n: v.code for n, v in again.of.items()
    }
    means = {name: np.mean([*row.values()]) for name, row in values.items()}
    assert first.leader == (min if mode == "min" else max)(means, key=lambda name: means[name])


def test_a_change_is_students_t_with_one_row_and_the_margin_is_two_one_sided_tests() -> None:
    random = np.random.default_rng(0)
    before, change = 0.05 + 0.002 * random.standard_normal(6), -0.003 + 0.004 * random.standard_normal(6)
    values = {"before": dict(enumerate(before.tolist())), "after": dict(enumerate((before + change).tolist()))}
    for margin in (0.001, 0.004, 0.02):
        question = Question(["after"], "ece", margin=margin, level=0.95, against=["before"])
        verdict = judge(question, Data(values)).of["after"]
        low, high = stats.t.interval(0.95, 5, change.mean(), stats.sem(change))
        nearer = stats.t.ppf(0.95, 5) * stats.sem(change)
        assert verdict.low == pytest.approx(low, rel=1e-3) and verdict.high == pytest.approx(high, rel=1e-3)
        within = abs(change.mean()) + nearer <= margin
        assert verdict.code == (BETTER if high < 0 else WORSE if low > 0 else SAME if within else OPEN)


def test_the_shared_error_of_test_samples_does_not_shrink_with_seeds() -> None:
    random = np.random.default_rng(0)
    groups = random.standard_normal(20)
    groups *= 0.01 / np.sqrt(19 / 20 * ((groups - groups.mean()) ** 2).sum())
    widths = []
    for seeds in (4, 64):
        values = {
            "a": dict(enumerate((0.1 + 0.001 * random.standard_normal(seeds)).tolist())),
            "b": dict.fromkeys(range(seeds), 0.1),
        }
        left_out = {
            "a": {s: v + groups for s, v in values["a"].items()},
            "b": {s: np.full(20, 0.1) for s in range(seeds)},
        }
        question = Question(["a"], "ece", level=0.95, against=["b"])
        verdict = judge(question, Data(values, left_out)).of["a"]
        widths.append(verdict.high - verdict.low)
        assert verdict.code == OPEN and verdict.limited_by == SAMPLES and verdict.seeds_needed is None
    assert widths[1] == pytest.approx(2 * stats.t.ppf(0.975, 19) * 0.01, rel=0.02)
    one = judge(
        Question(["a"], "ece", against=["b"], level=0.95, samples_only=True),
        Data({"a": {0: 0.2}, "b": {0: 0.1}}, left_out),
    )
    assert one.of["a"].code == WORSE and one.of["a"].high - 0.1 == pytest.approx(
        stats.t.ppf(0.975, 19) * 0.01, rel=0.02
    )


def test_nothing_is_better_than_nobody() -> None:
    values = drawn(0, k=2)
    alone = judge(Question(["c0"], "nll"), Data(values))
    assert (alone.leader, alone.code, alone.most_lost, alone.in_play) == ("c0", NOT_COMPARED, None, [])
    single = judge(Question(["c0", "c1"], "nll"), Data({"c0": {0: 0.1}, "c1": {0: 5.0}}))
    assert single.leader == "c0" and {v.code for v in single.of.values()} == {NOT_COMPARED}
    assert single.of["c1"].seeds_needed == 3
    assert judge(Question(["c0"], "nll"), Data({})).leader is None


def test_seeds_needed_are_more_than_held_and_decide_in_at_least_four_of_five() -> None:
    random, asked, decided = np.random.default_rng(0), 0, 0
    for _ in range(60):
        table = np.exp(np.array([[0.0], [0.3]]) + 0.2 * random.standard_normal((2, 80)))
        whole = {"a": dict(enumerate(table[0].tolist())), "b": dict(enumerate(table[1].tolist()))}

        def held(count: int, whole: dict[str, dict[int, float]] = whole) -> Data:
            return Data({name: {s: v for s, v in row.items() if s < count} for name, row in whole.items()})

        question = Question(["a", "b"], "nll", relative=True)
        first = judge(question, held(3))
        if first.code == OPEN and first.seeds_needed is not None:
            assert first.seeds_needed > 3
            asked, decided = asked + 1, decided + (judge(question, held(first.seeds_needed)).code != OPEN)
    assert asked >= 8 and decided >= 0.7 * asked


def test_one_candidate_less_never_takes_a_verdict_away_from_an_equal_pair() -> None:
    """A question on two has no larger interval than the same two among five."""
    values = drawn(7)
    whole = judge(Question([*values], "nll", relative=True), Data(values))
    for name in whole.named(WORSE):
        rival = whole.of[name].rival
        question = Question([name, rival], "nll", relative=True)
        assert question.error(4) > whole.question.error(4)


def test_the_prior_is_at_most_four_degrees_and_less_where_spreads_differ() -> None:
    assert Prior.of([(s, 4) for s in (1.0, 1.1, 0.9, 1.05)]).freedom == MOST
    random = np.random.default_rng(0)
    unequal = Prior.of([(float(s), 9) for s in np.exp(3 * random.standard_normal(30))])
    assert 0 < unequal.freedom < 1.5
    assert Prior.of([(2.0, 3)]).moderated(2.0, 3) == (2.0, 3)


def test_levels_under_unequal_spreads_and_correlated_seeds() -> None:
    """The truly best is called worse in at most 10 % of sweeps; more draws are in tests/benchmarks."""
    random, wrong, draws = np.random.default_rng(0), 0, 60
    for at in range(draws):
        spread = 0.1 * np.exp(0.7 * random.standard_normal((6, 1)))
        rho = (0.0, 0.5, 0.9, 0.98)[at % 4]
        errors = np.sqrt(1 - rho) * random.standard_normal((6, 3)) + np.sqrt(rho) * random.standard_normal(3)
        table = np.exp(spread * errors - spread**2 / 2)
        values = {str(row): dict(enumerate(table[row].tolist())) for row in range(6)}
        wrong += "0" in judge(Question([*values], "nll", relative=True), Data(values)).named(WORSE)
    assert wrong <= 0.1 * draws + 2 * np.sqrt(0.09 * draws)


def test_asked_again_after_every_seed_a_pair_has_a_share_of_the_error() -> None:
    values = drawn(2, k=3, n=6)
    once, again = (Question([*values], "nll", relative=True, first=first) for first in (0, 3))
    assert [once.error(n) for n in (3, 4, 6)] == [pytest.approx(0.025)] * 3
    assert [again.error(n) for n in (3, 4, 6)] == [pytest.approx(0.025 / k) for k in (1, 2, 4)]
    widths = [judge(q, Data(values)).of["c1"].high - judge(q, Data(values)).of["c1"].low for q in (once, again)]
    assert widths[1] > widths[0]


@pytest.mark.parametrize("samples_only", [False, True])
def test_candidates_that_cannot_be_compared_form_no_pairs(samples_only: bool) -> None:
    counts = {f"c{at}": at % 4 for at in range(12)}  # none, one, two or three seeds
    data = Data({name: {seed: float(seed + len(name)) for seed in range(n)} for name, n in counts.items()})
    question = Question([*counts], "nll", samples_only=samples_only)
    pairs = question.pairs(data)
    every = [*itertools.combinations(counts, 2)]
    assert [names for names in every if names in pairs] == pairs
    assert {names for names in every if pair_of(question, data, *names) is not None} <= {*pairs}
    assert min(counts[name] for names in pairs for name in names) == (1 if samples_only else 2)
