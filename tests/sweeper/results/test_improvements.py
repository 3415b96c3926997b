"""Post-hoc improvement: gains of methods as evaluations measured them, their intervals' level, and their means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sweeper
from search_spaces import examples
from sweeper.judging.question import BETTER, OPEN, WORSE, Verdict
from sweeper.results import load
from sweeper.results.estimators import Scored
from sweeper.results.improvements import NONE, SCORES, Gain, Methods, mean_gain, methods_on, not_judged
from trainables.metrics import softmax64


def drawn(random: np.random.Generator, samples: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """Return heavy-tailed logits [N, 3], `sharpness` times those of a calibrated network, and classes [N]."""
    logits = 1.2 * random.standard_t(3, (samples, 3))
    classes = (random.random((samples, 1)) > softmax64(logits).cumsum(axis=1)).sum(axis=1)
    return logits * sharpness, classes


def before_and_after(random: np.random.Generator, samples: int, sharpness: float) -> tuple[Scored, Scored]:
    """Return the scores of a network, and of one whose logits a method divided by 1.5."""
    logits, classes = drawn(random, samples, sharpness)
    return Scored.of(softmax64(logits), classes), Scored.of(softmax64(logits / 1.5), classes)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two sweeps of one overconfident network, and one of a calibrated network."""
    folder, random = tmp_path_factory.mktemp("imported"), np.random.default_rng(0)
    over, right = drawn(random, 2000, 2.0), drawn(random, 2000, 1.0)
    for name, (logits, classes) in {"over": over, "again": over, "right": right}.items():
        np.savez(folder / f"{name}.npz", logits=logits, labels=classes)
        sweeper.import_(folder / f"{name}.npz", set={"evaluation.bootstrap": 0}, output=folder, mlflow=False)
    return folder


def test_a_gain_is_the_score_before_minus_the_score_after(place: Path) -> None:
    rows = {row.method: row for row in sweeper.compare("over", by="posthoc", output=place).value}
    assert rows.keys() == {"temperature", "vector", "isotonic"}
    (measured,) = load("over", output=place).rows("SELECT * FROM evaluations WHERE split = 'test'")
    for method, row in rows.items():
        for score, column in (("Brier", "brier"), ("NLL", "nll"), ("ECE, 15 bins", "ece")):
            difference = float(str(measured[column])) - float(str(measured[f"posthoc_{method}_{column}"]))
            assert row.gains[score].value == pytest.approx(difference, abs=1e-6)
    low, high = rows["temperature"].gains["Brier"].interval or (0.0, 0.0)
    assert 0 < low < rows["temperature"].gains["Brier"].value < high


def test_sweeps_of_different_data_are_averaged_and_those_of_one_data_set_count_once(place: Path) -> None:
    assert {row.where for row in sweeper.compare("over", "again", by="posthoc", output=place).value} == {
        "over, own", "again, own",
    }  # fmt: skip
    compared = sweeper.compare("over", "right", more=["again"], by="posthoc", output=place)
    brier = {row.where: row.gains["Brier"] for row in compared.value if row.method == "temperature"}
    mean = brier.pop("mean over data sets")
    assert brier["over, own"] == brier["again, own"] and mean.n == 2
    assert mean.value == pytest.approx((brier["over, own"].value + brier["right, own"].value) / 2)
    assert "mean over data sets" in repr(compared) and "temperature" in repr(compared)


def test_own_methods_are_named_as_not_judged(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(examples.__file__).parent)
    methods = {"evaluation.posthoc": ["vector", {"name": "own_components:BiasCorrected", "label": "mine"}]}
    chosen = {"evaluation.bootstrap": 0, **methods}
    sweeper.import_(place / "over.npz", name="own", set=chosen, output=place, mlflow=False)
    compared = sweeper.compare("own", by="posthoc", output=place)
    assert {row.method for row in compared.value} == {"temperature", "vector"}
    assert not_judged([load("own", output=place)]) == ["mine"] and "mine" in repr(compared)
    assert not_judged([load("over", output=place)]) == []


def judged(stages: dict[str, Scored], margin: float = 0.01) -> Methods:
    """Return the methods of one network, with the same margin for every score."""
    networks = {name: {0: one} for name, one in stages.items()}
    return methods_on("network", networks, dict.fromkeys(SCORES, margin))


