"""Check and prepare a sweep's folder for a driver: fold the journal, open tables, handle damage.

A damaged journal is cut off before its first damaged record, and later checkpoints are removed. A lost journal is an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sweeper.core.columns import epoch_columns, evaluation_columns
from sweeper.core.errors import InvalidSearchSpace, SweeperError
from sweeper.core.ids import SweepPaths, trial_name
from sweeper.core.schemas import table_schemas
from sweeper.execution.driver.context import Fold
from sweeper.journal.journal import read_journal, set_aside_damaged
from sweeper.journal.records import Record
from sweeper.journal.segments import last_sequence, piece_of
from sweeper.journal.state import ReplicateState, SweepState
from sweeper.planning.user_code_checks import loop_columns, measured_columns
from sweeper.storage.metadata import read_manifest
from sweeper.storage.mirror import Mirror, SharedFolder
from sweeper.storage.sweeps import Sweep, changed_trials, edited
from sweeper.tables.writer import ParquetSink
from trainables.datasets.base import DataSet
from trainables.datasets.splits import build_split
from trainables.worker.checkpoints import PARTIAL, checkpoint_epochs, checkpoint_file


def check_unchanged(sweep: Sweep, *, unreadable: bool = False) -> None:
    """Raise InvalidSearchSpace with each difference between `sweep.yaml` and the journaled search space.

    `unreadable` accepts a journal whose record of the search space is damaged; otherwise SweeperError names that
    record.
    """
    try:
        faults = edited(sweep)
    except SweeperError:
        if not unreadable:
            raise
        return
    if faults:
        raise InvalidSearchSpace(faults, source=str(sweep.paths.sweep_file))


def check_trials(state: SweepState, config_hashes: Sequence[str | None]) -> None:
    """Raise SweeperError if the drawn configurations differ from those in the journal."""
    drawn = {index: trial.config_hash for index, trial in state.trials.items() if trial.added is None}
    changed = changed_trials(drawn, config_hashes)
    if changed:
        count = f"{len(changed)} configurations differ" if len(changed) > 1 else "1 configuration differs"
        raise SweeperError(
            f"{count} from the journal, e.g. {trial_name(changed[0])}: this release draws others from the same space",
            "resume with the release that started the sweep (`versions` in manifest.json), or start a new sweep",
        )


_PARTS = ("[0-9]*-[0-9]*.parquet", "c*.parquet")

#: Files that exist only after the journal has records: description → patterns.
_OF_A_JOURNAL = {
    "results in its tables": [f"{place}/*/{part}" for place in ("tables", "generations/*") for part in _PARTS],
    "checkpoints": ["checkpoints/c*/**/e*.pt"],
}


def refuse_lost_journal(paths: SweepPaths) -> None:
    """Raise SweeperError if the journal is missing although other files show that there was one.

    Otherwise the sweep would silently start again from zero. A journal whose records were all quarantined is not lost.
    """
    if last_sequence(paths.journal) >= 0 or any(paths.journal.glob("*.damaged")):
        return
    left = [word for word, patterns in _OF_A_JOURNAL.items() if any(any(paths.root.glob(glob)) for glob in patterns)]
    if left:
        raise SweeperError(
            f"the sweep {paths.name!r} has {' and '.join(left)}, and no journal: {paths.journal} is empty or missing",
            "restore that folder from a backup, and resume again; or, to train all trials again from the start, begin "
            f"a new sweep: `sweeper run {paths.sweep_file} --name NAME`. Its results remain readable",
        )


def remove_checkpoints_ahead(paths: SweepPaths, state: SweepState) -> None:
    """Remove checkpoints of epochs that a cut-off journal no longer has: trials cannot continue from them.

    Otherwise the driver would reject them one by one, and each trial would go to the back of the queue.
    """
    for index in state.unfinished():
        trial, folder = state.trials[index], paths.trial_checkpoints(index)
        known = {folder: trial.reported_epochs}
        for own in folder.glob("r*"):
            known[own] = trial.replicates.get(int(own.name[1:]), ReplicateState()).epochs
        for place, epochs in known.items():
            (place / PARTIAL).unlink(missing_ok=True)  # its name does not show the epoch, so remove it in any case
            for epoch in checkpoint_epochs(place):
                if epoch > epochs:
                    checkpoint_file(place, epoch).unlink(missing_ok=True)


def discard_damaged(paths: SweepPaths, mirror: Mirror | SharedFolder) -> list[str]:
    """Cut the journal off before its first damaged record; return a note if there was one."""
    names = set_aside_damaged(paths.journal)
    mirror.set_aside(names)
    if not names:
        return []
    count = sum(piece.last - piece.first + 1 for name in names if (piece := piece_of(name)))
    return [
        f"{count} journal records from {names[0]} on were quarantined (as ….damaged in {paths.journal.name}/): "
        "their results were measured again"
    ]


def folded(paths: SweepPaths, folds: Sequence[Fold], check: Callable[[], None]) -> Iterator[Record]:
    """Yield the journal's records after folding each into `folds`; call `check` at the end."""
    for record in read_journal(paths.journal):
        for fold in folds:
            fold.apply(record)
        yield record
    check()


def open_tables(sweep: Sweep, dataset: DataSet, mirror: Mirror | SharedFolder) -> ParquetSink:
    """Open the tables for writing, with the rows of earlier drivers."""
    spec = sweep.spec
    measured = spec.evaluation
    own = [metric["name"] for metric in measured.metrics]
    detected = [name for shift in map(build_split, measured.shifts) if shift.detected for name in shift.names]
    splits = [*measured.own_splits, *detected]
    columns = evaluation_columns(measured.posthoc, own, spec.cross_fitted, splits, measured.curvature)
    trajectory, manifest = spec.evaluation.trajectory, read_manifest(sweep.paths.manifest)
    columns = tuple(dict.fromkeys((*columns, *measured_columns(manifest))))
    own_epochs = loop_columns(manifest) or ()
    more = epoch_columns(None if trajectory is None else trajectory.model_dump()) | dict.fromkeys(own_epochs, float)
    schemas = table_schemas(
        spec.space.column_types,
        dataset.classes,
        columns,
        epoch_columns=more,
        rehearsal=spec.is_rehearsal,
        arithmetic=spec.training.settings.described,
    )
    return ParquetSink(
        sweep.paths,
        schemas,
        [None] * len(sweep.configurations) if spec.searcher.learns else sweep.configurations,
        spec.replicate_seeds,
        arrivals=mirror.arrivals,
    )
