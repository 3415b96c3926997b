"""Replays decide as a driver would, and their figures are what a plain loop counts."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sweeper
from sweeper.analysis.replays import Candidate, Estimate, as_json, read_curves, replay, what_if
from sweeper.core.errors import InvalidSearchSpace, SweeperError
from sweeper.results import load
from sweeper.results.leaderboard import final_values
from tests.running import sweeper as run_sweeper
from tests.sweeper.changed_tables import shift
from tests.sweeper.synthetic_sweep import write_sweep

ASHA = {"name": "asha", "grace_epochs": 3, "reduction_factor": 3}
BY = ("architecture", "loss")


@pytest.fixture(scope="module")
def curves(losses_folder: Path):
    return read_curves(load(losses_folder))


def survivors(curves, order, factor):
    """Return which trials come to the end, one after the other, by numpy's percentile."""
    values = curves.at("val_nll", (3, 9, 27))
    seen: dict[int, list[float]] = {0: [], 1: []}
    kept = []
    for trial in order:
        for place in (0, 1):
            stops = bool(seen[place]) and values[trial, place] > np.percentile(seen[place], 100 / factor)
            seen[place].append(values[trial, place])
            if stops:
                break
        else:
            kept.append(trial)
    return kept


@pytest.mark.integration
def test_one_worker_keeps_what_a_plain_loop_keeps(curves):
    rng = np.random.default_rng(5)
    orders = [rng.permutation(len(curves.trials)) for _ in range(40)]
    worth = curves.last(curves.judge())
    found = replay(curves, [Candidate(ASHA)], by=BY, orders=40, workers=1, seed=5)[0]
    kept = [survivors(curves, order, 3) for order in orders]
    assert found.winner.mean == np.mean([int(np.argmin(worth)) in each for each in kept])
    final = curves.last("val_nll")
    regrets = [worth[min(each, key=lambda trial: final[trial])] - worth.min() for each in kept]
    assert found.regret.mean == pytest.approx(np.mean(regrets))


@pytest.mark.integration
def test_a_judge_that_should_be_large_has_its_largest_as_the_winner(curves):
    found = replay(curves, [Candidate(ASHA)], by=BY, orders=40, workers=1, seed=5, judge="test_accuracy")[0]
    rng = np.random.default_rng(5)
    kept = [survivors(curves, rng.permutation(len(curves.trials)), 3) for _ in range(40)]
    accuracy, final = curves.last("test_accuracy"), curves.last("val_nll")
    regrets = [accuracy.max() - accuracy[min(each, key=lambda trial: final[trial])] for each in kept]
    assert found.regret.mean == pytest.approx(np.mean(regrets))
    assert found.regret.mean >= 0


def test_without_stopping_everything_is_kept_and_everything_is_paid(curves):
    found = replay(curves, [Candidate({"name": "none"})], by=BY, orders=5)[0]
    assert (found.share, found.winner.mean, found.strata.mean, found.winners.mean) == (1, 1, 1, 1)
    assert found.epochs.mean == 27 * len(curves.trials)


def test_strata_leave_a_survivor_in_each(curves):
    pooled, within = replay(curves, [Candidate(ASHA), Candidate(ASHA, BY)], by=BY, orders=30)
    assert within.strata.mean == 1 > pooled.strata.mean
    assert set(within.by_stratum) == set(pooled.by_stratum)
    assert within.epochs.mean > pooled.epochs.mean


def test_the_same_seed_gives_the_same_and_fewer_trials_are_drawn(curves):
    first, again = (replay(curves, [Candidate(ASHA)], by=BY, orders=10, samples=20, seed=3)[0] for _ in range(2))
    assert first == again
    assert first.epochs.mean < 27 * 20


