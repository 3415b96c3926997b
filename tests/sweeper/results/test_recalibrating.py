"""Recalibration: every row found again by a plain loop over all predictions; replaced, kept and shown as promised."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from sweeper.api import main as cli
from sweeper.core.columns import evaluation_columns
from sweeper.core.errors import SweeperError
from sweeper.core.ids import ReplicateSeeds, SweepPaths, configuration_index
from sweeper.core.schemas import table_schemas
from sweeper.reporting.recalibrations import recalibration_lines
from sweeper.results import Results
from sweeper.results.predictions import PredictionFiles, StoredPredictions
from sweeper.results.recalibrating import Recalibrated, measure_all, recalibrate
from sweeper.results.recalibration import Request, read_metrics, read_requests
from sweeper.space.loading import load_spec
from sweeper.storage.sweeps import Sweep
from sweeper.tables.generations import recalibration_parts, state_of_recalibrations, writing
from sweeper.tables.writer import ParquetSink
from sweeper.tracking.points import recalibration_points
from tests.sweeper.synthetic_sweep import gamma_configuration
from trainables.metrics import METRIC_NAMES, evaluate_probabilities, softmax64
from trainables.metrics.debiased import debiased_l2
from trainables.metrics.kernel import smooth_ece
from trainables.posthoc import PosthocUnavailable, fit
from trainables.registry.configuration import Configuration
from trainables.worker.trial_tables import write_predictions

TRIALS = 9


def opened(folder: Path) -> Sweep:
    """Return the synthetic sweep over γ as opened."""
    return Sweep(SweepPaths(folder), load_spec("quickstart"), [gamma_configuration(i) for i in range(TRIALS)])  # type: ignore[arg-type]


@pytest.fixture
def sweep(gamma_folder: Path, tmp_path: Path) -> Sweep:
    """A sweep of its own, to write into."""
    folder = tmp_path / "grid"
    shutil.copytree(gamma_folder, folder, symlinks=True)
    return opened(folder)


@pytest.fixture(scope="module")
def answered(gamma_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Recalibrated]:
    """A sweep with four methods at two numbers of bins, only read afterwards."""
    folder = tmp_path_factory.mktemp("answered") / "grid"
    shutil.copytree(gamma_folder, folder, symlinks=True)
    asked = read_requests(["temperature", "focal_map", "metacal_acc"], ["accuracy=0.9", "objective=ece"], [10, 15])
    return opened(folder), recalibrate(opened(folder), asked)


def stored(folder: Path) -> dict[tuple[str, int, int], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Read all predictions at once, as plainly as can be."""
    found: dict[tuple[str, int, int], dict[str, list[dict[str, Any]]]] = {}
    for row in ds.dataset(folder / "tables" / "predictions").to_table().to_pylist():
        found.setdefault((row["trial"], row["replicate"], row["epoch"]), {}).setdefault(row["split"], []).append(row)
    return {
        key: {
            split: (np.array([r["logits"] for r in rows]), np.array([r["target"] for r in rows]))
            for split, rows in of.items()
        }
        for key, of in found.items()
    }


def rows_of(sweep: Sweep, condition: str = "true") -> list[dict[str, Any]]:
    return Results(sweep.paths.root).rows(f"SELECT * FROM recalibrations WHERE {condition}")


