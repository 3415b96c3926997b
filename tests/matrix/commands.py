"""What each command must say of a trial: one check a column of the matrix, against numbers computed by hand.

A check asks the product and compares, or lets the product's `SweeperError` through: a refusal, which the matrix judges.
Libraries that take seconds are imported where they are used, because the default suite imports this file.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeper
from sweeper.api.printing import display
from sweeper.core.errors import SweeperError
from sweeper.reporting.figures.base import FIGURES
from sweeper.results import load
from tests.matrix.by_hand import Outputs, Trial
from tests.matrix.kinds import Kind, Made, Workshop
from tests.patience import patient
from trainables.datasets import load_dataset

#: The commands that are not about the results of one sweep, and why they have no column.
OUTSIDE = {
    **dict.fromkeys(("init", "spaces", "validate", "plan", "doctor"), "before a sweep"),
    **dict.fromkeys(("run", "import_"), "they make the sweeps of the matrix (`kinds`)"),
    **dict.fromkeys(("submit", "logs", "token"), "a cluster's commands (`tests/remote`, `tests/slurm`)"),
    "stop": "of a running sweep (`tests/faults`)",
    "delete": "nothing is left to compare (`tests/sweeper/api/test_housekeeping.py`)",
    "ui": "MLflow's own pages; their runs are the column `sync`",
    "mcp": "the functions of the other columns (`tests/sweeper/api/test_agent.py`)",
}


@dataclass(frozen=True)
class Case:
    """One cell: a kind of trial, met in its sweep."""

    workshop: Workshop
    kind: Kind
    made: Made
    trial: Trial

    def ask(self, command: Callable[..., Any], *given: object, **options: object) -> Any:
        """Call a command for the sweep, print its answer, and return it."""
        answer = command(self.made.name, *given, output=self.made.output, **options)
        if not isinstance(answer, (Path, str)):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                assert display(answer) == 0
        return answer

    def once(self, command: Callable[..., Any], *given: object, **options: object) -> Any:
        """Return the answer of `ask`, which all cells of the sweep share."""
        question = f"{command.__name__} {given} {options}"
        return self.made.once(question, lambda: self.ask(command, *given, **options))

    @property
    def finished(self) -> list[Trial]:
        """The trials of the sweep that were finished."""
        names = {row["trial"] for row in self.made.tables["trials"] if row["status"] == "completed"}
        return [Trial(name, self.made.tables) for name in sorted(names)]

    @property
    def others(self) -> list[Trial]:
        """The other finished trials."""
        return [trial for trial in self.finished if trial.name != self.trial.name]

    @property
    def best(self) -> Trial:
        """The best finished trial: by fresh seeds if some have them, else by all."""
        judged = [trial for trial in self.finished if trial.has_fresh_seeds] or self.finished
        return min(judged, key=lambda trial: trial.judged)

    def file(self, name: str) -> Path:
        """Return a path that is not taken."""
        folder = self.workshop.folder / "files"
        folder.mkdir(exist_ok=True)
        return folder / f"{len([*folder.iterdir()])}-{name}"


Check = Callable[[Case], None]
COLUMNS: dict[str, Check] = {}
COVERED: set[str] = set()


def column(*commands: str) -> Callable[[Check], Check]:
    """Register a check as a column, which covers functions of `sweeper.api`."""

    def add(check: Check) -> Check:
        COLUMNS[check.__name__.rstrip("_")] = check
        COVERED.update(commands)
        return check

    return add


def near(found: float, expected: float, error: float = 1e-6) -> None:
    """Compare two numbers; logits are stored in float32."""
    assert found == pytest.approx(expected, abs=error, rel=error)


def near_text(text: str, expected: float) -> None:
    """Compare a number as it is printed, `1.26 ± 0.20` or `53 ± 19 %`, with a number."""
    shown, scale = text.split()[0].strip("*"), 100 if text.endswith("%") else 1
    places = len(shown.partition(".")[2])
    assert abs(float(shown) - scale * expected) <= 0.501 * 10**-places, (text, expected)


# Reading


@column("results_")
def results(case: Case) -> None:
    """The leaderboard has the trial, judged by its fresh seeds, with its metrics."""
    rows = case.once(sweeper.results_, everything=True).value.rows
    (row,) = [row for row in rows if row["trial"] == case.trial.name]
    assert (row["status"], row["replicates"]) == (case.trial.status, len(case.trial.replicates))
    near(row["judged"], case.trial.judged, 1e-5)
    for split in ("val", "test"):
        for metric in ("nll", "accuracy", "ece"):
            near(row[f"{split}_{metric}"], case.trial.mean(metric, split))


@column("results_")
def sql(case: Case) -> None:
    """A query gives each replicate's metrics, on every split, and its predictions."""
    name = case.trial.name
    query = "SELECT replicate, split, nll, accuracy, ece, weighted_nll FROM final WHERE trial = '{}'"
    rows = case.ask(sweeper.results_, sql=query.format(name)).value.to_pylist()
    assert {(row["replicate"], row["split"]) for row in rows} >= {
        (replicate, split) for replicate in case.trial.replicates for split in case.kind.splits
    }
    for row in rows:
        for metric in ("nll", "accuracy", "ece"):
            near(row[metric], case.trial.value(metric, row["split"], row["replicate"]))
        weights = _weights(case.made, row["split"])
        assert (row["weighted_nll"] is None) == (weights is None)
        if weights is not None:
            near(row["weighted_nll"], case.trial.outputs(row["replicate"], row["split"]).nll(weights))
    query = f"SELECT count(*) AS n FROM predictions WHERE trial = '{name}'"
    assert case.ask(sweeper.results_, sql=query).value.to_pylist() == [{"n": len(case.trial.own("predictions"))}]


