"""A plan counts what the scheduler will do, and its time follows from measured costs."""

import io

import numpy as np
import pytest
from rich.console import Console

from sweeper.planning.costs import measure_costs, measured_plan, representatives
from sweeper.planning.plan import DEAR_WIDTH, START_SECONDS, Cost, Range, architecture_shares, plan
from sweeper.planning.preparation import prepare_dataset
from sweeper.scheduling.asha import Halving
from sweeper.scheduling.simulation import simulate_strata, simulate_sweep
from sweeper.space.loading import build_spec, load_spec
from tests.running import typed
from tests.sweeper.searches import searched_spec
from tests.sweeper.small_registries import MINIMAL, REGISTRIES

QUICKSTART_HALVING = Halving("val_nll", "min", 27, 3, 3)


def _spec(**changes):
    return build_spec({**MINIMAL, **changes}, REGISTRIES)


def test_forty_eight_trials_at_rungs_3_9_27():
    """Recorded from Ray's own scheduler: 17.6 (13 to 23) and 9.3 (5 to 15)."""
    counts = simulate_strata(QUICKSTART_HALVING, 48, workers=2)[1][:, 0]
    assert set(counts[:, 0]) == {48}
    second, third = Range.of(counts[:, 1]), Range.of(counts[:, 2])
    assert (second.low, second.mean, second.high) == pytest.approx((12.5, 17.6, 23), abs=0.6)
    assert (third.low, third.mean, third.high) == pytest.approx((4.5, 9.3, 15), abs=0.6)


def _reference_counts(values, quantile):
    """One trial after the other through both rungs, with numpy's percentile and plain lists."""
    first, second, reached = [], [], [0, 0, 0]
    for value in values:
        reached[0] += 1
        passes = not first or value <= np.percentile(first, 100 * (1 - quantile))
        first.append(value)
        if not passes:
            continue
        reached[1] += 1
        passes = not second or value <= np.percentile(second, 100 * (1 - quantile))
        second.append(value)
        reached[2] += passes
    return reached


def test_simulation_agrees_with_a_naive_one_on_average():
    random = np.random.default_rng(0)
    reference = np.mean([_reference_counts(random.normal(size=48), 2 / 3) for _ in range(300)], axis=0)
    assert simulate_strata(QUICKSTART_HALVING, 48, workers=1)[1][:, 0].mean(axis=0) == pytest.approx(reference, abs=0.6)


def test_without_early_stopping_all_is_certain():
    spec = _spec(scheduler={"name": "none", "max_epochs": 4}, samples=6, replicates=3)
    found = plan(spec, {"mlp": Cost(2.0, 1.0)}, workers=2)
    assert found.reaching == {4: Range(6, 6, 6)}
    assert found.epochs == Range(72, 72, 72)
    assert found.evaluations == Range(18, 18, 18)
    assert found.seconds is not None
    assert found.seconds.mean == pytest.approx((72 * 2 + 18 * 1) / 2, abs=15)


def test_max_concurrent_limits_what_runs_at_once():
    settings = {"scheduler": {"name": "none", "max_epochs": 4}, "samples": 6, "replicates": 3}
    free = plan(_spec(**settings), {"mlp": Cost(2.0, 1.0)}, workers=2)
    alone = plan(_spec(**settings, max_concurrent=1), {"mlp": Cost(2.0, 1.0)}, workers=2)
    assert (free.workers, alone.workers) == (2, 1) and free.seconds is not None and alone.seconds is not None
    assert alone.seconds.mean - START_SECONDS == pytest.approx(2 * (free.seconds.mean - START_SECONDS))


def test_costs_are_weighted_by_the_configurations_that_will_run():
    space = {**MINIMAL["space"], "architecture": {"grid": ["mlp", "resnet8"]}}
    spec = _spec(space=space, scheduler={"name": "none", "max_epochs": 10})
    assert architecture_shares(spec) == {"mlp": 0.5, "resnet8": 0.5}
    cheap = plan(spec, {"mlp": Cost(1, 0), "resnet8": Cost(1, 0)}, workers=1)
    dear = plan(spec, {"mlp": Cost(1, 0), "resnet8": Cost(3, 0)}, workers=1)
    assert dear.seconds.mean - cheap.seconds.mean == pytest.approx(20)


def test_representatives_prefer_a_loss_with_two_hessians():
    space = {**MINIMAL["space"], "loss": {"grid": ["cross_entropy", "focal"]}}
    assert representatives(_spec(space=space))["mlp"]["loss"]["name"] == "focal"


def test_costs_are_measured_on_real_training(monkeypatch):
    monkeypatch.setattr("sweeper.planning.costs.MEASURED_SECONDS", 0.0)
    spec = load_spec("quickstart", ["evaluation.curvature=false"])
    found = measured_plan(spec, workers=2)
    assert (found.trials, found.replicates, list(found.reaching)) == (16, 1, [3, 9, 27])
    assert found.costs.keys() == {"mlp", "resnet8"}
    assert all(cost.epoch_seconds > 0 and cost.evaluation_seconds > 0 for cost in found.costs.values())
    assert found.seconds is not None


