"""What earlier sweeps have to give: trials that are the same here, and choices for a searcher to learn from.

Reuse of trials that another sweep has already trained: find, compare, and hand them to the driver.

A replicate's numbers are a function of its configuration, its seed, the data, what an evaluation measures and the code.
Seeds follow from the sweep's seed and the trial's place, so what can be reused is the trial at the same place of a
sweep with the same seed, such as the first 48 of a sweep that is extended to 96. (For the same reason no sweep trains
the same thing twice: a configuration that is drawn again has another place, and so other seeds.)

What is taken over is the reports, not the decisions: the driver judges each again, against the rungs of its own sweep,
so an audit finds every decision equal. Where a trial of the other sweep was stopped and this one would have it go on,
its reports are kept and it is trained from its beginning, which gives the same numbers again: bit for bit on a CPU,
and on a GPU where training is deterministic. Elsewhere up to rounding, which `sweeper.execution.resuming` says.

Warm start of a searcher: what is taken is choices and final objectives, not trials: nothing is trained less, but the
searcher begins where the earlier sweeps ended. Only trials that ran to the end count: the value of one that was stopped
early is that of its last rung, which other competitors decided. Once the journal has them, the earlier sweeps are
needed no more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sweeper.core.domains import choices_of
from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from sweeper.core.ids import SweepPaths, code_version, config_hash, trial_name
from sweeper.execution.driver.driver import TakenOver
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Attempt, Learned, Observation, Reported, Reused
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, SweepState, fold
from sweeper.space.configurations import Configurations
from sweeper.space.spec import SweepSpec
from sweeper.space.user_code import MANIFEST_KEY as OWN_CODE
from sweeper.storage.lookup import sweep_names
from sweeper.storage.metadata import read_manifest
from sweeper.storage.places import bring_predictions, local_copies, local_copy
from sweeper.storage.sweeps import Sweep, open_sweep
from sweeper.tables.large_tables import ALWAYS_WRITTEN, LARGE_TABLES, MERGED_KEY
from trainables.training.lanes.packing import TRIALS
from trainables.worker.trial_reports import Row
from trainables.worker.trial_tables import part_name, write_parquet


class TablesOfTrials:
    """Finds one sweep's files by evaluation; each is read, and so checked, before it counts as there."""

    def __init__(self, paths: SweepPaths) -> None:
        """List the files of the sweep in `paths`; its predictions are fetched where they are in a store."""
        bring_predictions(paths)
        self._files: dict[str, dict[str, Path]] = {}
        for table in LARGE_TABLES:
            parts = sorted((paths.tables / table).glob("c*.parquet"))
            if parts or table in ALWAYS_WRITTEN:
                # Another table without any file is one that the sweep does not have.
                self._files[table] = {name: part for part in parts for name in _evaluations_in(part)}

    def has(self, trial: str, evaluations: Iterable[Row]) -> bool:
        """Return whether every table of some evaluations, rows of `evaluations`, is there and sound."""
        return all(self._read(table, *key) is not None for key in _keys(trial, evaluations) for table in self._files)

    def bring(self, trial: str, evaluations: Iterable[Row], incoming: Path) -> None:
        """Write the tables of some evaluations below `incoming`, as the trial's own process would have.

        Raises OSError when the folder cannot be written to.
        """
        for key in _keys(trial, evaluations):
            for table in self._files:
                rows = self._read(table, *key)
                if rows is not None:
                    write_parquet(incoming / table / part_name(*key), rows.schema, rows.to_batches(), durable=True)

    def _read(self, table: str, trial: str, replicate: int, epoch: int) -> pa.Table | None:
        part = self._files[table].get(part_name(trial, replicate, epoch))
        if part is None:
            return None
        try:
            with pq.ParquetFile(part, page_checksum_verification=True) as file:
                rows = file.read()
        except (OSError, ValueError):
            # Whoever opens that sweep next is told; here the trial is trained instead.
            return None
        mine = (pc.field("trial") == trial) & (pc.field("replicate") == replicate) & (pc.field("epoch") == epoch)
        return rows.filter(mine).replace_schema_metadata(None)


def _evaluations_in(part: Path) -> list[str]:
    """Return the names of the evaluations a file holds: several for a merged one, none for one that is damaged."""
    try:
        listed = (pq.read_metadata(part).metadata or {}).get(MERGED_KEY)
    except (OSError, ValueError):
        return []
    return listed.decode().split() if listed is not None else [part.name]


def _keys(trial: str, evaluations: Iterable[Row]) -> list[tuple[str, int, int]]:
    return list(dict.fromkeys((trial, row["replicate"], row["epoch"]) for row in evaluations))


#: The manifest's list of sweeps that this one takes trials over from.
MANIFEST_KEY = "reuse"

_HARMLESS = {"header", "samples", "space", "retries", "trial_timeout", "hang_timeout", "checkpoint", "keep"}
_HARMLESS |= {"confirm", "searcher", "rehearsal", "rehearsed"}
"""Parts of a search space that change no number of a trial. Configurations are compared one by one."""