def _weights(made: Made, split: str) -> Any:
    options = dict(_dataset(made))
    return load_dataset(options.pop("name"), **options).splits[split].weights if "weight" in options else None


def _dataset(made: Made) -> dict[str, Any]:
    """Return the sweep's data set."""
    return dict(made.once("specification", lambda: load(made.name, made.output).specification)["dataset"])


@column("show")
def show_best(case: Case) -> None:
    """Without a name, the best finished trial is shown."""
    _shows(case.once(sweeper.show).json, case.best)


@column("show")
def show(case: Case) -> None:
    """The trial is shown by its name, and its page can be written."""
    _shows(case.ask(sweeper.show, case.trial.name).json, case.trial)
    page = case.ask(sweeper.show, case.trial.name, page=case.file("trial.html"))
    assert case.trial.name in page.read_text()


def _shows(facts: Any, trial: Trial) -> None:
    assert facts.trial == trial.name and facts.metrics is not None
    rows = {row[0]: dict(zip(facts.metrics.headings[1:], row[1:], strict=True)) for row in facts.metrics.rows}
    for name, metric in (("NLL", "nll"), ("accuracy", "accuracy"), ("ECE", "ece")):
        for split in ("val", "test"):
            near_text(rows[name][f"{split}, epoch {trial.epoch}"], trial.mean(metric, split))


@column("report")
def report(case: Case) -> None:
    """The page has the trial's row, with its metrics."""
    page = case.once(sweeper.report).path.read_text()
    table = json.loads(page.partition('id="trials-rows">')[2].partition("</script>")[0])
    (row,) = [row for row in table["rows"] if row[0] == case.trial.name]
    values = {column["label"]: cell for column, cell in zip(table["columns"], row, strict=True)}
    near(values["test NLL"][0], case.trial.mean("nll", "test"), 1e-4)
    near(values["test ECE"][0], case.trial.mean("ece", "test"), 1e-4)


@column("figure")
def figure(case: Case) -> None:
    """Every figure is drawn, or says in a sentence what it needs; curves go through the trial's values."""
    for name in FIGURES:
        with contextlib.suppress(SweeperError):  # what a figure needs is not a refusal of the command
            assert case.once(sweeper.figure, name).svg.startswith("<svg")


@column("figure")
def figure_table(case: Case) -> None:
    """The paper's table has the best trial of each loss, with its metrics."""
    rows = json.loads(case.once(sweeper.figure, "table", form="json"))
    (row,) = [row for row in rows if row["trial"] == case.best.name]
    near_text(row["NLL"], case.best.mean("nll", "test", case.best.fresh))