@pytest.mark.parametrize(
    ("space", "changes"),
    [
        ("curvature_vs_gamma", ["evaluation.curvature=false", "samples=1"]),
        ("curvature_vs_gamma", ["evaluation.curvature=false", "samples=1", "space.optimizer.lr=1.0e+30"]),
        (
            "posterior_figure_3",
            ["dataset.train_samples=512", "dataset.test_samples=512", "space.optimizer.batch_size=64"],
        ),
    ],
    ids=["large", "diverges", "class probabilities of the test split are known"],
)
def test_any_data_are_cut_and_their_costs_scaled(monkeypatch, space, changes):
    monkeypatch.setattr("sweeper.planning.costs.MEASURED_SECONDS", 0.0)
    monkeypatch.setattr("sweeper.planning.costs.MEASURED_SAMPLES", 128)
    spec = load_spec(space, changes)
    cost = measure_costs(spec, prepare_dataset(spec))["mlp"]
    assert 0 < cost.epoch_seconds < 60 and 0 < cost.evaluation_seconds < 60


def test_an_unavailable_data_set_leaves_the_time_open(monkeypatch, tmp_path):
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path))
    found = measured_plan(load_spec("quickstart", ["dataset.name=cifar10"]), workers=2)
    assert found.seconds is None
    assert "the file is missing" in found.note
    assert "download: true" in found.note


def test_replicates_apart_take_places_of_their_own():
    together = _spec(samples=4, replicates={"count": 5, "packing": "sequential"})
    apart = _spec(samples=4, replicates={"count": 5, "packing": "trials"})
    costs = {"mlp": Cost(2.0, 1.0)}
    assert (plan(together, costs, workers=16).workers, plan(apart, costs, workers=16).workers) == (4, 16)
    assert plan(apart, costs, workers=5).reaching == plan(together, costs, workers=1).reaching
    assert "16 replicates at a time" in _shown(plan(apart, costs, workers=16))
    assert "trials: each replicate has its own process" in _shown(plan(apart, costs, workers=16))


def _shown(found):
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(found)
    return console.export_text()


def test_a_plan_says_who_chooses_and_counts_what_is_not_known_yet():
    planned = plan(searched_spec(20, startup=5))
    assert planned.trials == 20
    (words,) = [said for subject, said in planned.lines() if subject == "searcher"]
    assert words.startswith("optuna: 5 trials at random, then from what was observed")
    assert architecture_shares(searched_spec(2)) == pytest.approx({"mlp": 0.5, "resnet8": 0.5}, abs=0.05)


def test_missing_data_are_an_obstacle_and_the_commands_exit_status(monkeypatch, tmp_path):
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path / "nothing"))
    file = tmp_path / "folder.yaml"
    file.write_text(
        f"dataset: {{name: image_folder, folder: {tmp_path / 'nothing'}}}\nscheduler: {{name: none, max_epochs: 1}}\n"
        "samples: 1\nspace: {loss: cross_entropy, architecture: mlp, optimizer: {name: sgd, lr: 0.1}}\n"
    )
    planned = measured_plan(load_spec(file))
    assert "nothing" in planned.obstacle and planned.note.startswith("No estimate")
    done = typed("plan", str(file))
    assert done.returncode == 2 and "the sweep cannot start here" in done.stderr and "total epochs" in done.stdout


def test_the_hessians_share_of_the_work_is_named(monkeypatch):
    spec = load_spec("quickstart", ["samples=8", "space.architecture=mlp"])
    costs = {"mlp": Cost(0.01, 1.0, curvature_seconds=0.8)}
    planned = plan(spec, costs)
    assert 0.5 < planned.curvature_share < 0.8
    assert dict(planned.lines())["curvature"].startswith(
        f"{planned.curvature_share:.0%} of the estimated time is for the Hessian"
    )
    assert "curvature" not in dict(plan(spec, {"mlp": Cost(0.01, 1.0)}).lines())


def _seconds(width, slots, spec, costs):
    """Simulate whole sweeps, independent of `cost_of_width`: other draws, and networks that alternate."""
    random, found = np.random.default_rng(7), []
    pace = np.array([costs[name].epoch_seconds for name in ("mlp", "resnet8")] * 24)
    for _ in range(40):
        values = random.normal(size=(48, 1)).repeat(3, 1)
        swept = simulate_sweep(spec.schedule, range(48), values, random.permutation(pace), slots, width)
        found.append(swept.seconds)
    return np.mean(found)


@pytest.mark.parametrize(("slots", "width"), [(2, 8), (16, 32), (16, 8), (16, 16)])
def test_a_width_is_warned_of_by_its_simulated_cost(slots, width):
    spec = load_spec("quickstart", [f"scheduler={{max_epochs: 27, grace_epochs: 3, width: {width}}}", "samples=48"])
    costs = {"mlp": Cost(1.0, 1.0), "resnet8": Cost(20.0, 1.0)}
    planned = plan(spec, costs, workers=slots)
    expected = _seconds(width, slots, spec, costs) / _seconds(None, slots, spec, costs) - 1
    assert planned.width_cost == pytest.approx(max(0, expected), abs=0.1)
    dear = planned.width_cost >= DEAR_WIDTH
    assert (planned.wider is not None) is dear is (len([*planned.warnings()]) == 1)
    if planned.wider is not None:
        wide, cost = planned.wider
        assert width < wide <= 48 and cost < planned.width_cost
        (said,) = planned.warnings()
        assert f"{planned.width_cost:.0%}" in said and f"width: {wide}" in said and f"{cost:.0%}" in said
