"""Recalibrating a trained sweep: post-hoc methods and their metrics from stored predictions.

Each evaluation's logits are read once, a method is fitted on the validation split and applied to both splits, and one
row an evaluation, split and request goes into the table `recalibrations`. Nothing is trained, and nothing but that
table is written.
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

import pyarrow as pa

from sweeper.core.cells import Row, Rows, Value, grouped, text_of
from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.ids import RECALIBRATIONS, SweepPaths
from sweeper.core.schemas import record_batch
from sweeper.journal.state import COMPLETED
from sweeper.results import Results
from sweeper.results.predictions import FITTED_ON, PredictionFiles, StoredPredictions
from sweeper.results.queries import current_generation
from sweeper.results.recalibration import UNCALIBRATED, Effect, Request, effects, read_metrics, read_requests
from sweeper.space.user_code import take_up_kept
from sweeper.storage.lookup import refuse_odd_files
from sweeper.storage.metadata import read_manifest
from sweeper.storage.sweeps import Sweep, open_sweep
from sweeper.tables.generations import RECALIBRATIONS_SCHEMA, link_recalibrations, write_part, writing
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.base import Floats, Metrics, UnusablePredictions, further_metric_columns
from trainables.posthoc import Calibrator, fit_many
from trainables.posthoc.focal_map import with_training_gamma
from trainables.registry import HyperparameterValue, hyperparameter_values

#: Rows become Arrow after so many: a dictionary takes ten times the memory.
ROWS_A_BATCH = 1000

#: Logits of evaluations that are fitted together, 16 MiB in float64: small ones cost more in calls than in sums.
BATCH_VALUES = 2**21

#: Called with the samples done, all samples, and the evaluations done.
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Recalibrated:
    """What a recalibration did.

    Attributes:
        requests: what was asked for, in order.
        evaluations: how many evaluations were read.
        samples: how many predictions these had.
        unavailable: per request, the evaluations it could not be fitted on.
        reasons: per request, one reason why, or None.
        seconds: how long it took.
        missing: the names of evaluations without stored predictions, which were left out.
        effects: what each method did to ECE and NLL on test data, over the trials' last evaluations.
    """

    requests: Sequence[Request]
    evaluations: int
    samples: int
    unavailable: Sequence[int]
    reasons: Sequence[str | None]
    seconds: float
    missing: Sequence[str] = ()
    effects: Sequence[Effect] = ()

    def lines(self) -> list[str]:
        """Return what was done: the whole in one line, the effect of each method, and what was not always possible."""
        what = "; ".join(request.label for request in self.requests)
        said = [f"{self.evaluations:,} evaluations, {self.samples:,} predictions, {self.seconds:.1f} s: {what}"]
        if self.missing:
            said.append(
                f"warning: {len(self.missing):,} evaluations have no stored predictions and were left out, "
                f"e.g. {self.missing[0]}"
            )
        said += [effect.sentence() for effect in self.effects]
        said += [f"warning: {effect.warning}" for effect in self.effects if effect.warning]
        for request, count, reason in zip(self.requests, self.unavailable, self.reasons, strict=True):
            if count:
                said.append(f"{request.label}: unavailable for {count:,} of {self.evaluations:,}, e.g. {reason}")
        return said


def recalibrate(
    sweep: Sweep, requests: Sequence[Request], progress: Progress | None = None, metrics: Metrics = ()
) -> Recalibrated:
    """Measure every evaluation of a sweep under `requests` and write the answers into its table `recalibrations`.

    The sweep may be running or interrupted: what is in its tables is used. The same request made again replaces its
    rows. Memory holds the logits of some evaluations, `BATCH_VALUES` or one, and the rows of the answer.

    Args:
        sweep: as opened from its folder.
        requests: see `sweeper.results.recalibration.read_requests`.
        progress: called after each evaluation.
        metrics: what is measured besides, name and options: see `trainables.metrics.base.METRICS`.

    Raises:
        SweeperError: no predictions, a damaged file, another recalibration at work, or a folder not to be written to.
    """
    began = time.monotonic()
    paths = sweep.paths
    with writing(paths):
        files = PredictionFiles(paths)
        answers = [_Answer() for _ in requests]
        samples = evaluations = 0
        for batch in _batches(files.evaluations()):
            losses = [_training_loss(sweep, predictions.trial) for predictions in batch]
            for found in measure_all(batch, requests, losses, metrics):
                for answer, rows in zip(answers, found, strict=True):
                    answer.add(rows)
            samples, evaluations = samples + sum(each.samples for each in batch), evaluations + len(batch)
            if progress is not None:
                progress(samples, files.rows, evaluations)
        missing = files.missing()
        for request, answer in zip(requests, answers, strict=True):
            write_part(paths, request.part, answer.batches())
        with writing_to(f"the tables in {paths.tables}", "make the folder writable"):
            # a driver links them into later generations
            link_recalibrations(paths, current_generation(paths.root))
    return Recalibrated(
        requests,
        evaluations,
        samples,
        [answer.unavailable for answer in answers],
        [answer.reason for answer in answers],
        time.monotonic() - began,
        missing,
        effects_of(paths, requests),
    )


def effects_of(paths: SweepPaths, requests: Sequence[Request]) -> list[Effect]:
    """Return what the methods of `requests` did to the trials that finished, or to all where none has."""
    results = Results(paths.root)
    rows = results.rows(
        "SELECT recalibrations.*, seed, status FROM recalibrations JOIN final USING (trial, replicate, epoch, split) "
        "WHERE split = 'test' ORDER BY trial, replicate"
    )
    finished = [row for row in rows if row["status"] == COMPLETED] or rows
    order = {(each.method, each.options_text, each.bins): at for at, each in enumerate(requests)}
    found = [effect for effect in effects(finished) if effect.key in order]
    return sorted(found, key=lambda effect: order[effect.key])


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
    """Recalibrate the sweep `name` as a command asks for it.

    Args:
        name: of a sweep on this machine, or its folder.
        output: where it is.
        methods: names of post-hoc methods.
        options: `key=value` or `method.key=value`.
        bins: of the calibration errors; the sweep's where none are given.
        metrics: names of metrics to measure besides, with the options that the sweep's file gives them, if any.
        showing: returns, for the sweep's name, the callback for progress.
        trust: run the code that came with the sweep's folder, though this user has not run it before.

    Raises:
        SweeperError: with every fault of what is asked for; and as `recalibrate`.
    """
    sweep = open_sweep(name, output)
    refuse_odd_files(sweep.paths)
    if not methods and not bins and not metrics:
        raise SweeperError(
            "no post-hoc method, number of bins or metric was given",
            "give --method temperature, or --bins 10, or --metric smooth_ece, or several of them",
        )
    take_up_kept(sweep.paths, sweep.spec, read_manifest(sweep.paths.manifest), trust=trust)
    requests = read_requests(methods, options, bins or [sweep.spec.evaluation.bins])
    chosen = read_metrics(metrics, sweep.spec.evaluation.metrics)
    with showing(sweep.name) as progress:
        return recalibrate(sweep, requests, progress, chosen)


def _batches(evaluations: Iterable[StoredPredictions]) -> Iterator[list[StoredPredictions]]:
    """Yield evaluations in lists of about `BATCH_VALUES` logits, one at least."""
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
) -> list[list[list[dict[str, Value]]]]:
    """Return, for each evaluation and request, the rows: one per split.

    A method is fitted once for all of its numbers of bins, which stand next to each other, and on all evaluations at
    once where it can. What cannot be fitted or measured leaves its reason in `unavailable`.

    Args:
        batch: the logits and targets of the splits of each evaluation.
        requests: what to measure; requests of one method and options in a row.
        losses: the training losses, name and hyperparameters: the focal map takes its γ from there.
        metrics: what is measured besides.
    """
    found: list[list[list[dict[str, Value]]]] = [[] for _ in batch]
    for (method, _), group in groupby(requests, key=lambda request: (request.method, request.options_text)):
        same = list(group)
        asked = hyperparameter_values(same[0].options)
        options = [with_training_gamma(method, asked, loss) for loss in losses]
        calibrators = fitted(batch, method, options)
        for predictions, given, calibrator, rows in zip(batch, options, calibrators, found, strict=True):
            outcome, gamma = _applied(predictions, calibrator), given.get("gamma")
            stated: dict[str, Value] = {"gamma": gamma} if isinstance(gamma, (int, float)) else {}
            rows += [
                [_row(predictions, each, split, outcome, metrics) | stated for split in predictions.logits]
                for each in same
            ]
    return found


#: A calibrator, why there is none, or nothing for softmax alone.
Fitted = Calibrator | UnusablePredictions | None


def fitted(
    batch: Sequence[StoredPredictions], method: str, options: Sequence[Mapping[str, HyperparameterValue]]
) -> list[Fitted]:
    """Return a method fitted on the validation split of each evaluation, with its options."""
    if method == UNCALIBRATED:
        return [None] * len(batch)
    found: list[Fitted] = [UnusablePredictions("there are no predictions on validation data to fit on")] * len(batch)
    usable = [at for at, predictions in enumerate(batch) if FITTED_ON in predictions.logits]
    for places in grouped(usable, lambda at: repr(sorted(options[at].items()))).values():
        data = [(batch[at].logits[FITTED_ON], batch[at].targets[FITTED_ON]) for at in places]
        for at, calibrator in zip(places, fit_many(method, data, **options[places[0]]), strict=True):
            found[at] = calibrator
    return found


#: Fitted parameters, and by split calibrated probabilities and the logits of those that underflowed; or why not.
Applied = tuple[Mapping[str, float], dict[str, tuple[Floats, Floats | None]]] | UnusablePredictions


def _applied(predictions: StoredPredictions, calibrator: Fitted) -> Applied:
    if isinstance(calibrator, UnusablePredictions):
        return calibrator
    splits = predictions.logits
    if calibrator is None:
        return {}, {split: (softmax64(logits), logits) for split, logits in splits.items()}
    try:
        found = {split: calibrator(logits) for split, logits in splits.items()}
    except UnusablePredictions as error:
        return error
    exact = {split: (values, calibrator.underflowed(splits[split], values)) for split, values in found.items()}
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
    """Return values as JSON, numbers that are not finite as null."""
    known = {key: value if isinstance(value, str) or math.isfinite(value) else None for key, value in values.items()}
    return json.dumps(known)


class _Answer:
    """The rows of one request, most of them as Arrow already."""

    def __init__(self) -> None:
        self.unavailable = 0
        self.reason: str | None = None
        self._rows: list[Row] = []
        self._batches: list[pa.RecordBatch] = []

    def add(self, rows: Rows) -> None:
        """Take in the rows of one evaluation."""
        reasons = [text_of(row, "unavailable") for row in rows if row["unavailable"]]
        if reasons:
            self.unavailable += 1
            self.reason = self.reason or reasons[0]
        self._rows += rows
        if len(self._rows) >= ROWS_A_BATCH:
            self._pack()

    def batches(self) -> list[pa.RecordBatch]:
        """Return everything taken in."""
        self._pack()
        return self._batches

    def _pack(self) -> None:
        self._batches.append(record_batch(RECALIBRATIONS, RECALIBRATIONS_SCHEMA, self._rows))
        self._rows = []


def _training_loss(sweep: Sweep, trial: str) -> Mapping[str, object]:
    loss = sweep.configuration_of(trial).get("loss", {})
    return loss if isinstance(loss, Mapping) else {"name": loss}