def test_every_row_is_found_again_by_a_plain_loop(answered: tuple[Sweep, Recalibrated]) -> None:
    sweep, done = answered
    rows = {(r["trial"], r["replicate"], r["epoch"], r["split"], r["method"], r["bins"]): r for r in rows_of(sweep)}
    settings: dict[str, dict[str, Any]] = {"temperature": {"objective": "ece"}, "metacal_acc": {"accuracy": 0.9}}
    expected = 0
    for (trial, replicate, epoch), splits in stored(sweep.paths.root).items():
        loss = gamma_configuration(configuration_index(trial))["loss"]
        for method in ("none", "temperature", "focal_map", "metacal_acc"):
            options = settings.get(method, {})
            own = {"gamma": loss.get("gamma", 0.0)} if method == "focal_map" else options
            reason, calibrator = None, softmax64
            try:
                calibrator = softmax64 if method == "none" else fit(method, *splits["val"], **own)
            except PosthocUnavailable as error:
                reason = str(error)
            for split, (logits, targets) in splits.items():
                for bins in (10, 15):
                    row = rows[trial, replicate, epoch, split, method, bins]
                    expected += 1
                    assert json.loads(row["options"]) == options
                    assert row["samples"] == len(targets)
                    assert row["unavailable"] == reason
                    wanted = {} if reason else evaluate_probabilities(calibrator(logits), targets, bins)
                    for name in METRIC_NAMES:
                        value = wanted.get(name)
                        same = row[name] == value or (value is not None and math.isnan(value) and math.isnan(row[name]))
                        assert same, (trial, split, method, name)
                    fitted = getattr(calibrator, "parameters", {})
                    assert json.loads(row["parameters"]) == fitted
                    assert (row["temperature"], row["gamma"]) == (fitted.get("temperature"), fitted.get("gamma"))
    assert expected == len(rows) == done.evaluations * 2 * 8
    assert done.samples == 27 * 2 * 200


def test_a_sweep_without_recalibrations_reads_as_an_empty_table(gamma_folder: Path) -> None:
    assert Results(gamma_folder).table("recalibrations").num_rows == 0
    assert "ece" in Results(gamma_folder).columns("recalibrations")


def test_the_same_request_replaces_its_rows_and_equal_rows_leave_the_file(sweep: Sweep) -> None:
    recalibrate(sweep, [Request("temperature", 15)])
    path = sweep.paths.recalibrations / Request("temperature", 15).part
    before, rows = path.stat().st_mtime_ns, rows_of(sweep)
    state = state_of_recalibrations(recalibration_parts(sweep.paths))
    recalibrate(sweep, [Request("temperature", 15, {})])
    assert path.stat().st_mtime_ns == before
    assert rows_of(sweep) == rows
    assert state_of_recalibrations(recalibration_parts(sweep.paths)) == state
    recalibrate(sweep, [Request("temperature", 10), Request("temperature", 15, {"objective": "ece"})])
    assert len(rows_of(sweep)) == 3 * len(rows)
    assert state_of_recalibrations(recalibration_parts(sweep.paths)) != state


def test_values_that_changed_take_the_place_of_the_old_ones(sweep: Sweep) -> None:
    recalibrate(sweep, [Request("none", 15)])
    part = recalibration_parts(sweep.paths)[0]
    doctored = pq.read_table(part.path).slice(0, 1)
    pq.write_table(doctored.replace_schema_metadata({}), part.path)
    recalibrate(sweep, [Request("none", 15)])
    assert len(rows_of(sweep)) == 27 * 2


def test_it_survives_a_rebuild_and_the_removal_of_generations(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "sweep")
    schemas = table_schemas({"config_loss_name": str}, 3, evaluation_columns([]))

    def sink() -> ParquetSink:
        return ParquetSink(paths, schemas, [Configuration({"loss": {"name": "brier"}})], ReplicateSeeds(0, 1))

    first = sink()
    rng = np.random.default_rng(0)
    logits = {split: rng.normal(size=(40, 3)) for split in ("val", "test")}
    targets = {split: rng.integers(0, 3, 40) for split in ("val", "test")}
    for replicate in (0, 1):
        write_predictions(paths.tables.resolve(), ("c00000", replicate, 1), logits, targets)
    sweep = Sweep(paths, load_spec("quickstart"), [Configuration({"loss": {"name": "brier"}})])  # type: ignore[arg-type]
    done = recalibrate(sweep, [Request("temperature", 5), Request("focal_map", 5)])
    rows = rows_of(sweep)
    assert len(rows) == 8 and [*done.unavailable] == [0, 2]
    assert "training loss has none" in next(row["unavailable"] for row in rows if row["method"] == "focal_map")
    for _ in range(2):
        first.rebuild([])
        first = sink()
        assert repr(rows_of(sweep)) == repr(rows), "as text, because NaN equals nothing"
    assert len(list(paths.generations.glob("[0-9]*"))) == 1
    assert (paths.tables / "recalibrations").is_symlink()


