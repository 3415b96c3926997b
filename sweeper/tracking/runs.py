"""What trackers show of a sweep, computed from its journal: runs, and their points. Knows nothing of any tracker.

One parent run a sweep and one child run a trial; a run is known by its tags, so whoever looks next finds it again.
Points of metrics are means over replicates, and their spread. A point's time is its journal record's, or when a
recalibration's rows were first written: recalibrating to the same rows leaves the file alone. So a point that is sent
twice is the same point, and changed values are newer ones.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sweeper.analysis.recalibration import method_label
from sweeper.core.ids import SweepPaths, config_hash, configuration_index, flatten_configuration, trial_name
from sweeper.core.json_types import part_of
from sweeper.core.schemas import EPOCHS_SCHEMA, REHEARSAL
from sweeper.journal.journal import generation
from sweeper.journal.records import Record, Suggested, configuration_of
from sweeper.journal.segments import contents
from sweeper.journal.state import EARLY_STOPPED, ENDED, INTERRUPTED, RUNNING, WAITING, SweepState, TrialState
from sweeper.tables.generations import RecalibrationPart
from sweeper.tables.rows import FINAL, JournalRows
from sweeper.text.cells import grouped
from sweeper.text.labels import describe
from sweeper.text.reasons import decision_text, reason_text
from sweeper.tracking.base import DIAGRAM_TAG, SWEEP_RUN, Point, RunUpdate, TrackedSweep
from trainables.curvature.statistics.base import headline_columns
from trainables.registry.names import CORRUPTED, corruption_of, is_corrupted
from trainables.worker.trial_reports import Row, of_kept_weights

#: The tag that distinguishes runs of a journal some of whose records were quarantined from earlier ones.
GENERATION_TAG = "journal_generation"

#: Longer tag values are cut: MLflow's servers refuse them (MLflow 3).
LONGEST_TEXT = 5000

#: Before the names of runs whose trials were stopped early: MLflow calls these finished, too.
STOPPED_SIGN = "○ "

#: Longer names of runs are cut: no page shows more of them.
LONGEST_NAME = 120

#: Tags of the sweep's run that its trials' carry, too.
EVERYWHERE = frozenset({REHEARSAL, "version", "own_code", "source", "source_type", "git_commit", "user"})

#: Metric, value and epoch of each point.
Measured = Iterator[tuple[str, float, int]]

#: Facts of a trial that are tags of its run under their own names.
FACTS = ("attempt", "epochs", "stop_kind", "stop_rung", "device", "packing")


class RunProjection:
    """Folds the journal and returns what each run lacks. Its memory grows with trials, not with records."""

    def __init__(self, sweep: TrackedSweep, identity: Mapping[str, str], known: Mapping[int, int]) -> None:
        """Begin before the first record.

        Args:
            sweep: whose journal it is.
            identity: the tags that all its runs are found by, see `identity_of`.
            known: place → newest record that the store's run holds already; its points are not logged again.
        """
        self.state = SweepState(len(sweep.configurations))
        self._sweep, self._identity, self._known = sweep, identity, known
        self._tags = _sweep_tags(sweep)
        self._every = epochs_between_points(sweep.spec.scheduler.max_epochs)
        self._rows = JournalRows()
        self._began: dict[int, int] = {}
        self._changed_at: dict[int, int] = {}
        self._points: dict[int, list[Point]] = {}
        self._texts: dict[int, dict[str, str]] = {}
        self._touched: set[int] = set()
        #: How many points wait to be taken.
        self.pending_points = 0

    def apply(self, record: Record) -> None:
        """Fold one record in; records come in order."""
        milliseconds = round(record.time * 1000)
        for place in self._places(record):
            self._began.setdefault(place, milliseconds)
            self._changed_at[place] = milliseconds
            if record.sequence > self._known.get(place, -1):
                self._touched.add(place)
        self.state.apply(record)
        rows = self._rows.project(record)
        configuration = configuration_of(record.body)
        if rows and configuration is not None and configuration in self._touched:
            evaluations = rows.get("evaluations", ())
            epochs = thinned(rows.get("epochs", ()), self._every, evaluations)
            epochs = of_kept_weights(epochs, evaluations)
            measured = [*epoch_points(epochs), *evaluation_points(evaluations, self._logged)]
            points = self._points.setdefault(configuration, [])
            points += [Point(key, value, milliseconds, step) for key, value, step in measured]
            self.pending_points += len(measured)
            self._texts.setdefault(configuration, {}).update(unavailable_texts(evaluations))

    def _logged(self, column: str) -> bool:
        """Return whether a column of evaluations becomes points: all of them, but for the largest sweeps."""
        if len(self._sweep.configurations) <= MOST_TRIALS or is_core(column):
            return True
        return self._sweep.spec.objective.metric.endswith(f"_{column}")

    def add(self, place: int, points: Sequence[Point]) -> None:
        """Add points that are not in the journal to a run whose trial is; a trial that never began has no run."""
        if points and place in self._began:
            self._points.setdefault(place, []).extend(points)
            self.pending_points += len(points)
            self._touched.add(place)

    def take(self, *, abandoned: bool = False, diagrams: Mapping[int, int] | None = None) -> list[RunUpdate]:
        """Return what every run lacks, the parent first; afterwards nothing is lacking.

        Args:
            abandoned: the driver is gone without a word, so what seems to run is interrupted.
            diagrams: the configurations that get a new one, with its epoch.
        """
        diagrams = diagrams or {}
        self._touched |= diagrams.keys()
        if abandoned and self.state.outcome is None:
            running = (index for index, trial in self.state.trials.items() if trial.status == RUNNING)
            self._touched |= {SWEEP_RUN, *running}
        updates = [
            self._sweep_update(abandoned) if place == SWEEP_RUN else self._trial_update(place, abandoned)
            for place in sorted(self._touched)
        ]
        self._touched.clear()
        self._points, self._texts, self.pending_points = {}, {}, 0
        for update in updates:
            if update.place in diagrams:
                update.tags[DIAGRAM_TAG] = str(diagrams[update.place])
        return updates

    def _places(self, record: Record) -> list[int]:
        """Return the runs that a record changes; a trial has one from its start on."""
        if isinstance(record.body, Suggested):
            return []
        configuration = configuration_of(record.body)
        if configuration is not None:
            return [configuration]
        # Drivers that start or end change what was running to interrupted.
        return [SWEEP_RUN, *(index for index, trial in self.state.trials.items() if trial.status == RUNNING)]

    def name_of(self, index: int) -> str:
        """Return the name of a trial's run: the trial, and what distinguishes it from others, for charts' legends."""
        flat = flatten_configuration(self._configuration(index))
        return f"{self._trial(index)} {describe(flat, self._sweep.varying)}"[:LONGEST_NAME]

    def _trial(self, index: int) -> str:
        """Return the name of a trial; of an added seed with its number, for it has a run of its own."""
        added = self.state.trials[index].added if index in self.state.trials else None
        return trial_name(index) if added is None else f"{trial_name(added.trial)}-r{added.replicate}"

    def _configuration(self, index: int) -> Mapping[str, object]:
        return self.state.values_of(index) or self._sweep.configurations[index]

    def _trial_update(self, index: int, abandoned: bool) -> RunUpdate:
        trial = self.state.trials[index]
        status = INTERRUPTED if abandoned and trial.status == RUNNING else trial.status
        configuration = self._configuration(index)
        named = configuration.get("dataset")
        flat = {key: value for key, value in flatten_configuration(configuration).items() if value is not None}
        tags = {key: value for key, value in self._tags.items() if key in EVERYWHERE}
        tags |= {"status": status, **_trial_tags(trial), **self._texts.get(index, {})}
        return RunUpdate(
            place=index,
            name=f"{STOPPED_SIGN if status == EARLY_STOPPED else ''}{self.name_of(index)}",
            identity={
                **self._identity,
                "configuration": str(index),
                "trial": self._trial(index),
                "config_hash": config_hash(configuration),
            },
            start_time=self._began[index],
            status=status,
            # What a page calls its duration: without the time in which it paused.
            end_time=None if status in (RUNNING, WAITING) else self._began[index] + round(1000 * trial.wall_seconds),
            params={key: _text(flat[key]) for key in sorted(flat, key=lambda key: key not in self._sweep.varying)},
            tags=tags,
            points=self._points.get(index, []),
            sequence=self.state.sequence,
            dataset=named if isinstance(named, Mapping) else self._sweep.spec.dataset,
        )

    def _sweep_update(self, abandoned: bool) -> RunUpdate:
        outcome = self.state.outcome or (INTERRUPTED if abandoned else RUNNING)
        counts = self.state.count()
        ended_at = None if outcome == RUNNING else self._changed_at[SWEEP_RUN]
        points = [
            Point(f"trials_{status}", float(counts[status]), ended_at, self.state.attempt)
            for status in sorted(ENDED)
            if ended_at is not None and self.state.outcome is not None
        ]
        return RunUpdate(
            place=SWEEP_RUN,
            name=self._sweep.paths.name,
            identity={**self._identity, "configuration": "sweep"},
            start_time=self._began[SWEEP_RUN],
            status=outcome,
            end_time=ended_at,
            tags={**self._tags, "status": outcome, "attempt": str(self.state.attempt)},
            points=points + self._points.get(SWEEP_RUN, []),
            sequence=self.state.sequence,
        )


def identity_of(paths: SweepPaths) -> dict[str, str]:
    """Return the tags that all runs of a sweep have and are found by; its journal has a record at least."""
    quarantined = generation(paths.journal)
    own = {GENERATION_TAG: quarantined} if quarantined else {}
    return {"sweep": paths.name, "sweep_id": sweep_id(paths.journal), **own}


def sweep_id(journal: Path) -> str:
    """Return what tells a sweep from others of its name, on any server; its journal has a record at least.

    The first record names host, process and time.
    """
    return hashlib.sha256(next(contents(journal)).data).hexdigest()[:16]


def _sweep_tags(sweep: TrackedSweep) -> dict[str, str]:
    """Return the tags of the sweep's run, but for those that change."""
    spec, manifest = sweep.spec, sweep.manifest
    facts: dict[str, object] = {
        "dataset": spec.dataset.get("name"),
        "objective": f"{spec.objective.mode} {spec.objective.metric}",
        "scheduler": spec.scheduler.name,
        "max_epochs": spec.scheduler.max_epochs,
        "replicates": spec.replicates.count,
        "seed": spec.seed,
        "version": part_of(manifest, "versions", "calibration-sweeper"),
        "source": _source_name(manifest),
        "source_type": "LOCAL",
        "git_commit": part_of(manifest, "git", "commit"),
        "user": str(manifest.get("submitter") or "").partition("@")[0],
        "own_code": part_of(manifest, "extensions", "digest"),
        "results": sweep.paths.root,
        "rehearsal": "true" if spec.is_rehearsal else "",
        "note": "\n\n".join(text for text in (spec.header.question, spec.header.expected) if text),
    }
    return {key: str(value) for key, value in facts.items() if value not in (None, "")}


