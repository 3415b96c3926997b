"""Seeds in bad optima are found, healthy seeds of noisy candidates are kept."""

import numpy as np

from sweeper.judging.outliers import outliers


def named(table: np.ndarray) -> dict[str, dict[int, float]]:
    return {str(at): dict(enumerate(row.tolist())) for at, row in enumerate(table)}


def test_spreads_of_fifteen_to_one_are_healthy() -> None:
    random, flagged = np.random.default_rng(0), 0
    spread = np.where(np.arange(8) % 2 == 0, 0.12, 0.008)[:, None]
    for _ in range(100):
        flagged += bool(outliers(named(np.exp(spread * random.standard_normal((8, 4)))), "min").flagged)
    assert flagged <= 4


def test_one_seed_in_five_at_a_bad_optimum_is_found() -> None:
    random, found, there = np.random.default_rng(0), 0, 0
    for _ in range(40):
        bad = random.random((8, 5)) < 0.2
        table = np.exp(0.2 * random.standard_normal((8, 5)) + 4.0 * bad)
        known = outliers(named(table), "min")
        kept = known.kept(named(table))
        assert all(len(by_seed) >= 2 for by_seed in kept.values()) and known.trainings == 40
        found += sum(bool(bad[int(name), int(str(seed))]) for name, seed in known.flagged)
        there += int((bad & ((~bad).sum(axis=1) >= 2)[:, None]).sum())
    assert found >= 0.7 * there


def test_accuracies_are_judged_the_other_way_round() -> None:
    table = 0.95 + 0.002 * np.random.default_rng(0).standard_normal((8, 5))
    table[3, 2] = 0.1
    assert outliers(named(table), "max").flagged == (("3", 2),)
    assert outliers(named(table[:1]), "max").flagged == ()  # too few to know a typical spread


def test_a_loss_far_above_the_next_better_seeds_is_flagged_however_much_seeds_spread() -> None:
    # Thirty times the loss is thirteen typical spreads here, which the other rules do not flag with three seeds.
    values = {f"c{k}": {seed: 0.1 * float(np.exp(0.12 * ((k + seed) % 3 - 1))) for seed in range(3)} for k in range(8)}
    assert not outliers(values, "min").flagged
    for times, flagged in ((50.0, (("c0", 2),)), (5.0, ())):
        worst = {**values["c0"], 2: times * max(values["c0"].values())}
        assert outliers({**values, "c0": worst}, "min").flagged == flagged