def test_predictions_are_streamed_and_a_new_generation_does_not_disturb(sweep: Sweep) -> None:
    whole = stored(sweep.paths.root)
    files = PredictionFiles(sweep.paths)
    stream = files.evaluations()
    first = next(stream)
    before = sweep.paths.tables.resolve()
    after = before.with_name("0002")
    shutil.copytree(before, after)
    sweep.paths.tables.unlink()
    sweep.paths.tables.symlink_to(Path("generations") / "0002")
    shutil.rmtree(before)
    found = [first, *stream]
    assert [(f.trial, f.replicate, f.epoch) for f in found] == list(whole)
    for predictions in found:
        for split, (logits, targets) in whole[predictions.trial, predictions.replicate, predictions.epoch].items():
            assert np.array_equal(predictions.logits[split], logits)
            assert np.array_equal(predictions.targets[split], targets)


def test_what_cannot_be_measured_says_why() -> None:
    rng = np.random.default_rng(1)
    logits, targets = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    broken = StoredPredictions(
        "c00000", 0, 1, {"val": np.full((30, 3), np.nan), "test": logits}, {"val": targets, "test": targets}
    )
    asked = [Request("none", 15), Request("temperature", 15), Request("metacal_acc", 15)]
    plain, scaled, metacal = measure_all([broken], asked, [{"name": "focal", "gamma": 2.0}])
    assert plain[0]["unavailable"] and plain[1]["unavailable"] is None
    assert all(row["unavailable"] and "ece" not in row for row in (*scaled, *metacal))
    sound = StoredPredictions(
        "c00000", 0, 1, {"val": logits, "test": logits[:8]}, {"val": targets, "test": targets[:8]}
    )
    rows = measure_all([sound], [Request("temperature", 15), Request("temperature", 5)], [{}])
    assert "bins" in rows[0][1]["unavailable"] and rows[1][1]["ece"] >= 0
    assert rows[0][0]["unavailable"] is None
    alone = StoredPredictions("c00000", 0, 1, {"test": logits}, {"test": targets})
    assert "validation" in measure_all([alone], [Request("temperature", 15)], [{}])[0][0]["unavailable"]


@pytest.mark.parametrize(("method", "gamma"), [("temperature", 0.0), ("focal_map", 2.0)])
def test_the_nll_of_a_class_that_underflowed_is_not_capped(method: str, gamma: float) -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(60, 3))
    targets = (logits + rng.gumbel(size=(60, 3))).argmax(axis=1)
    far = np.array([[1500.0, 0.0, -500.0]])
    predictions = StoredPredictions(
        "c00000", 0, 1, {"val": logits, "test": far}, {"val": targets, "test": np.array([2])}
    )
    (row,) = [
        row
        for row in measure_all([predictions], [Request(method, 1)], [{"name": "focal", "gamma": gamma}])[0]
        if row["split"] == "test"
    ]
    calibrator = fit(method, logits, targets, **({"gamma": gamma} if method == "focal_map" else {}))
    scaled = [mpmath.mpf(value) / mpmath.mpf(calibrator.parameters.get("temperature", 1.0)) for value in far[0]]
    with mpmath.workdps(3000):  # 1 − p of the first class is about e^−1500
        weights = [mpmath.e ** (value - scaled[0]) for value in scaled]
        probabilities = [weight / sum(weights) for weight in weights]
        mapped = [p / ((1 - p) ** gamma - gamma * p * (1 - p) ** (gamma - 1) * mpmath.log(p)) for p in probabilities]
        exact = float(mpmath.log(sum(mapped)) - mpmath.log(mapped[2]))
    assert row["nll"] == pytest.approx(exact, rel=1e-9) and exact > 800


def test_all_faults_of_a_request_are_named_at_once() -> None:
    with pytest.raises(SweeperError) as caught:
        read_requests(["temprature", "metacal_mis"], [], [0, 15, 5000])
    text = str(caught.value)
    assert "did you mean 'temperature'?" in text and "--bins 0 " in text and "--bins 5000" in text
    with pytest.raises(SweeperError) as caught:
        options = ["objective=ece", "gama=2", "alpha", "alpha=2"]
        read_requests(["temperature", "focal_temperature", "metacal_mis"], options, [15])
    text = str(caught.value)
    for part in ("4 errors", "did you mean 'ada_ece'?", "did you mean 'gamma'?", "key=value", "(0, 1)"):
        assert part in text, part


