"""Certificates, on networks whose true order is known."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

import sweeper
from sweeper.analysis import certificates
from sweeper.analysis.certificates import (
    BETTER,
    ESTIMATORS,
    TEMPERATURE,
    UNDECIDED,
    WORSE,
    Network,
    Scored,
    certify,
    judged,
    of_the_best,
    sample_error,
    view,
)
from sweeper.analysis.statistics.differences import mean_of
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.text.cells import Row
from tests.sweeper.synthetic_sweep import write_sweep
from trainables.metrics import evaluate_probabilities
from trainables.metrics.base import softmax64
from trainables.metrics.refinement import refinement
from trainables.metrics.smooth import smooth_ece

CLASSES = 5


def networks(
    rng: np.random.Generator,
    posterior: np.ndarray,
    targets: np.ndarray,
    sharpness: float,
    noise: float,
    seeds: int,
    luck: float = 0.1,
) -> list[Network]:
    """Return networks whose logits are the true ones, sharpened, with errors of their own; seeds differ skewedly."""
    found = []
    for seed in range(seeds):
        factor = sharpness * rng.lognormal(0, luck)
        logits = factor * (np.log(posterior) + noise * rng.normal(size=posterior.shape))
        scored = Scored.of(softmax64(logits), targets, logits)
        third = len(targets) // 3
        parts = [scored.at(np.arange(start, start + third)) for start in (0, third, 2 * third)]
        found.append(Network(seed, parts[0], (parts[1], parts[2])))
    return found


def drawn(rng: np.random.Generator, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return true posteriors [N, K] and targets [N] drawn from them."""
    posterior = rng.dirichlet(np.full(CLASSES, 0.4), size=samples) * 0.98 + 0.004
    targets = (posterior.cumsum(axis=1) > rng.random((samples, 1))).argmax(axis=1)
    return posterior, targets


def test_every_estimator_is_the_metric_of_its_name() -> None:
    rng = np.random.default_rng(0)
    posterior, targets = drawn(rng, 400)
    logits = np.log(posterior) * 1.7
    probabilities = softmax64(logits)
    scored = Scored.of(probabilities, targets, logits)
    whole = evaluate_probabilities(probabilities, targets, 15)
    expected = {
        **{f"ECE, {bins} bins": evaluate_probabilities(probabilities, targets, bins)["ece"] for bins in (10, 15, 20)},
        "equal-mass ECE, 15 bins": whole["ada_ece"],
        "smooth ECE": smooth_ece(probabilities, targets),
        "NLL": whole["nll"],
        "Brier": whole["brier"],
        "refinement NLL": refinement(logits, targets).nll,
    }
    assert {name: measure(scored) for name, measure in ESTIMATORS.items()} == pytest.approx(expected, rel=1e-12)


def test_the_samples_error_of_a_mean_is_its_standard_error() -> None:
    rng = np.random.default_rng(1)
    posterior, targets = drawn(rng, 6000)
    first, second = (networks(rng, posterior, targets, sharpness, 0.1, 1) for sharpness in (1.0, 2.0))
    differences = first[0].test.nll - second[0].test.nll
    expected = mean_of(differences).error
    assert sample_error(first, second, ESTIMATORS["NLL"]) == pytest.approx(
        expected, rel=0.5
    )  # of 19 degrees of freedom


def test_one_seed_decides_nothing_and_swapped_sides_turn_the_verdict() -> None:
    rng = np.random.default_rng(2)
    posterior, targets = drawn(rng, 3000)
    good, bad = (networks(rng, posterior, targets, sharpness, 0.05, 5) for sharpness in (1.0, 2.5))
    one, other = judged("NLL", good, bad), judged("NLL", bad, good)
    assert one is not None and other is not None
    assert (one.verdict, other.verdict) == (BETTER, WORSE)
    assert one.difference.value == -other.difference.value
    alone = judged("NLL", good[:1], bad[:1])
    assert alone is not None and alone.verdict == UNDECIDED and alone.reason == "one seed says nothing of others"


def test_a_certificate_of_a_sweep_compares_the_best_of_each_loss_by_stored_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(write_sweep(tmp_path / "s", configurations=8, replicates=3, space="gamma", samples=120))
    rows = leaderboard(results).finished
    losses = list(dict.fromkeys(str(row["loss"]) for row in rows))
    best = {loss: str(next(row["trial"] for row in rows if row["loss"] == loss)) for loss in losses[:2]}
    network = str(rows[0]["architecture"])
    found = certify((results, losses[0]), (results, losses[1]))
    one = next(each for each in found if each.network == network)
    assert one.sides[0] == (losses[0], best[losses[0]])
    assert list(one.stages)[:2] == ["uncalibrated", "after temperature"]
    assert [each.estimator for each in one.stages["uncalibrated"]] == list(ESTIMATORS)
    stored = {row["trial"]: row["test_nll"] for row in rows}
    nll = next(each for each in one.stages["uncalibrated"] if each.estimator == "NLL")
    expected = float(str(stored[one.sides[0][1]])) - float(str(stored[one.sides[1][1]]))
    assert nll.difference.value == pytest.approx(expected, rel=1e-6)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(view(found))
    assert one.sentence().split(":")[0] in console.export_text()
    assert [row[0] for row in one.rows()] == list(ESTIMATORS) and {len(row) for row in one.rows()} == {
        len(one.stages) + 1
    }
    first, second = _on(rows, network)[:2]
    assert of_the_best(results, leaderboard(results)) == certify((results, first), (results, second), network)[0]
    monkeypatch.setattr(certificates, "MOST_VALUES", 10)
    assert of_the_best(results, leaderboard(results)) is None, "it would take too long"