def choose_sources(
    spec: SweepSpec,
    facts: Mapping[str, object],
    output: str | Path,
    own_code: str | None = None,
    *,
    every: bool,
    named: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Return the sweeps below `output` whose trials a new sweep can reuse, the one that began last first.

    And a sentence for each of `every` that cannot be used, and why.

    Args:
        spec: of the new sweep.
        facts: of its data set, as its manifest will record them (`dataset_facts`).
        output: where sweeps are.
        own_code: the digest of the code of its own components, if it has any.
        every: look at all of them.
        named: look at these; that one of them cannot be used is an error.

    Raises SweeperError when a named sweep does not exist or cannot be used, naming every reason.
    """
    names, notes = list[str](), list[str]()
    for name in dict.fromkeys([*named, *(sweep_names(local_copies(output)) if every else ())]):
        try:
            reasons = _differences(spec, facts, own_code, _open(name, output, tables=False))
        except SweeperError as error:
            if name in named:
                raise
            reasons = [error.message]
        if not reasons:
            names.append(name)
        elif name in named:
            raise SweeperError(
                f"cannot reuse trials of {name!r}: {'; '.join(reasons)}",
                "make the search spaces agree on that, or omit --reuse-from",
            )
        else:
            notes.append(f"cannot reuse trials of {name}: {'; '.join(reasons)}")
    return names, notes


def reusable_trials(
    sweep: Sweep, wanted: Sequence[int], output: str | Path, incoming: Path
) -> Callable[[int], Iterator[TakenOver] | None]:
    """Return what gives the reports of a trial that a source has ended, in order, each saying where it comes from.

    The reports are read, and their tables copied into `incoming`, one at a time as they are asked for. Which
    configuration a searcher chooses is known only then: such a trial is compared when it is asked for.

    Args:
        sweep: the one that takes over, from the sweeps that its manifest names; one that is gone, or is damaged, has
            nothing to give.
        wanted: the configurations that are still to be run.
        output: where the sources are.
        incoming: where this sweep's trials leave their tables.
    """
    found: dict[int, list[tuple[str, Iterator[TakenOver]]]] = {}

    def reports_of(index: int) -> Iterator[TakenOver] | None:
        digest = _digest(sweep.configurations, index) if index in found else None
        return next((reports for there, reports in found.get(index, ()) if there == digest), None)

    for name in _manifest(sweep).get(MANIFEST_KEY, ()):
        try:
            source = _open(name, output, tables=True)
            ended = _ended_reports(source, sweep.configurations, [i for i in wanted if reports_of(i) is None])
        except SweeperError:
            continue
        tables = TablesOfTrials(source.paths)
        for index, reports in ended.items():
            if all(tables.has(trial_name(index), report.evaluations) for report, _ in reports):
                digest = config_hash(source.configurations[index])
                brought = _brought(reports, tables, trial_name(index), incoming)
                found.setdefault(index, []).append((digest, brought))
    return reports_of


def _brought(reports: Sequence[TakenOver], tables: TablesOfTrials, trial: str, incoming: Path) -> Iterator[TakenOver]:
    for report, source in reports:
        # As where it was trained: the tables first, then the record that makes them visible.
        tables.bring(trial, report.evaluations, incoming)
        yield report, source


def _open(name: str, output: str | Path, *, tables: bool) -> Sweep:
    return open_sweep(*local_copy(name, output, tables=tables))


def _differences(spec: SweepSpec, facts: Mapping[str, object], own_code: str | None, source: Sweep) -> list[str]:
    """Return what keeps a sweep's trials from being those of `spec`, a few words each."""
    here = _what_numbers_follow_from(spec, {**spec.dataset, **facts})
    there = _what_numbers_follow_from(source.spec, _manifest(source).get("dataset"))
    reasons = [f"its {key} differs" for key in here if here[key] != there[key]]
    if spec.is_rehearsal != source.spec.is_rehearsal:
        reasons.append("only one of the two is a rehearsal")
    if own_code != _manifest(source).get(OWN_CODE, {}).get("digest"):
        reasons.append("the code of its own components differs")
    if spec.replicates.packing == TRIALS:
        reasons.append("replicates in separate processes (packing: trials) cannot be reused")
    if not reasons and not _attempts_of_this_code(source):
        reasons.append("its code or package versions differ or are unknown")
    return reasons


def _manifest(sweep: Sweep) -> dict[str, Any]:
    return read_manifest(sweep.paths.manifest, unknown_if_damaged=True)


def _what_numbers_follow_from(spec: SweepSpec, dataset: object) -> dict[str, object]:
    """Return the parts of a search space that a trial's numbers depend on besides its configuration, as plain values.

    What is not known to be harmless counts, so that a setting that is added some day is compared without being named.
    """
    parts = {key: part for key, part in spec.model_dump(mode="json").items() if key not in _HARMLESS}
    parts |= {"dataset": dataset, "scheduler": spec.schedule.rungs, "objective": spec.objective.metric}
    return dict(json.loads(json.dumps(parts)))


def _attempts_of_this_code(source: Sweep) -> set[int]:
    """Return the drivers, by their attempt, that ran the code that runs now."""
    attempts = (record.body for record in read_journal(source.paths.journal) if isinstance(record.body, Attempt))
    return {body.attempt for body in attempts if body.code == code_version()}


def _digest(configurations: Sequence[Mapping[str, object]], index: int) -> str | None:
    """Return a configuration's hash; `None` where a searcher has not chosen it yet."""
    if isinstance(configurations, Configurations) and not configurations.known(index):
        return None
    return config_hash(configurations[index])


def _ended_reports(
    source: Sweep, here: Sequence[Mapping[str, object]], wanted: Sequence[int]
) -> dict[int, list[TakenOver]]:
    """Return the reports of the source's trials that ended well, ran this code only, and may be the same here.

    Raises SweeperError when the source's journal is damaged.
    """
    attempts, there = _attempts_of_this_code(source), source.configurations
    digests = {i: _digest(there, i) for i in wanted if i < len(there)}
    same = {i for i, digest in digests.items() if digest is not None and _digest(here, i) in (None, digest)}
    state, reports = SweepState(len(there)), dict[int, list[TakenOver]]()
    for record in read_journal(source.paths.journal):
        state.apply(record)
        body = record.body
        if isinstance(body, Reported) and body.configuration in same:
            if body.attempt not in attempts:
                same.discard(body.configuration)
            reports.setdefault(body.configuration, []).append((body.report, Reused(source.name, record.sequence)))
    ended = {i for i in same if state.trials[i].status in (COMPLETED, EARLY_STOPPED)}
    return {index: reports[index] for index in sorted(ended)}


#: The manifest's list of what was learned from which sweep.
LEARNED = "warm_start"


def lessons(
    spec: SweepSpec, facts: Mapping[str, object], output: str | Path, known: Mapping[str, object] | None = None
) -> list[Learned]:
    """Return what the sweeps of `searcher.warm_start` teach, in that order.

    Args:
        spec: of the sweep that begins.
        facts: of its data set, as its manifest records them (`sweeper.planning.preparation.dataset_facts`).
        output: where sweeps are; a name may also be a path, or an address in a store.
        known: sweeps whose lessons the journal has already; they are not opened.

    Raises:
        InvalidSearchSpace: with every sweep that does not exist, cannot be read, or measured something else.
    """
    found, faults = list[Learned](), list[Fault]()
    for index, name in enumerate(dict.fromkeys(spec.searcher.warm_start)):
        if known and name in known:
            continue
        place = f"searcher.warm_start[{index}]"
        try:
            source = _open(name, output, tables=False)
            reasons = _unlike(spec, facts, source)
            if reasons:
                rule = f"cannot warm-start from {name!r}: {'; '.join(reasons)}"
                faults.append(Fault(place, rule, "make the two sweeps agree on that, or remove it from warm_start"))
            else:
                found.append(_lesson(spec, source, name))
        except SweeperError as error:
            faults.append(Fault(place, error.message, error.remedy))
    if faults:
        raise InvalidSearchSpace(faults)
    return found


def summary(learned: Learned) -> dict[str, object]:
    """Return what the manifest says of a lesson."""
    return {"sweep": learned.sweep, "observations": len(learned.observations), "outside": learned.outside}


def _lesson(spec: SweepSpec, source: Sweep, name: str) -> Learned:
    """Return the objective at the end of every finished trial in the space, and how many lie outside of it."""
    state = fold(read_journal(source.paths.journal), len(source.configurations))
    observations, outside = list[Observation](), 0
    for index, trial in state.trials.items():
        value = trial.objective
        if trial.status != COMPLETED or value is None or not math.isfinite(value):
            continue
        choices = choices_of(spec.space, source.configurations[index])
        if choices is None:
            outside += 1
        else:
            observations.append(Observation(trial_name(index), choices, value))
    return Learned(0, name, observations, outside)  # the attempt is that of who journals it


def _unlike(spec: SweepSpec, facts: Mapping[str, object], source: Sweep) -> list[str]:
    """Return why a source's objectives are not those of `spec`, a few words each."""
    here, there = spec.objective, source.spec.objective
    reasons = []
    if here != there:
        reasons.append(f"its objective is {there.mode} {there.metric}, not {here.mode} {here.metric}")
    if source.spec.scheduler.max_epochs != spec.scheduler.max_epochs:
        reasons.append(f"its max_epochs is {source.spec.scheduler.max_epochs}, not {spec.scheduler.max_epochs}")
    # Where nothing is known of what it ran on, it cannot be said to be the same.
    if json.loads(json.dumps({**spec.dataset, **facts})) != _manifest(source).get("dataset"):
        reasons.append("its data set or split differs")
    bins = source.spec.evaluation.bins
    if here.metric.endswith(("ece", "mce")) and bins != spec.evaluation.bins:
        reasons.append(f"its calibration errors have {bins} bins, not {spec.evaluation.bins}")
    if spec.is_rehearsal != source.spec.is_rehearsal:
        reasons.append("only one of the two is a rehearsal")
    return reasons