def test_defaults_and_spellings_of_one_number_are_one_request() -> None:
    plain = read_requests(["temperature"], [], [15])
    assert plain == read_requests(["temperature", "temperature"], ["objective=nll", "bins=15"], [15, 15])
    assert read_requests(["temperature"], ["gamma=3"], [15]) == read_requests(["temperature"], ["gamma=3.0"], [15])
    assert [request.method for request in plain] == ["none", "temperature"]
    one = read_requests(["focal_map"], ["gamma=2"], [15])[1]
    assert one == read_requests(["focal_map"], ["gamma=2.0"], [15])[1]
    assert one.part != plain[1].part and one.label == "focal_map (gamma=2), 15 bins"


def test_two_cannot_write_at_once_and_leftovers_go(sweep: Sweep) -> None:
    with writing(sweep.paths), pytest.raises(SweeperError, match="another process"):
        recalibrate(sweep, [Request("none", 15)])
    leftover = sweep.paths.recalibrations / ".tmp-1-ab"
    leftover.touch()
    recalibrate(sweep, [Request("none", 15)])
    assert not list(sweep.paths.recalibrations.glob(".tmp*"))


def test_damaged_and_absent_predictions_are_named(sweep: Sweep) -> None:
    parts = sorted((sweep.paths.tables / "predictions").glob("*.parquet"))
    parts[1].write_bytes(parts[1].read_bytes()[:100])
    with pytest.raises(SweeperError, match=parts[1].name):
        recalibrate(sweep, [Request("none", 15)])
    for part in parts:
        part.unlink()
    with pytest.raises(SweeperError, match="no stored predictions"):
        recalibrate(sweep, [Request("none", 15)])


@pytest.mark.parametrize("name", ["../../x", "c99999"])
def test_an_odd_trial_in_the_table_is_refused(sweep: Sweep, name: str) -> None:
    part = sorted((sweep.paths.tables / "predictions").glob("*.parquet"))[1]
    rows = pq.read_table(part)
    trials = rows["trial"].to_pylist()
    odd = [name if trial == trials[-1] else trial for trial in trials]
    pq.write_table(rows.set_column(0, rows.schema.field(0), [odd]), part)
    with pytest.raises(SweeperError, match=r"not a trial's name|has no trial"):
        recalibrate(sweep, [Request("focal_map", 15)])


def test_evaluations_without_predictions_are_counted_and_named(sweep: Sweep) -> None:
    lost = sorted((sweep.paths.tables / "predictions").glob("*.parquet"))[1]
    held = {key: set(of) for key, of in stored(sweep.paths.root).items()}
    lost.unlink()
    gone = sorted(held.keys() - stored(sweep.paths.root).keys())
    done = recalibrate(sweep, [Request("none", 15)])
    assert [*done.missing] == [f"{trial}-r{replicate}-e{epoch:05d}" for trial, replicate, epoch in gone]
    assert any(f"{len(gone)} evaluations have no stored predictions" in line for line in recalibration_lines(done))


def test_points_for_mlflow_are_means_over_replicates(answered: tuple[Sweep, Recalibrated]) -> None:
    sweep, _ = answered
    part = next(
        p
        for p in recalibration_parts(sweep.paths)
        if p.path.name == Request("temperature", 10, {"objective": "ece"}).part
    )
    found = dict(recalibration_points(part))
    assert sorted(found) == list(range(TRIALS))
    rows = rows_of(sweep, "method = 'temperature' AND bins = 10 AND trial = 'c00003'")
    points = {point.key: point for point in found[3]}
    prefix = "recalibrated_temperature_objective:ece_bins10"
    tested = [row["ece"] for row in rows if row["split"] == "test"]
    assert points[f"{prefix}/test_ece"].value == pytest.approx(np.mean(tested), rel=1e-12)
    assert points[f"{prefix}/test_ece_std"].value == pytest.approx(np.std(tested, ddof=1), rel=1e-12)
    fitted = [row["temperature"] for row in rows if row["split"] == "val"]
    assert points[f"{prefix}/temperature"].value == pytest.approx(np.mean(fitted), rel=1e-12)
    assert {point.timestamp for point in found[3]} == {part.written}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Return a function that runs the command line and gives exit status, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sweeper", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    yield run