def _source_name(manifest: Mapping[str, Any]) -> str:
    """Return the search space that the command named, e.g. `quickstart`; else the program's name."""
    words = [str(word) for word in manifest.get("command") or ()]
    named = [word for word in words[words.index("run") + 1 :] if not word.startswith("-")] if "run" in words else []
    return named[0] if named else "sweeper"


def unavailable_texts(rows: Iterable[Row]) -> dict[str, str]:
    """Return the reasons why something could not be measured, `posthoc_…_unavailable` and `hessian_unavailable`."""
    return {
        column: _text(value)
        for row in rows
        for column, value in row.items()
        if column.endswith("_unavailable") and value is not None
    }


def _trial_tags(trial: TrialState) -> dict[str, str]:
    facts = {name: getattr(trial, name) for name in FACTS}
    facts["stage"] = None if trial.added is None else FINAL
    facts["decision"] = None if trial.decision is None else decision_text(trial.decision)
    facts["error"] = None if trial.failure is None else reason_text(trial.failure)
    return {key: _text(value) for key, value in facts.items() if value is not None}


def _text(value: object) -> str:
    return str(value)[:LONGEST_TEXT]


#: What a post-hoc method can move; all other metrics are in the table.
RECALIBRATED = ("accuracy", "nll", "brier", "ece", "ada_ece", "mce", "cw_ece", "aurc")