def test_methods_with_a_label_count_once_and_those_fitted_on_other_data_do_not(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", configurations=2, replicates=2, samples=60)
    file = folder / "sweep.yaml"
    space = yaml.safe_load(file.read_text())
    space["evaluation"]["posthoc"] = [
        {"name": "temperature", "objective": "nll", "label": "second"},
        {"name": "temperature", "objective": "ece", "label": "third"},
        {"name": "vector", "fitted_on": "shifted"},
    ]
    file.write_text(yaml.safe_dump(space))
    assert certificates._methods(Results(folder)) == [("none", {}), TEMPERATURE, ("temperature", {"objective": "ece"})]


def _on(rows: Sequence[Row], network: str) -> list[str]:
    """Return the losses on a network, best first."""
    return list(dict.fromkeys(str(row["loss"]) for row in rows if row["architecture"] == network))


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        (("focall", "focal"), "did you mean 'focal'"),
        (("focal", "focal"), "are both c0"),
        (("focal", "c00099"), "c00099"),
    ],
)
def test_sides_that_are_not_there_are_errors(tmp_path: Path, sides: tuple[str, str], said: str) -> None:
    results = Results(write_sweep(tmp_path / "s", configurations=4, replicates=2, space="gamma", samples=60))
    with pytest.raises(SweeperError, match=said):
        certify((results, sides[0]), (results, sides[1]))


def test_two_sweeps_are_compared_by_the_best_of_each_on_every_shared_network(tmp_path: Path) -> None:
    folders = [write_sweep(tmp_path / name, configurations=4, replicates=3, space="gamma", samples=60) for name in "ab"]
    sweeps = [Results(folder) for folder in folders]
    found = certify((sweeps[0], None), (sweeps[1], None))
    assert [name for name, _ in found[0].sides] == ["a", "b"] and found[0].paired
    assert all(one.verdict == UNDECIDED for stage in found[0].stages.values() for one in stage), "equal predictions"
    with pytest.raises(SweeperError, match="a and a are both c0"):
        certify((sweeps[0], None), (sweeps[0], None))
    answer = sweeper.compare("a", "b", output=tmp_path)
    assert answer.metrics and answer.json["estimators"] and "by estimators" in repr(answer)
    alone = sweeper.compare("a", *_on(leaderboard(sweeps[0]).finished, found[0].network)[:2], output=tmp_path)
    assert alone.value[0].rows() and not alone.notes


@pytest.mark.slow
def test_certified_orders_are_the_true_ones() -> None:
    """200 comparisons of 40 pairs of configurations, five sets of seeds and samples each; 2 to 8 seeds, 400 samples."""
    rng = np.random.default_rng(3)
    right = certified = undecided = 0
    names = ("ECE, 15 bins", "equal-mass ECE, 15 bins", "NLL", "Brier", "refinement NLL")
    for _ in range(40):
        settings = [(float(rng.uniform(0.8, 1.8)), float(rng.uniform(0.05, 0.4))) for _ in range(2)]
        luck = float(rng.choice([0.05, 0.3]))
        truth = population(settings, names, luck)
        for _ in range(5):
            seeds = int(rng.integers(2, 9))
            posterior, targets = drawn(rng, 1200)
            sides = [networks(rng, posterior, targets, *each, seeds, luck) for each in settings]
            for name in names:
                found = judged(name, *sides)
                assert found is not None
                undecided += found.verdict == UNDECIDED
                certified += found.verdict != UNDECIDED
                right += found.verdict == (BETTER if truth[name] < 0 else WORSE)
    print(f"{certified} of {certified + undecided} comparisons certified, {right} of them right")
    assert certified > 200
    assert right >= 0.95 * certified


def population(settings: list[tuple[float, float]], names: tuple[str, ...], luck: float) -> dict[str, float]:
    """Return the true differences: of 20 networks a side on 10,000 samples each."""
    rng = np.random.default_rng(4)
    posterior, targets = drawn(rng, 30_000)
    sides = [networks(rng, posterior, targets, *each, 20, luck) for each in settings]
    means: list[dict[str, Any]] = [
        {name: np.mean([ESTIMATORS[name](network.test) for network in side]) for name in names} for side in sides
    ]
    return {name: float(means[0][name] - means[1][name]) for name in names}