@pytest.mark.parametrize(("metric", "diverged"), [("val_nll", "val_nll"), ("val_accuracy", "train_loss")])
def test_a_replicate_that_diverges_at_a_rung_is_left_out_there_as_the_sweep_left_it_out(tmp_path, metric, diverged):
    folder = write_sweep(tmp_path / "s", space="losses", configurations=4, samples=20, replicates=2)
    trial = read_curves(load(folder)).trials[0]
    files = {file: pq.read_table(file) for file in (folder / "tables" / "epochs").rglob("*.parquet")}
    file, table = next((file, table) for file, table in files.items() if trial in table["trial"].to_pylist())
    epochs = table.to_pylist()
    own = [row for row in epochs if row["trial"] == trial]
    (sound,) = (row[metric] for row in own if (row["epoch"], row["replicate"]) == (9, 0))
    for row in own:
        if row["replicate"] == 1 and row["epoch"] == 9:
            row[diverged] = math.nan
    gone = [row for row in own if row["replicate"] == 1 and row["epoch"] > 9]
    kept = [row for row in epochs if row not in gone]
    pq.write_table(pa.Table.from_pylist(kept, schema=table.schema), file)
    assert read_curves(load(folder)).at(metric, (9,))[0, 0] == sound


def test_kept_weights_are_judged_by_the_evaluation_at_the_end(losses_folder, tmp_path):
    """With `checkpoint: best_val_nll` the end measures an earlier epoch's weights, as the driver's objective does."""
    folder = tmp_path / "kept"
    shutil.copytree(losses_folder, folder, symlinks=True)
    shift(folder, "nll", -0.25, "val")
    trained, kept = read_curves(load(losses_folder)), read_curves(load(folder))
    before, after = trained.at("val_nll", (3, 27)), kept.at("val_nll", (3, 27))
    assert np.array_equal(before[:, 0], after[:, 0])
    ended = {trial: mean for trial, (mean, _) in final_values(kept.results, "val_nll").items()}
    assert after[:, 1] == pytest.approx([ended[trial] for trial in kept.trials])
    assert (after[:, 1] < before[:, 1]).all()


def test_intervals():
    assert Estimate.share(np.ones(100)).low == pytest.approx(0.963, abs=1e-3)
    assert Estimate.share(np.array([1.0, 0.0])).mean == 0.5
    found = Estimate.of(np.array([1.0, 2.0, 3.0]))
    assert (found.low, found.high) == pytest.approx((2 - 1.96 / 3**0.5, 2 + 1.96 / 3**0.5))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"trials": 1000}, "per order exceed the"),
        ({"objectives": ["val_aurcc"]}, "did not measure 'val_aurcc'"),
        ({"objectives": ["val_nll:best"]}, "ends with 'best'"),
        ({"schedulers": ["ashaa"]}, "unknown scheduler 'ashaa'"),
        ({"schedulers": ["{name: asha"]}, "is not YAML"),
        ({"schedulers": ["{name: asha, reduction_factor: 1}"]}, "reduction_factor = 1 is outside"),
        ({"schedulers": ["{name: asha, grace_epochs: 3}"], "objectives": ["val_brier"]}, "val_brier was not measured"),
        ({"within": ["network"]}, "'network' is not a path of the space"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_a_sentence(losses_folder, options, sentence):
    with pytest.raises((SweeperError, InvalidSearchSpace), match=sentence):
        what_if(load(losses_folder), **options, orders=2)


def test_a_sweep_that_stopped_trials_cannot_be_replayed(quickstart_folder):
    with pytest.raises(SweeperError, match="early: their final values are unknown"):
        read_curves(load(quickstart_folder))


def test_the_command_shows_a_line_for_each_combination(losses_folder, tmp_path):
    arguments = ["what-if", str(losses_folder), "--orders", "5", "--within", "none", "--within", "architecture,loss"]
    shown = run_sweeper(*arguments, "--scheduler", "{name: asha, grace_epochs: 3}", "--scheduler", "none", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("asha (grace_epochs 3)") == 2
    assert "5 random orders of 63 trials" in shown.stdout
    found = json.loads(run_sweeper(*arguments, "--json", "--scheduler", "none", cwd=tmp_path).stdout)
    assert [each["within"] for each in found] == [[], ["architecture", "loss"]]


def test_the_function_gives_what_the_command_shows(losses_folder):
    found = sweeper.what_if(str(losses_folder), orders=5, scheduler="{name: asha, grace_epochs: 3}")
    assert "winner kept" in repr(found)
    assert as_json(found.value[0])["winner_kept"]["mean"] == found.value[0].winner.mean