FITTED = ("temperature", "gamma")

#: MLflow takes 250 characters; the metric and `_std` come after.
LONGEST_KEY = 200

_KEY_COLUMNS = frozenset({"trial", "replicate", "epoch", "split", "stage"})
_EPOCH_METRICS = frozenset(EPOCHS_SCHEMA.names) - _KEY_COLUMNS


#: Columns that say how a number was computed: no metrics; the tables have them.
UNLOGGED = re.compile(r".*_(matvecs|residual|samples|converged|at_bound)")

#: Sweeps of more trials log the `CORE` of an evaluation. MLflow's SQLite file takes 0.5 kB for a metric of a run (its
#: primary key and two indexes repeat each row): 110 metrics of 10,000 trials were 577 MB, beside 404 MB of all else.
MOST_TRIALS = 2000

#: What is compared: columns of evaluations that the largest sweeps log, too; so are curvature's headlines and the
#: objective.
CORE = re.compile(
    r"accuracy|nll|brier|ece|ada_ece|cw_ece|mce|aurc|(refinement|calibration)_nll"
    r"|posthoc_.*_(nll|temperature|gamma)|posthoc_.*(?<!_ada)(?<!_cw)_ece"
)

#: Points of one measurement in one run, but for those at evaluations: pages that compare a hundred runs fetch them all,
#: and draw 320 of each at most. The tables have every epoch.
MOST_EPOCHS = 1000