@column("compare")
def compare(case: Case) -> None:
    """The difference in NLL of two finished trials is the mean difference over their seeds; of a trial alone, 0."""
    if not case.others:
        comparison = case.ask(sweeper.compare, case.made.name).value
        assert comparison.finished == 1 and all(row.means[0] == row.means[1] for row in comparison.metrics)
        return
    other = case.others[0]
    (found,) = case.ask(sweeper.compare, case.trial.name, other.name).value
    (nll,) = [judged for judged in found.stages["uncalibrated"] if judged.estimator == "NLL"]
    for side, replicates, mean in zip((case.trial, other), _paired(case.trial, other), nll.means, strict=True):
        near(mean, side.mean("nll", "test", replicates))


def _paired(*sides: Trial) -> list[list[int]]:
    """Return the replicates of two trials that are compared: those with common seeds, if half are common, else all."""
    used = [side.fresh for side in sides]
    seeds = [{side.seed(replicate): replicate for replicate in own} for side, own in zip(sides, used, strict=True)]
    common = sorted(seeds[0].keys() & seeds[1].keys())
    if len(common) > 1 and 2 * len(common) >= min(map(len, used)):
        return [[own[seed] for seed in common] for own in seeds]
    return used


# After training


@column("recalibrate")
def recalibrate(case: Case) -> None:
    """Temperature scaling finds the temperature with the smallest validation NLL, and its test NLL."""
    for row, outputs in _recalibrated(case, "temperature", method="temperature"):
        temperature = case.trial.outputs(row["replicate"], "val").temperature()
        near(row["temperature"], temperature, 1e-3)
        near(row["nll"], outputs.scaled(temperature).nll(), 1e-4)


@column("recalibrate")
def metric(case: Case) -> None:
    """A further metric is measured on the network's own probabilities."""
    for row, outputs in _recalibrated(case, "none", metric="cutoff_error"):
        near(json.loads(row["metrics"])["cutoff_error"], outputs.largest_interval_gap())


@column("recalibrate")
def bins(case: Case) -> None:
    """Calibration errors are measured with another number of bins."""
    for row, outputs in _recalibrated(case, "none", bins=7):
        near(row["ece"], outputs.ece(7))


def _recalibrated(case: Case, measured: str, **options: Any) -> list[tuple[dict[str, Any], Outputs]]:
    """Recalibrate the sweep; return the trial's rows on test data, each with its outputs."""
    done = case.once(sweeper.recalibrate, **options).value
    assert not done.missing and not any(done.unavailable)
    where = f"trial = '{case.trial.name}' AND split = 'test' AND epoch = {case.trial.epoch} AND method = '{measured}'"
    query = f"SELECT * FROM recalibrations WHERE {where} AND bins = {options.get('bins', 15)}"
    rows = case.ask(sweeper.results_, sql=query).value.to_pylist()
    assert sorted(row["replicate"] for row in rows) == case.trial.replicates
    return [(row, case.trial.outputs(row["replicate"], "test")) for row in rows]


@column("ensemble")
def ensemble(case: Case) -> None:
    """The best single network, and the mean of the best configuration's replicates."""
    rows = case.once(sweeper.ensemble, size=1).value
    networks = [(trial, at) for trial in case.finished for at in trial.replicates]
    best, at = min(networks, key=lambda network: network[0].value("nll", "val", network[1]))
    near(rows[0].metrics["nll"], best.value("nll", "test", at))
    if len(case.best.replicates) > 1:
        (row,) = [row for row in rows if row.ensemble == "replicates of the best" and row.temperature == "none"]
        members = [case.best.outputs(at, "test") for at in case.best.replicates]
        mean = np.mean([member.probabilities for member in members], axis=0)
        near(row.metrics["nll"], Outputs(np.log(mean), members[0].targets).nll())


