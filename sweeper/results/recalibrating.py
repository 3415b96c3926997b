"""Recalibrate a trained sweep: apply post-hoc methods to stored predictions and measure them.

Each evaluation's logits are read once. A method is fitted on the validation split and applied to every split, and one
row per evaluation, split and request goes into the table `recalibrations`. Without a test split, methods are
cross-fitted on the validation split. Nothing is trained, and no other table is
written.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean

import pyarrow as pa
import pyarrow.parquet as pq

from sweeper.core.cells import Rows, Value, grouped
from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.ids import RECALIBRATIONS, SweepPaths
from sweeper.core.schemas import record_batch
from sweeper.results import Results
from sweeper.results.posthoc import posthoc_effects
from sweeper.results.predictions import FITTED_ON, MEASURED_ON, PredictionFiles, StoredPredictions
from sweeper.results.queries import current_generation
from sweeper.results.recalibration import UNCALIBRATED, Effect, Request, measured_split, read_metrics, read_requests
from sweeper.space.user_code import take_up_kept
from sweeper.storage.lookup import refuse_odd_files
from sweeper.storage.metadata import read_manifest
from sweeper.storage.sweeps import Sweep, open_sweep
from sweeper.tables.generations import (
    RECALIBRATIONS_SCHEMA,
    link_recalibrations,
    recalibration_parts,
    write_part,
    writing,
)
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.base import Floats, Metrics, UnusablePredictions, further_metric_columns
from trainables.posthoc import Calibrator, fit
from trainables.posthoc.base import cross_fitted
from trainables.posthoc.focal_map import with_training_gamma
from trainables.registry import HyperparameterValue, hyperparameter_values

#: Number of logits that are fitted together, 16 MiB in float64. Batches save time, because for small evaluations the
#: calls cost more than the arithmetic.
BATCH_VALUES = 2**21

#: Callback that receives the number of evaluations done, and of all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Recalibrated:
    """The result of a recalibration.

    Attributes:
        requests: the requests, in order.
        evaluations: number of evaluations read.
        samples: number of predictions in them.
        unavailable: for each request, the number of evaluations on which it could not be fitted.
        reasons: for each request, one reason why it could not be fitted, or None.
        seconds: duration.
        missing: names of the evaluations without stored predictions, which were left out.
        effects: effect of each method on test ECE and NLL, over the trials' last evaluations.
        values: for each request, the mean of each further metric over the trials' last evaluations, on the split that
            `effects` measures.
    """

    requests: Sequence[Request]
    evaluations: int
    samples: int
    unavailable: Sequence[int]
    reasons: Sequence[str | None]
    seconds: float
    missing: Sequence[str] = ()
    effects: Sequence[Effect] = ()
    values: Sequence[Mapping[str, float]] = ()


def recalibrate(
    sweep: Sweep, requests: Sequence[Request], progress: Progress | None = None, metrics: Metrics = ()
) -> Recalibrated:
    """Measure every evaluation of a sweep under `requests` and write the rows to its table `recalibrations`.

    The sweep may be running or interrupted; the evaluations in its tables are used. Repeating a request replaces its
    rows, but keeps optional metrics that were measured earlier. Memory holds one batch of `BATCH_VALUES` logits (or one
    larger evaluation), and the resulting rows.

    Args:
        sweep: an open sweep.
        requests: the requests, e.g. from `sweeper.results.recalibration.read_requests`.
        progress: called after each batch of evaluations.
        metrics: names and options of optional metrics, see `trainables.metrics.base.METRICS`.

    Raises:
        SweeperError: there are no predictions, a file is damaged, another recalibration is running, or the folder is
            read-only.
    """
    began = time.monotonic()
    paths = sweep.paths
    with writing(paths):  # a lock: a second recalibration of the sweep is refused
        files = PredictionFiles(paths)
        measured = Results(paths.root).sql("SELECT DISTINCT trial, replicate, epoch FROM evaluations")
        expected = [*zip(*(column.to_pylist() for column in measured.columns), strict=True)]
        answers: list[list[pa.RecordBatch]] = [[] for _ in requests]
        earlier = [_earlier_metrics(paths, request) for request in requests]
        samples = evaluations = 0
        for batch in _batches(files.evaluations()):
            losses = [_training_loss(sweep, predictions.trial) for predictions in batch]
            measured_rows = measure_all(batch, requests, losses, metrics)
            for answer, rows, known in zip(answers, measured_rows, earlier, strict=True):
                # Converted at once, because rows take ten times the memory as dictionaries.
                kept = [row | _kept_metrics(row, known) for row in rows]
                answer.append(record_batch(RECALIBRATIONS, RECALIBRATIONS_SCHEMA, kept))
            samples, evaluations = samples + sum(predictions.samples for predictions in batch), evaluations + len(batch)
            if progress is not None:
                progress(evaluations, len(expected))
        missing = files.missing(expected)  # `files` must have read everything before this call
        for request, answer in zip(requests, answers, strict=True):
            write_part(paths, request.part, answer)
        with writing_to(f"the tables in {paths.tables}", "make the folder writable"):
            # Readers search in `tables`, so a link is made there. A driver makes the same link in each later
            # generation.
            link_recalibrations(paths, current_generation(paths.root))
    unavailable = [_unavailable(answer) for answer in answers]
    return Recalibrated(
        requests,
        evaluations,
        samples,
        [len(reasons) for reasons in unavailable],
        [next(iter(reasons), None) for reasons in unavailable],
        time.monotonic() - began,
        missing,
        *effects_of(paths, requests),
    )


#: Columns that identify a row of one request, and its NLL, which shows whether the predictions are still the same.
_SAME = ("trial", "replicate", "epoch", "split", "samples", "nll")


def _earlier_metrics(paths: SweepPaths, request: Request) -> dict[tuple[object, ...], str]:
    """Return the optional metrics that were measured earlier for a request: the values of `_SAME` → JSON."""
    known = [part.path for part in recalibration_parts(paths) if part.path.name == request.part]
    rows = pq.read_table(known[0], columns=[*_SAME, "metrics"]).to_pylist() if known else []
    return {tuple(row[name] for name in _SAME): row["metrics"] for row in rows if row["metrics"]}


def _kept_metrics(row: Mapping[str, Value], known: Mapping[tuple[object, ...], str]) -> dict[str, Value]:
    """Return the column `metrics` with those measured earlier, which a request for others must not remove."""
    before = known.get(tuple(row.get(name) for name in _SAME))
    if before is None:
        return {}
    return {"metrics": json.dumps(json.loads(before) | json.loads(str(row.get("metrics") or "{}")))}


def effects_of(paths: SweepPaths, requests: Sequence[Request]) -> tuple[list[Effect], list[dict[str, float]]]:
    """Return the effects of the requested methods, as the report shows them.

    Also return, for each request, the means of its further metrics.
    """
    with Results(paths.root).snapshot() as results:
        rows, measured = posthoc_effects(results)
    requested = [effect for effect in measured if effect.request in requests]
    return sorted(requested, key=lambda effect: requests.index(effect.request)), further_means(rows, requests)


def further_means(rows: Rows, requests: Sequence[Request]) -> list[dict[str, float]]:
    """Return, for each request, the mean of each further metric over its rows of the measured split."""
    measured = measured_split(rows)
    of_one = grouped(
        (row for row in rows if row["split"] == measured), lambda row: (row["method"], row["options"], row["bins"])
    )
    means = []
    for request in requests:
        own = of_one.get((request.method, request.options_text, request.bins), [])
        values = [json.loads(str(row["metrics"])) for row in own if row["metrics"]]
        known = {name: [v[name] for v in values if isinstance(v.get(name), float)] for name in (values or [{}])[0]}
        means.append({name: fmean(numbers) for name, numbers in known.items() if numbers})
    return means


def recalibrate_sweep(
    name: str,
    output: Path,
    methods: Sequence[str],
    options: Sequence[str],
    bins: Sequence[int],
    metrics: Sequence[str],
    showing: Callable[[str], AbstractContextManager[Progress | None]],
    *,
    trust: bool = False,
) -> Recalibrated:
    """Recalibrate the sweep `name`, with the arguments of the command.

    Args:
        name: name of a sweep on this machine, or its folder.
        output: the folder of sweeps.
        methods: names of post-hoc methods.
        options: `key=value` of the methods that have the option.
        bins: numbers of bins of the calibration errors; the sweep's by default.
        metrics: names of optional metrics. Their options come from the sweep's file, if it has any.
        showing: returns the progress callback for a sweep's name.
        trust: run code that came with the sweep's folder even if this user has not run it before.

    Raises:
        SweeperError: a request has an error (the message lists all), or `recalibrate` fails.
    """
    sweep = open_sweep(name, output)
    refuse_odd_files(sweep.paths)  # a planted link could redirect writes outside the sweep's folder
    if not methods and not bins and not metrics:
        raise SweeperError(
            "no post-hoc method, number of bins or metric was given",
            "give --method temperature, or --bins 10, or --metric smooth_ece, or several of them",
        )
    # The code kept with the sweep is loaded before requests are read, because it may define their methods and metrics.
    take_up_kept(sweep.paths, sweep.spec, read_manifest(sweep.paths.manifest), trust=trust)
    requests = read_requests(methods, options, bins or [sweep.spec.evaluation.bins])
    chosen = read_metrics(metrics, sweep.spec.evaluation.metrics)
    with showing(sweep.name) as progress:
        return recalibrate(sweep, requests, progress, chosen)


def _batches(evaluations: Iterable[StoredPredictions]) -> Iterator[list[StoredPredictions]]:
    """Yield lists of evaluations with about `BATCH_VALUES` logits in total; each list has at least one evaluation."""
    batch: list[StoredPredictions] = []
    size = 0
    for predictions in evaluations:
        batch.append(predictions)
        size += sum(values.size for values in predictions.logits.values())
        if size >= BATCH_VALUES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def measure_all(
    batch: Sequence[StoredPredictions],
    requests: Sequence[Request],
    losses: Sequence[Mapping[str, object]],
    metrics: Metrics = (),
) -> list[list[dict[str, Value]]]:
    """Return the rows of each request, one per evaluation and split.

    A method is fitted once for all numbers of bins, and on all evaluations at once if it supports this. If a method
    cannot be fitted or measured, the column `unavailable` has the reason.

    Args:
        batch: logits and targets by split of each evaluation.
        requests: the requests; those of one method with the same options must be adjacent.
        losses: name and hyperparameters of each evaluation's training loss. The focal map uses its γ.
        metrics: names and options of optional metrics.
    """
    rows_of: list[list[dict[str, Value]]] = []
    # Each method is fitted once: the fit does not depend on the number of bins, and takes most of the time.
    for (method, _), same in groupby(requests, key=lambda request: (request.method, request.options_text)):
        first, *more = same
        options = [with_training_gamma(method, hyperparameter_values(first.options), loss) for loss in losses]
        calibrators = fitted(batch, method, options)
        outcomes = [
            _applied(predictions, calibrator, method, given)
            for predictions, calibrator, given in zip(batch, calibrators, options, strict=True)
        ]
        rows_of += [
            [
                _row(predictions, request, split, outcome, metrics) | _stated_gamma(given)
                for predictions, outcome, given in zip(batch, outcomes, options, strict=True)
                for split in predictions.logits
            ]
            for request in (first, *more)
        ]
    return rows_of


def _stated_gamma(options: Mapping[str, object]) -> dict[str, Value]:
    """Return the γ that a method was given, e.g. the focal map that of the training loss."""
    gamma = options.get("gamma")
    return {"gamma": gamma} if isinstance(gamma, (int, float)) else {}


#: A calibrator, the reason why it could not be fitted, or None for plain softmax.
Fitted = Calibrator | UnusablePredictions | None


def fitted(
    batch: Sequence[StoredPredictions], method: str, options: Sequence[Mapping[str, HyperparameterValue]]
) -> list[Fitted]:
    """Return each evaluation's calibrator: the method with the evaluation's options, fitted on its validation split."""
    if method == UNCALIBRATED:
        return [None] * len(batch)
    fits: list[Fitted] = []
    for predictions, given in zip(batch, options, strict=True):
        try:
            if FITTED_ON not in predictions.logits:
                raise UnusablePredictions("there are no predictions on validation data to fit on")
            fits.append(fit(method, predictions.logits[FITTED_ON], predictions.targets[FITTED_ON], **given))
        except UnusablePredictions as error:  # a diverged network does not prevent the calibrators of the others
            fits.append(error)
    return fits


#: (Fitted parameters, split → (calibrated probabilities, logits)), or the reason why the method could not be applied.
#: The logits are those of probabilities that underflowed to 0, and are needed for their NLL.
Applied = tuple[Mapping[str, float], dict[str, tuple[Floats, Floats | None]]] | UnusablePredictions


def _applied(
    predictions: StoredPredictions, calibrator: Fitted, method: str, options: Mapping[str, HyperparameterValue]
) -> Applied:
    if isinstance(calibrator, UnusablePredictions):
        return calibrator
    splits = predictions.logits
    if calibrator is None:
        return {}, {split: (softmax64(logits), logits) for split, logits in splits.items()}
    try:
        calibrated = {split: calibrator(logits) for split, logits in splits.items()}
        exact = {split: (values, calibrator.underflowed(splits[split], values)) for split, values in calibrated.items()}
        if MEASURED_ON not in splits:  # no other samples show how good the method is
            exact[FITTED_ON] = cross_fitted(method, splits[FITTED_ON], predictions.targets[FITTED_ON], options)
    except UnusablePredictions as error:
        return error
    return calibrator.parameters, exact


def _row(
    predictions: StoredPredictions, request: Request, split: str, outcome: Applied, metrics: Metrics
) -> dict[str, Value]:
    parameters, measured = ({}, {}) if isinstance(outcome, UnusablePredictions) else outcome
    targets = predictions.targets[split]
    row: dict[str, Value] = {
        "trial": predictions.trial,
        "replicate": predictions.replicate,
        "epoch": predictions.epoch,
        "split": split,
        "method": request.method,
        "bins": request.bins,
        "options": request.options_text,
        "samples": len(targets),
        "temperature": parameters.get("temperature"),
        "gamma": parameters.get("gamma"),
        "parameters": _as_json(parameters),
        "unavailable": str(outcome) if isinstance(outcome, UnusablePredictions) else None,
    }
    if measured:
        probabilities, logits = measured[split]
        try:
            row |= evaluate_probabilities(probabilities, targets, request.bins, logits=logits)
            row["metrics"] = _as_json(further_metric_columns(metrics, probabilities, targets)) if metrics else None
        except UnusablePredictions as error:
            row["unavailable"] = str(error)
    return row


def _as_json(values: Mapping[str, float | str]) -> str:
    """Return values as JSON, with null for numbers that are not finite, since JSON has no NaN and DuckDB refuses it."""
    known = {key: value if isinstance(value, str) or math.isfinite(value) else None for key, value in values.items()}
    return json.dumps(known)


def _unavailable(answer: Sequence[pa.RecordBatch]) -> list[str]:
    """Return one reason for each evaluation on which a request could not be fitted or measured."""
    reasons: dict[tuple[str, int, int], str] = {}
    for batch in answer:
        for row in batch.select(["trial", "replicate", "epoch", "unavailable"]).to_pylist():
            if row["unavailable"]:
                reasons.setdefault((row["trial"], row["replicate"], row["epoch"]), row["unavailable"])
    return [*reasons.values()]


def _training_loss(sweep: Sweep, trial: str) -> Mapping[str, object]:
    loss = sweep.configuration_of(trial).get("loss", {})
    return loss if isinstance(loss, Mapping) else {"name": loss}
