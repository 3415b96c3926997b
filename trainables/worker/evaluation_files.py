"""The rows of a trial's evaluations for its report, and their large tables, which its own process writes."""

from __future__ import annotations

from collections.abc import Mapping

from trainables.training.evaluation import Evaluation
from trainables.worker.trial_files import TrialFiles
from trainables.worker.trial_reports import Row
from trainables.worker.trial_tables import (
    write_predictions,
    write_reliability,
    write_spectra,
    write_token_predictions,
)


def evaluation_rows(evaluations: Mapping[int, Evaluation], epoch: int) -> list[Row]:
    """Return the rows of an epoch's evaluations, by number of the replicate."""
    return [{"replicate": n, "epoch": epoch, **row} for n, found in evaluations.items() for row in found.rows]


def write_evaluations(files: TrialFiles, trial: str, epoch: int, evaluations: Mapping[int, Evaluation]) -> None:
    """Write the tables of an epoch's evaluations, by number of the replicate, where tables are written at all."""
    if files.tables is None:
        return
    for number, evaluation in evaluations.items():
        place = (files.tables, trial, number, epoch)
        written = [
            write_token_predictions(*place, tokens=evaluation.tokens)
            if evaluation.tokens
            else write_predictions(*place, logits=evaluation.logits, targets=evaluation.targets),
            write_reliability(*place, rows=evaluation.reliability),
        ]
        if evaluation.spectra is not None:
            written.append(write_spectra(*place, rows=evaluation.spectra))
        for path in written:
            files.table_written(path)