def test_the_command_keeps_stdout_for_data_and_says_what_is_next(sweep: Sweep, command: Any) -> None:
    space = {**load_spec("curvature_vs_gamma").resolved()}
    sweep.paths.sweep_file.write_text(json.dumps(space))
    code, out, err = command("recalibrate", str(sweep.paths.root), "--method", "temperature", "--bins", "10")
    assert (code, out) == (0, "")
    assert "27 evaluations" in err and "sweeper report" in err
    code, _, err = command("recalibrate", str(sweep.paths.root), "--method", "temprature", "--bins", "0")
    assert code == 2 and "did you mean" in err and "--bins 0" in err and "Traceback" not in err
    code, _, err = command("recalibrate", str(sweep.paths.root))
    assert code == 2 and "--method" in err


def test_further_metrics_are_measured_where_they_are_asked_for(sweep: Sweep) -> None:
    asked = read_metrics(["smooth_ece", "debiased_l2"], [{"name": "debiased_l2", "bins": 5}])
    assert asked == (("smooth_ece", {}), ("debiased_l2", {"bins": 5}))
    done = recalibrate(sweep, read_requests(["temperature"], [], [15]), metrics=asked)
    rows = rows_of(sweep, "trial = 'c00003' AND replicate = 0")
    predictions = stored(sweep.paths.root)
    for row in rows:
        splits = predictions[row["trial"], row["replicate"], row["epoch"]]
        calibrator = softmax64 if row["method"] == "none" else fit("temperature", *splits["val"])
        logits, targets = splits[row["split"]]
        found = json.loads(row["metrics"])
        assert found["smooth_ece"] == pytest.approx(smooth_ece(calibrator(logits), targets), rel=1e-9)
        assert found["debiased_l2"] == pytest.approx(debiased_l2(calibrator(logits), targets, 5), rel=1e-9)
    assert rows and rows_of(sweep, "CAST(metrics->>'smooth_ece' AS DOUBLE) > 0")
    query = (
        "SELECT avg(CAST(metrics->>'smooth_ece' AS DOUBLE)) AS mean FROM recalibrations "
        "JOIN final USING (trial, replicate, epoch, split) "
        "WHERE split = 'test' AND status = 'completed' AND method = '{}'"
    )
    for request, values in zip(done.requests, done.values, strict=True):
        (row,) = Results(sweep.paths.root).rows(query.format(request.method))
        assert values["smooth_ece"] == pytest.approx(row["mean"]) and {*values} == {"smooth_ece", "debiased_l2"}
    assert all(
        f"smooth ECE {values['smooth_ece']:.4g}" in "\n".join(recalibration_lines(done)) for values in done.values
    )
    before = [json.loads(row["metrics"]) for row in rows if row["method"] == "none"]
    recalibrate(sweep, [Request("none", 15)], metrics=read_metrics(["debiased_l2"], []))
    again = rows_of(sweep, "trial = 'c00003' AND replicate = 0 AND method = 'none'")
    after = [json.loads(row["metrics"]) for row in again]
    assert [found["smooth_ece"] for found in after] == [found["smooth_ece"] for found in before], "measured earlier"
    assert [found["debiased_l2"] for found in after] != [found["debiased_l2"] for found in before], "of 15 bins now"


def test_unknown_and_superfluous_metrics_are_refused() -> None:
    with pytest.raises(SweeperError, match="did you mean 'smooth_ece'"):
        read_metrics(["smoth_ece"], [])
    with pytest.raises(SweeperError, match="ece is always measured"):
        read_metrics(["ece"], [])


@pytest.mark.parametrize(("written", "value"), [("1e-3", 0.001), ("2E1", 20.0), ("1_0", 10.0)])
def test_options_are_read_as_in_a_search_space(written, value):
    _, request = read_requests(["structured_matrix"], [f"strength={written}"], [15])
    assert request.options == {"strength": value}
    with pytest.raises(SweeperError, match="'yes'"):
        read_requests(["isotonic"], ["mix=yes"], [15])
