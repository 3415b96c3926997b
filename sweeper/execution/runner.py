"""Run a sweep from its first trial to its report, and resume it.

`run_sweep` claims a name and runs all trials; `resume_sweep` folds the journal and runs the rest. Both then close the
journal, compact the tables, write the report, and wait for the tracker for a limited time.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sweeper.core.domains.values import Plain
from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from sweeper.core.ids import SweepPaths, configuration_index
from sweeper.core.labels import rehearsal_name
from sweeper.execution.attempt import drive
from sweeper.execution.driver.executor import Executor, executor_named
from sweeper.execution.local import takes_cards
from sweeper.execution.options import Outcome, RunOptions
from sweeper.execution.ray import joined
from sweeper.execution.replay import SOURCE, resumed
from sweeper.execution.resuming import check_unchanged, refuse_lost_journal
from sweeper.journal.segments import last_sequence
from sweeper.planning.preparation import dataset_facts, lane_notes, prepare_dataset
from sweeper.planning.user_code_checks import loop_entry
from sweeper.space.configurations import repeat_notes
from sweeper.space.loading import load_spec
from sweeper.space.spec import MOST_SEEDS, Resources, SweepSpec
from sweeper.space.user_code import code_of, keep, manifest_entry, take_up_kept
from sweeper.storage.lease import holder
from sweeper.storage.lookup import refuse_odd_files
from sweeper.storage.metadata import build_manifest, read_manifest, read_specification
from sweeper.storage.mirror import mirror_of
from sweeper.storage.places import DRIVING, Place, place_of, split_name
from sweeper.storage.sweeps import Sweep, amended, create_sweep, open_sweep
from sweeper.tracking import choice
from trainables.datasets.base import DataSet
from trainables.datasets.sharing import node_copy
from trainables.files.stores.base import StoreError
from trainables.registry import IMPORTED


def chosen_executor(options: RunOptions, resources: Resources) -> Executor:
    """Return the executor of a run: the requested one, or for `auto` usually forked processes on this machine.

    Forked processes save Ray's start and its work per report. `auto` chooses Ray if a cluster is named, if this process
    has joined one, or if trials need GPUs, because only Ray assigns GPUs. Raises SweeperError if the requested executor
    cannot be used.
    """
    name = options.executor
    if name == "auto":
        name = "ray" if options.address is not None or takes_cards(resources) or joined() else "local"
    executor = executor_named(name)(options)
    executor.require(resources)
    return executor


def run_sweep(
    space: Path | str | Mapping[str, Plain], overrides: Sequence[str], name: str | None, options: RunOptions
) -> Outcome:
    """Read a search space, claim a name for it and run it to its end.

    Args:
        space: Search space: a file, the name of a shipped one, or its values.
        overrides: Overrides `key=value`.
        name: Name of the sweep; the file's name, numbered, by default.
        options: Options of the run.

    Raises InvalidSearchSpace or SweeperError before anything was started.
    """
    spec = load_spec(space, overrides, rehearse=options.rehearse)
    stem = "sweep"
    if not isinstance(space, Mapping):
        stem = Path(space).stem
    if spec.is_rehearsal:
        stem, name = rehearsal_name(stem), name if name is None else rehearsal_name(name)
    return _run_spec(spec, stem, name, options)


def _run_spec(spec: SweepSpec, stem: str, name: str | None, options: RunOptions) -> Outcome:
    """Claim a name for a checked search space and run it to its end."""
    executor = chosen_executor(options, spec.resources)
    executor.check(spec.resources)
    place = place_of(options.output, DRIVING)
    if place.store is not None:
        place.store.check()
    dataset = prepare_dataset(spec)
    looped = loop_entry(dataset)
    own, own_notes = code_of(spec), [*repeat_notes(spec), *lane_notes(spec, dataset)]
    own_notes += dataset.notes
    dataset, facts = node_copy(dataset), dataset_facts(dataset)
    manifest = {
        **build_manifest(spec, facts),
        **manifest_entry(own),
        **looped,
        "executor": executor.name,
        **choice.manifest_entry(options.tracker, place.folder),
    }
    options.timings.note("search space checked")
    sweep = create_sweep(spec, stem, name, place.folder, manifest, place.has, functools.partial(keep, own))
    outcome = first_attempt(sweep, dataset, options, place, executor)
    return replace(outcome, notes=[*own_notes, *outcome.notes])


def first_attempt(sweep: Sweep, dataset: DataSet, options: RunOptions, place: Place, executor: Executor) -> Outcome:
    """Drive a sweep whose name has just been claimed; free the name if it fails before it begins."""
    mirror = mirror_of(sweep.paths, place)
    try:
        with mirror:
            return drive(sweep, dataset, options, mirror, executor)
    except (SweeperError, StoreError) as error:
        if _gives_name_back(sweep, place, held=mirror.held):
            error.message += "; nothing was started"
        raise


def _gives_name_back(sweep: Sweep, place: Place, *, held: bool) -> bool:
    """Remove the folder of a sweep whose driver failed before it began; return whether its name is free again.

    The folder is kept if anything was journaled or another driver has taken the sweep over.
    """
    if not sweep.paths.root.exists():  # somebody else has removed it
        return False
    if not held or last_sequence(sweep.paths.journal) >= 0 or holder(sweep.paths.lease) is not None:
        return False
    if place.store is not None:
        store = place.store.child(sweep.name)
        try:
            if holder(sweep.paths.lease, store) is not None:
                return False
            store.delete(store.entries())
        except StoreError:  # the store still has the name
            return False
    shutil.rmtree(sweep.paths.root, ignore_errors=True)
    return True


def resume_sweep(name: str, options: RunOptions) -> Outcome:
    """Fold a sweep's journal and run its unfinished trials; copy it to this machine first if it is in a store.

    Raises SweeperError if there is no such sweep, or another driver holds it.
    """
    name, output = split_name(name, options.output)
    place = place_of(output, DRIVING)
    with mirror_of(place.find(name), place) as mirror:
        sweep = open_sweep(name, place.folder)
        refuse_odd_files(sweep.paths)
        manifest = read_manifest(sweep.paths.manifest)  # the report needs it: find damage before training, not after
        refuse_lost_journal(sweep.paths)
        check_unchanged(sweep, unreadable=options.discard_damaged)
        options = with_seeds(options)
        if options.tracker == choice.KEPT:
            options = replace(options, tracker=choice.kept_tracker(sweep.paths))
        sweep = amended(sweep, options.settings) if options.settings else sweep
        if sweep.spec.loop == IMPORTED:
            sweep, executor = resumed(sweep, manifest.get(SOURCE, {}), options)
        else:
            executor = chosen_executor(options, sweep.spec.resources)
        take_up_kept(sweep.paths, sweep.spec, manifest, trust=options.trust)
        dataset = node_copy(prepare_dataset(sweep.spec, manifest))
        return drive(sweep, dataset, options, mirror, executor)


#: Keys of `--set` for the number of seeds per configuration, and for the trials that get them.
SEEDS, TRIALS = ("replicates", "replicates.count"), "trials"


def with_seeds(options: RunOptions) -> RunOptions:
    """Return options with the seeds requested in `settings` moved to `replicates` and `trials`.

    The seeds are not settings of the sweep: the sweep keeps its own number of seeds. Raises InvalidSearchSpace for an
    invalid number of seeds or trial name.
    """
    given = [tuple(part.strip() for part in setting.partition("=")[::2]) for setting in options.settings]
    faults, count, trials = list[Fault](), options.replicates, list(options.trials)
    for key, text in given:
        if key in SEEDS and text.isdecimal() and 1 <= int(text) <= MOST_SEEDS:
            count = int(text)
        elif key in SEEDS:
            rule = f"{text} is not a number of seeds from 1 to {MOST_SEEDS:,}"
            faults.append(Fault(key, rule, "write e.g. replicates=24; its other settings cannot change"))
        elif key == TRIALS:
            for name in text.split(","):
                try:
                    trials.append(configuration_index(name.strip()))
                except ValueError as error:
                    faults.append(Fault(key, str(error), "write e.g. trials=c00003,c00007"))
    if trials and count is None:
        faults.append(Fault(TRIALS, "the number of seeds for these trials is missing", "add --set replicates=24"))
    if faults:
        raise InvalidSearchSpace(faults, source="--set")
    kept = [setting for setting, (key, _) in zip(options.settings, given, strict=True) if key not in (*SEEDS, TRIALS)]
    return replace(options, settings=kept, replicates=count, trials=trials)


#: Keys that no resume can change: a sweep that differs in one of them is another sweep.
FIXED = ("dataset", "space", "objective", "scheduler", "searcher", "replicates", "seed")


def to_continue(
    space: Path | str | Mapping[str, Plain], overrides: Sequence[str], name: str | None, output: str, *, rehearse: bool
) -> tuple[str, bool]:
    """Return a sweep's name, and whether a sweep of that name exists and can be resumed.

    Raises InvalidSearchSpace, and SweeperError if the sweep of that name was started from another search space.
    """
    spec = load_spec(space, overrides, rehearse=rehearse)
    name = name or ("sweep" if isinstance(space, Mapping) else Path(space).stem)
    name = rehearsal_name(name) if spec.is_rehearsal else name
    place = place_of(output, DRIVING)
    if place.store is not None:
        return name, place.has(name)
    file = SweepPaths(place.folder / name).sweep_file
    if not file.exists():
        return name, False
    kept, given = read_specification(file, required=True), spec.resolved()
    different = [key for key in FIXED if kept.get(key) != given.get(key)]
    if different:
        raise SweeperError(
            f"the sweep {name!r} was started from another search space: {', '.join(different)} differ",
            "choose another --name; limits of a sweep change with `sweeper resume --set`",
        )
    return name, True