def epochs_between_points(max_epochs: int) -> int:
    """Return the distance in epochs at which a run of `max_epochs` has no more than `MOST_EPOCHS` points."""
    return -(-max_epochs // MOST_EPOCHS)


def thinned(rows: Iterable[Row], every: int, evaluations: Iterable[Row]) -> list[Row]:
    """Return the epoch rows of a report that become points: each `every`-th epoch's, and those that were evaluated."""
    evaluated = {row["epoch"] for row in evaluations}
    return [row for row in rows if row["epoch"] % every == 0 or row["epoch"] in evaluated]


def epoch_points(rows: Iterable[Row]) -> Measured:
    """Yield (metric, value, epoch) of epoch rows: the mean over replicates and, of several, its `…_std`."""
    for epoch, group in grouped(rows, itemgetter("epoch")).items():
        yield from _mean_and_spread(group, "", epoch)


def is_core(column: str) -> bool:
    """Return whether the largest sweeps log a column of evaluations."""
    return CORE.fullmatch(column) is not None or column in headline_columns()


def evaluation_points(rows: Iterable[Row], logged: Callable[[str], bool] = lambda column: True) -> Measured:
    """Yield (metric, value, epoch) of evaluation rows, named after their split except for the Hessian's.

    Only columns that are `logged`, and of those that say how a number was computed none.

    What the epoch rows measured on the validation split already (`val_nll` …) is not given a second time. Of corrupted
    splits each severity's mean over kinds is given, as `corrupted_3_ece`: the table has a row for each kind.
    """
    rows = [*rows]
    means = _over_kinds(row for row in rows if is_corrupted(str(row.get("split"))))
    plain = [row for row in rows if not is_corrupted(str(row.get("split")))]
    for (epoch, split), group in grouped([*plain, *means], itemgetter("epoch", "split")).items():
        yield from _mean_and_spread(group, f"{split}_", epoch, logged)


def _over_kinds(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield a row for each replicate, epoch and severity: the means over kinds of what all kinds have."""
    named = ({**row, "split": f"{CORRUPTED}{corruption_of(row['split'])[1]}"} for row in rows)
    for (replicate, epoch, split), group in grouped(named, itemgetter("replicate", "epoch", "split")).items():
        columns = [c for c in group[0] if c not in _KEY_COLUMNS]
        numbers = {c: [row[c] for row in group if isinstance(row.get(c), (int, float))] for c in columns}
        means = {c: math.fsum(found) / len(found) for c, found in numbers.items() if len(found) == len(group)}
        yield {"replicate": replicate, "epoch": epoch, "split": split, **means}


def _mean_and_spread(
    rows: Sequence[Row], prefix: str, epoch: int, logged: Callable[[str], bool] = lambda column: True
) -> Measured:
    for column in dict.fromkeys(column for row in rows for column in row if column not in _KEY_COLUMNS):
        before = "" if column.startswith("hessian_") else prefix
        if logged(column) and not UNLOGGED.fullmatch(column) and not (prefix and before + column in _EPOCH_METRICS):
            yield from mean_and_spread(rows, (column,), before, epoch)


def mean_and_spread(rows: Sequence[Row], columns: Iterable[str], prefix: str, epoch: int) -> Measured:
    """Yield (prefix + column, mean over the rows that have a value, epoch) and, of several values, its `…_std`.

    A standard error's own spread, and that of the learning rate, which is everybody's, tell nothing.
    """
    for column in columns:
        values = [row[column] for row in rows if isinstance(row.get(column), (int, float))]
        if not values:
            continue
        mean = math.fsum(values) / len(values)
        yield prefix + column, mean, epoch
        if len(values) > 1 and column != "lr" and not column.endswith("_se"):
            deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
            yield f"{prefix}{column}_std", deviation, epoch


def recalibration_points(part: RecalibrationPart) -> Iterator[tuple[int, list[Point]]]:
    """Yield (configuration, points) of one file: means over replicates and, of several, their `…_std`.

    Keys are `recalibrated_<method>_<options>_bins<n>/<split>_<metric>`, which MLflow's pages show as one group.
    """
    table, found = pq.read_table(part.path).to_pylist(), dict[int, list[Point]]()
    for (trial, epoch, split), rows in grouped(table, itemgetter("trial", "epoch", "split")).items():
        prefix = _prefix(rows[0]["method"], json.loads(rows[0]["options"]), rows[0]["bins"])
        measured = [*mean_and_spread(rows, RECALIBRATED, f"{prefix}/{split}_", epoch)]
        if split == "val":
            measured += mean_and_spread(rows, FITTED, f"{prefix}/", epoch)
        points = found.setdefault(configuration_index(trial), [])
        points += [Point(key, value, part.written, step) for key, value, step in measured]
    yield from found.items()


def _prefix(method: str, options: Mapping[str, Any], bins: int) -> str:
    """Return a name that MLflow allows: letters, digits, `_`, `-`, `.`, `:`, space and `/`."""
    words = method_label(method, options).replace("=", ":")
    return f"recalibrated_{re.sub(r'[^A-Za-z0-9_.:-]+', '_', words).strip('_')[:LONGEST_KEY]}_bins{bins}"
