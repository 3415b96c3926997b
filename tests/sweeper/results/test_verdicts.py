"""Comparisons of a sweep's losses and configurations, and of sweeps, from stored logits."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from rich.console import Console

import sweeper
from sweeper.core.cells import Row
from sweeper.core.errors import SweeperError
from sweeper.judging.question import SAME
from sweeper.reporting.summary import compared
from sweeper.results import Results
from sweeper.results.estimators import ESTIMATORS, SHOWN
from sweeper.results.leaderboard import leaderboard
from sweeper.results.verdicts import BEFORE, TEMPERATURE, TrainedNetworks, calibration, estimates, methods_of
from tests.sweeper.inline_sweep import Inline
from tests.sweeper.synthetic_sweep import write_sweep
from trainables.losses.focal import lambert_gamma


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    folder = tmp_path_factory.mktemp("verdicts") / "s"
    written = Results(write_sweep(folder, configurations=8, replicates=3, space="gamma", samples=120))
    with written.snapshot() as snapshot:
        yield snapshot


def test_losses_stand_for_their_best_finished_configuration(results: Results) -> None:
    rows = leaderboard(results).finished
    network = str(rows[0]["architecture"])
    first, second = _on(rows, network)[:2]
    best = {loss: str(next(row["trial"] for row in rows if row["loss"] == loss)) for loss in (first, second)}
    (one,) = [each for each in estimates((results, first), (results, second)) if each.network == network]
    assert one.sides == ((first, best[first]), (second, best[second]))
    assert list(one.stages)[:2] == ["uncalibrated", "after temperature"]
    assert [each.estimator for each in one.stages["uncalibrated"]] == list(ESTIMATORS)
    stored = {row["trial"]: float(str(row["test_nll"])) for row in rows}
    nll = next(each for each in one.stages["uncalibrated"] if each.estimator == "NLL")
    assert nll.means == pytest.approx([stored[trial] for _, trial in one.sides], rel=1e-6)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(compared([one]))
    text = console.export_text()
    assert text.count("Brier") == 2 and text.count("refinement NLL") == 1, "refinement does not change"


def test_the_focal_map_takes_the_gamma_that_the_loss_declares_whatever_its_hyperparameters(results: Results) -> None:
    trial = leaderboard(results).finished[0]
    row = {**trial, "loss": "focal_lambert", "config_loss_gamma": None, "config_loss_p0": 0.2}
    trained = TrainedNetworks(results, [str(trial["trial"])])
    mapped = trained.after(row, ("focal_map", {}))
    given = trained.after(row, ("focal_map", {"gamma": lambert_gamma(0.2).item()}))
    assert mapped.keys() == given.keys() and mapped
    assert all(scored.nll.tolist() == given[seed].nll.tolist() for seed, scored in mapped.items())


def test_a_change_is_after_minus_before_of_the_same_networks(tmp_path: Path) -> None:
    """Of networks that were trained: a generated sweep's tables have a temperature of their own."""
    trained = Results(Inline(tmp_path).run("trained", "scheduler={name: none, max_epochs: 3}").paths.root)
    rows = leaderboard(trained).finished[:2]
    found = calibration(trained, rows, between=True)
    assert len(rows) == 2 and found.between is not None
    for row in rows:
        change = found.changes[str(row["trial"])]
        after, before = (float(str(row[f"test_{name}"])) for name in ("posthoc_temperature_ece", "ece"))
        assert change.estimator == SHOWN and change.means == pytest.approx((after, before), rel=1e-4)
    assert found.between[0].means == pytest.approx([float(str(row["test_ece"])) for row in rows], rel=1e-4)


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
    assert methods_of(Results(folder)) == [BEFORE, TEMPERATURE, ("temperature", {"objective": "ece"})]


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
def test_sides_that_are_not_there_are_errors(results: Results, sides: tuple[str, str], said: str) -> None:
    with pytest.raises(SweeperError, match=said):
        estimates((results, sides[0]), (results, sides[1]))


def test_two_sweeps_are_compared_by_the_best_of_each_on_every_shared_network(results: Results, tmp_path: Path) -> None:
    for name in "ab":
        shutil.copytree(results.folder, tmp_path / name, symlinks=True)
    answer = sweeper.compare("a", "b", output=tmp_path)
    found = answer.json["estimators"]
    assert answer.metrics and [name for name, _ in found[0].sides] == ["a", "b"]
    assert {one.code for stage in found[0].stages.values() for one in stage} == {SAME}, "equal predictions"
    with pytest.raises(SweeperError, match="s and s are both c0"):
        estimates((results, None), (results, None))
    alone = sweeper.compare("a", *_on(leaderboard(results).finished, found[0].network)[:2], output=tmp_path)
    assert alone.value[0].stages and not alone.notes
