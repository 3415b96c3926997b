"""Turn a file of predictions that were made elsewhere into a sweep, see `predictions_file`.

The predictions are measured like those of a user's own training loop, and reported to a driver. The driver judges,
journals and writes tables as for any sweep, so every command that reads sweeps can read this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from sweeper.execution.options import Outcome, RunOptions
from sweeper.execution.predictions_file import read_predictions
from sweeper.execution.replay import SOURCE, FromFile, source_of, with_configurations
from sweeper.execution.runner import first_attempt
from sweeper.planning.user_code_checks import MANIFEST_KEY, data_stand_in
from sweeper.space.evaluation import split_faults
from sweeper.space.loading import load_spec
from sweeper.storage.metadata import build_manifest
from sweeper.storage.places import DRIVING, place_of
from sweeper.storage.sweeps import create_sweep
from sweeper.tracking.choice import manifest_entry
from trainables.metrics.base import bin_faults
from trainables.training.own_loop import LoopError


def import_predictions(
    file: Path,
    overrides: Sequence[str],
    name: str | None,
    options: RunOptions,
    labels: Path | None = None,
    *,
    cross_fit: bool = False,
) -> Outcome:
    """Create a sweep from a file of predictions.

    Args:
        file: File or folder of predictions; see `predictions_file`.
        overrides: Overrides `key=value` of the generated search space, such as `evaluation.posthoc=[…]`.
        name: Name of the sweep; the file's name, numbered, by default.
        options: Options of the run.
        labels: File of the targets, if they are in another one.
        cross_fit: Take all samples as validation data, on which post-hoc methods are cross-fitted.

    Raises:
        SweeperError: The file lacks columns or has invalid values.
    """
    predictions = read_predictions(file, labels, cross_fit=cross_fit)
    spec = load_spec(predictions.space(), overrides)
    facts = predictions.facts()
    manifest = {
        **build_manifest(spec, facts),
        **manifest_entry(options.tracker, place_of(options.output, DRIVING).folder),
        MANIFEST_KEY: {"columns": []},
        SOURCE: source_of(file, labels, cross_fit),
    }
    dataset = data_stand_in(manifest)
    faults = split_faults(spec.evaluation.model_dump(), predictions.splits)
    if not faults:
        fewest = min(size for name, size in facts["samples"].items() if name in predictions.splits)
        faults = [Fault("evaluation.bins", rule) for rule in bin_faults(fewest, spec.evaluation.bins)]
    if faults:
        raise InvalidSearchSpace(faults, str(file))
    place = place_of(options.output, DRIVING)
    if place.store is not None:
        place.store.check()
    sweep = create_sweep(spec, file.stem, name, place.folder, manifest, place.has)
    try:
        sweep = with_configurations(sweep, lambda: predictions)
        done = first_attempt(sweep, dataset, options, place, FromFile(lambda: predictions))
    except LoopError as error:
        raise SweeperError(f"{file}: {error}") from error
    return replace(done, notes=[*predictions.notes, *done.notes])