def test_methods_are_judged_together_and_doing_nothing_may_be_the_best() -> None:
    random = np.random.default_rng(3)
    for sharpness, expected in ((2.0, "half"), (1.0, NONE)):
        logits, classes = drawn(random, 3000, sharpness)
        divisors = {NONE: 1.0, "half": 2.0, "double": 0.5}
        found = judged({name: Scored.of(softmax64(logits / by), classes) for name, by in divisors.items()})
        codes = {row.method: row.gains["NLL"].verdict.code for row in found.improvements if row.gains["NLL"].verdict}
        assert found.best.leader == expected and found.best.of["double"].code == WORSE == codes["double"]
        assert codes["half"] == (BETTER if expected == "half" else WORSE)
        assert (found.best.of[NONE].code == WORSE) == (expected == "half"), "the same question cannot have two answers"
        assert found.scores["NLL"][NONE] - found.scores["NLL"]["half"] == pytest.approx(
            found.improvements[0].gains["NLL"].value
        )


def test_as_many_samples_as_are_named_decide_what_fewer_leave_open() -> None:
    random, decided = np.random.default_rng(4), list[bool]()
    while len(decided) < 12:
        pair = before_and_after(random, 5000, 1.5)
        few = gain_of(*(one.at(np.arange(300)) for one in pair))
        if few.code != OPEN or few.samples_needed is None or few.samples_needed > 16:
            continue
        decided.append(gain_of(*(one.at(np.arange(int(300 * few.samples_needed))) for one in pair)).code == BETTER)
    assert np.mean(decided) >= 0.7


def gain_of(before: Scored, after: Scored) -> Verdict:
    """Return the verdict on the gain in Brier score, of which every one counts."""
    verdict = judged({NONE: before, "method": after}, 1e-9).improvements[0].gains["Brier"].verdict
    assert verdict is not None
    return verdict


def test_in_two_classes_the_error_is_that_of_the_second_class() -> None:
    random = np.random.default_rng(5)
    logits = 1.5 * random.standard_t(3, (2000, 2))
    classes = (random.random(2000) < softmax64(logits)[:, 1]).astype(np.int64)
    found = judged({name: Scored.of(softmax64(logits * by), classes, logits) for name, by in ((NONE, 1.0), ("x", 2.0))})
    shares = softmax64(2 * logits)[:, 1]
    assert found.positive and found.scores[SCORES[2]]["x"] == pytest.approx(equal_width(shares, classes == 1), abs=1e-9)


def equal_width(confidence: np.ndarray, outcome: np.ndarray) -> float:
    total = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        total += abs(float((confidence - outcome)[inside].sum()))
    return total / len(outcome)


def share(intervals: list[tuple[float, float]], value: float) -> float:
    return float(np.mean([low <= value <= high for low, high in intervals]))


def of(one: Gain | None) -> tuple[float, float]:
    assert one is not None and one.interval is not None
    return one.interval


def test_an_interval_of_one_network_covers_the_gain_on_all_samples() -> None:
    random = np.random.default_rng(1)
    whole = before_and_after(random, 300_000, 2.0)
    expected = [float(scored.brier.mean()) for scored in whole]
    intervals = [
        of(
            judged(dict(zip((NONE, "m"), before_and_after(random, 400, 2.0), strict=True)))
            .improvements[0]
            .gains["Brier"]
        )
        for _ in range(300)
    ]
    assert 0.91 <= share(intervals, expected[0] - expected[1]) <= 0.98
    assert share(intervals, 0.0) < 0.1, "it finds nearly every gain"


def test_an_interval_over_few_heavy_tailed_data_sets_of_unequal_size_covers_their_mean() -> None:
    random = np.random.default_rng(2)
    intervals = []
    for _ in range(500):
        errors = 10 ** random.uniform(-3, -2, 8)
        gains = 0.02 + 0.01 * random.standard_t(3, 8) + random.normal(0, errors)
        intervals.append(of(mean_gain(gains[:, None].tolist())))
    assert 0.93 <= share(intervals, 0.02) <= 0.99
    assert share(intervals, 0.0) < 0.35