@column("conformal")
def conformal(case: Case) -> None:
    """THR sets cover the share of test samples whose probability reaches the validation quantile."""
    found, best = case.once(sweeper.conformal, alpha=0.2).value, case.best
    assert (found.trial, found.replicates) == (best.name, len(best.replicates))
    (row,) = [row for row in found.rows if row.score == "thr" and not row.by_class]
    for at, replicate in enumerate(best.replicates):
        val, test = best.outputs(replicate, "val"), best.outputs(replicate, "test")
        scores = np.sort(1 - val.probabilities[np.arange(len(val.targets)), val.targets])
        limit = scores[int(np.ceil((len(scores) + 1) * 0.8)) - 1]
        sets = 1 - test.probabilities <= limit
        near(row.measures["coverage"][at], sets[np.arange(len(test.targets)), test.targets].mean(), 1e-3)
        near(row.measures["size"][at], sets.sum(1).mean(), 1e-2)


def exported(case: Case, **options: Any) -> Any:
    """Return the sweep's export with these options, which all cells share."""
    return case.made.once(f"export {options}", lambda: case.ask(sweeper.export, case.file("program"), **options))


@column("export")
def export_best(case: Case) -> None:
    """The best trial's network takes raw inputs and gives its stored probabilities after temperature scaling."""
    _predicts(case, exported(case, onnx=True), case.best)  # the export of the column `onnx`: each takes a second


@column("export")
def export_trial(case: Case) -> None:
    """The trial's own network is exported, if its weights are there."""
    _predicts(case, exported(case, trial=case.trial.name), case.trial)


@column("export")
def retrain(case: Case) -> None:
    """The trial's network is trained again where its weights are gone, to the same bits."""
    again = exported(case, trial=case.trial.name, retrain=True)
    assert again.again in (None, 0.0)
    _predicts(case, again, case.trial)


@column("export")
def onnx(case: Case) -> None:
    """The ONNX file gives the same probabilities."""
    import onnxruntime

    folder = exported(case, onnx=True).folder
    model, session = sweeper.load_model(folder), onnxruntime.InferenceSession(folder / "model.onnx")
    inputs, _ = _raw(case.made)
    (probabilities,) = session.run(None, {session.get_inputs()[0].name: model.reader.array(inputs)})
    assert np.abs(probabilities - model.predict(inputs).numpy()).max() < 1e-4


def _predicts(case: Case, done: Any, trial: Trial) -> None:
    """Compare a model's probabilities of the raw samples with the trial's stored logits at their temperature."""
    assert done.trial == trial.name
    model, (inputs, labels), (replicate,) = sweeper.load_model(done.folder), _raw(case.made), done.replicates
    predicted, test = model.predict(inputs).numpy(), trial.outputs(replicate, "test")
    expected = test.scaled(trial.outputs(replicate, "val").temperature()).probabilities
    for probabilities, target in zip(expected, test.targets, strict=True):
        same = predicted[np.equal(labels, model.class_names[target])]
        # Which raw sample it is, only the sweep's split knows: one with its label must have its probabilities.
        assert np.abs(same - probabilities).max(1).min() < 1e-3


def _raw(made: Made) -> tuple[Any, Sequence[str]]:
    """Return all samples as their source has them, and their labels."""
    from sklearn.datasets import load_digits

    data = _dataset(made)
    if data["name"] == "digits":
        source = load_digits()
        return source.images[:, None], [str(target) for target in source.target]
    if data["name"] == "table":
        with Path(data["file"]).open() as file:
            rows: list[dict[str, Any]] = [*csv.DictReader(file)]
    else:
        rows = [json.loads(line) for line in Path(data["file"]).read_text().splitlines()]
    labels = [str(row.pop(data["target"])) for row in rows]
    return ([row["review"] for row in rows] if "review" in rows[0] else rows), labels


# Keeping


@column("resume")
def resume(case: Case) -> None:
    """A sweep that has ended stays as it is, and keeps its tracker."""
    default = Path(case.workshop.results, "mlflow.db")
    before = default.exists() and default.read_bytes()
    done = case.once(sweeper.resume)
    assert done.complete and not done.unfinished
    results(case)
    assert (default.exists() and default.read_bytes()) == before, "the runs went to a tracker that was not asked for"


@column("status")
def status(case: Case) -> None:
    """The sweep has finished, with so many trials in each state."""
    (found,) = case.once(sweeper.status).value
    drawn = {row["trial"]: row["status"] for row in case.made.tables["trials"] if row["trial"] < "c1"}
    assert (found.state, found.trials, found.left) == ("finished", len(drawn), 0)
    assert found.counts[case.trial.status] == [*drawn.values()].count(case.trial.status)


@column("status")
def audit(case: Case) -> None:
    """Every decision is recomputed, and none differs."""
    answer = case.once(sweeper.status, audit=True)
    assert answer.value == []
    assert f"{len(case.made.tables['decisions'])} decisions" in answer.rendered


@column("sync")
def sync(case: Case) -> None:
    """MLflow has a run of the trial's own seeds, and one of each added seed, with their metrics and diagrams."""
    from mlflow.tracking import MlflowClient

    address = case.made.tracker or f"sqlite:///{case.workshop.folder}/synced.db"
    case.once(sweeper.sync, **({} if case.made.tracker else {"tracking_uri": address}))
    client, where = MlflowClient(address), f"tags.sweep = '{case.made.name}'"
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = case.made.once("runs", lambda: client.search_runs(everywhere, where))
    by_name = {run.data.tags.get("trial"): run.data for run in runs}
    added = case.trial.added
    drawn = [replicate for replicate in case.trial.replicates if replicate not in added]
    expected = {f"{case.trial.name}-r{replicate}": [replicate] for replicate in added}
    for name, replicates in (expected | ({case.trial.name: drawn} if drawn else {})).items():
        near(by_name[name].metrics["test_nll"], case.trial.mean("nll", "test", replicates))
        assert not case.trial.has_predictions or by_name[name].tags["reliability_epoch"] == str(case.trial.epoch)


@column("rename")
def rename(case: Case) -> None:
    """Under another name the sweep is the same; it gets its own back."""
    new = f"{case.made.name}-renamed"

    def there_and_back() -> Any:
        case.ask(sweeper.rename, new)
        rows = sweeper.results_(new, everything=True, output=case.made.output).value.rows
        sweeper.rename(new, case.made.name, output=case.made.output)
        return rows

    _same(case.made.once("rename", there_and_back), case)


@column("archive")
def archive(case: Case) -> None:
    """Unpacked elsewhere, the archive is the same sweep."""

    def packed_and_back() -> Any:
        file, folder = case.file("archive.tar.gz"), case.file("unpacked")
        case.ask(sweeper.archive, to=file)
        with tarfile.open(file) as packed:
            packed.extractall(folder, filter="data")
        return sweeper.results_(case.made.name, everything=True, output=folder).value.rows

    _same(case.made.once("archive", packed_and_back), case)


def _same(rows: Sequence[dict[str, Any]], case: Case) -> None:
    """Compare a leaderboard with the sweep's own; sums may have another order."""
    for row, own in zip(rows, case.once(sweeper.results_, everything=True).value.rows, strict=True):
        assert row == {name: pytest.approx(value, nan_ok=True) for name, value in own.items()}


@column("serve")
def serve(case: Case) -> None:
    """The live server lists the sweep, and has a page of the trial with its metrics."""
    from starlette.testclient import TestClient

    from sweeper.serving.app import Guard, Pages

    with TestClient(Guard(Pages(case.made.output, sweeper.compare).app()), base_url="http://127.0.0.1") as server:
        address, deadline = f"/sweeps/{case.made.name}", time.monotonic() + patient(60)
        while (listed := server.get(f"{address}/rows/trials.csv")).status_code != 200:  # before it has read the journal
            assert time.monotonic() < deadline, listed.text
            time.sleep(0.02)
        page = server.get(f"{address}/trials/{case.trial.name}")
    assert case.trial.name in listed.text and page.status_code == 200
    (shown,) = re.findall(r"<t[hd][^>]*>NLL</t[hd]>(.*?)</tr>", page.text, re.DOTALL)[:1]
    near_text(re.findall(r"<td[^>]*>(.*?)</td>", shown, re.DOTALL)[-1].strip(), case.trial.mean("nll", "test"))
