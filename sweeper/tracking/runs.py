"""The runs of a sweep and their points, computed from its journal for any tracker.

A sweep has one parent run and one child run for each trial. A run is identified by its tags, so any process can find
it. Points of metrics are means over replicates and their standard deviations. A point's time is the time of its journal
record. For a recalibration, it is the time at which its rows were first written; the file stays unchanged if the rows
are equal. So a point that is sent twice is the same point, and a changed value is a newer point.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeper.core.domains.values import part_of
from sweeper.core.ids import SweepPaths, trial_name
from sweeper.core.labels import STATUS_WORDS, describe, plural, symbols_of
from sweeper.core.schemas import REHEARSAL
from sweeper.journal.journal import generation
from sweeper.journal.reasons import decision_text, reason_text
from sweeper.journal.records import Ended, Record, Reported, Suggested, configuration_of
from sweeper.journal.segments import sweep_id
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, ENDED, INTERRUPTED, RUNNING, WAITING, SweepState, TrialState
from sweeper.storage.metadata import quantities_of
from sweeper.tables.rows import FINAL, JournalRows
from sweeper.tracking.base import DIAGRAM_TAG, SWEEP_RUN, Point, RunUpdate, TrackedSweep
from sweeper.tracking.points import FINISHED, MOST_TRIALS, Measured, epoch_points, evaluation_points, is_core, thinned
from trainables.registry import Configuration
from trainables.worker.trial_reports import Row, TrialReport, of_kept_weights

#: The tag that separates runs made after records were quarantined from runs made before.
GENERATION_TAG = "journal_generation"

#: Longer tag values are cut: MLflow's servers refuse them (MLflow 3).
LONGEST_TEXT = 5000

#: Prefix of the names of runs that were stopped early, because MLflow shows them as finished.
STOPPED_SIGN = "○ "

#: Group of the metrics that the sweep's run has of the recommended configuration.
RECOMMENDED = "recommended"

#: Longer names of runs are cut; no page shows more.
LONGEST_NAME = 120

#: Tags that both the sweep's run and its trials' runs have.
EVERYWHERE = frozenset({REHEARSAL, "version", "own_code", "source", "source_type", "git_commit", "user"})

#: Attributes of a trial that become tags of its run, under the same names.
FACTS = ("attempt", "epochs", "stop_kind", "stop_rung", "device", "packing")


class RunProjection:
    """Folds the journal and returns the data that each run lacks. Its memory grows with trials, not with records."""

    def __init__(self, sweep: TrackedSweep, identity: Mapping[str, str], known: Mapping[int, int]) -> None:
        """Begin before the first record.

        Args:
            sweep: the sweep.
            identity: tags of all its runs, see `identity_of`.
            known: place → newest record that the tracker's run has; earlier points are not logged again.
        """
        self.state = SweepState(len(sweep.configurations))
        self._sweep, self._identity, self._known = sweep, identity, known
        self._tags, self._symbols = _sweep_tags(sweep), symbols_of(quantities_of(sweep.manifest))
        self._rows = JournalRows()
        self._began: dict[int, int] = {}
        self._changed_at: dict[int, int] = {}
        self._points: dict[int, list[Point]] = {}
        self._texts: dict[int, dict[str, str]] = {}
        self._verdicts: Mapping[int, Mapping[str, str]] = {}
        self._touched: set[int] = set()
        self._newest = 0
        #: Number of points that wait to be taken.
        self.pending_points = 0

    def apply(self, record: Record) -> None:
        """Add one record; records come in order."""
        milliseconds = self._newest = round(record.time * 1000)
        for place in self._places(record):
            self._began.setdefault(place, milliseconds)
            self._changed_at[place] = milliseconds
            if record.sequence > self._known.get(place, -1):
                self._touched.add(place)
        self.state.apply(record)
        if isinstance(record.body, Ended):
            counts = self.state.count()
            self._measure_sweep({f"trials_{status}": float(counts[status]) for status in sorted(ENDED)})
        rows = self._rows.project(record)
        configuration = configuration_of(record.body)
        if rows and configuration is not None and configuration in self._touched:
            evaluations = rows.get("evaluations", ())
            epochs = thinned(rows.get("epochs", ()), self._sweep.spec.scheduler.max_epochs, evaluations)
            epochs = of_kept_weights(epochs, evaluations)
            measured = [*epoch_points(epochs), *evaluation_points(evaluations, self._logged)]
            if isinstance(record.body, Reported) and record.body.status == COMPLETED:
                measured += self._finished(record.body.report, [*measured])
            points = self._points.setdefault(configuration, [])
            points += [Point(key, value, milliseconds, step) for key, value, step in measured]
            self.pending_points += len(measured)
            self._texts.setdefault(configuration, {}).update(unavailable_texts(evaluations))

    def _finished(self, report: TrialReport, measured: Iterable[tuple[str, float, int]]) -> Measured:
        """Yield the objective and test metrics of a trial that ran to the end, so that only such trials are ranked."""
        if self.state.trials[report.configuration].added is not None:
            return  # an added seed, whose configuration is ranked already
        if report.objective is not None and math.isfinite(report.objective):
            yield f"finished/{self._sweep.spec.objective.metric}", report.objective, report.epoch
        for key, value, step in measured:
            if key in FINISHED and step == report.epoch:
                yield f"finished/{key.rpartition('/')[2]}", value, step

    def _logged(self, column: str) -> bool:
        """Return whether a column of evaluations becomes points; the largest sweeps log only some."""
        if len(self._sweep.configurations) <= MOST_TRIALS or is_core(column):
            return True
        return self._sweep.spec.objective.metric.endswith(f"_{column}")

    def recommend(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of the recommended configuration to the sweep's run."""
        self._measure_sweep({f"{RECOMMENDED}/{name}": value for name, value in metrics.items()})
        self._touched.add(SWEEP_RUN)

    def judge(self, tags: Mapping[int, Mapping[str, str]]) -> None:
        """Add the verdicts of the first screen to the trials' runs."""
        self._verdicts = tags
        self._touched |= tags.keys() & self._began.keys()

    def tag_sweep(self, key: str, value: str) -> None:
        """Add a tag to the sweep's run."""
        self._tags[key] = value
        self._touched.add(SWEEP_RUN)

    def _measure_sweep(self, metrics: Mapping[str, float]) -> None:
        points = [Point(key, value, self._newest, self.state.attempt) for key, value in metrics.items()]
        self._points.setdefault(SWEEP_RUN, []).extend(points)

    def add(self, place: int, points: Sequence[Point]) -> None:
        """Add points that are not in the journal to a trial's run; a trial that never started has none."""
        if points and place in self._began:
            self._points.setdefault(place, []).extend(points)
            self.pending_points += len(points)
            self._touched.add(place)

    def take(self, *, abandoned: bool = False, diagrams: Mapping[int, int] | None = None) -> list[RunUpdate]:
        """Return an update for every run that lacks data, the parent run first; the next call does not return it again.

        Args:
            abandoned: whether the driver died, so that running trials are interrupted.
            diagrams: configurations that get a new diagram, with its epoch.
        """
        diagrams = diagrams or {}
        self._touched |= diagrams.keys()
        if abandoned and self.state.outcome is None:
            running = (index for index, trial in self.state.trials.items() if trial.status == RUNNING)
            self._touched |= {SWEEP_RUN, *running}
        updates = [
            self._sweep_update(abandoned) if place == SWEEP_RUN else self._trial_update(place, abandoned)
            for place in sorted(self._touched)  # `SWEEP_RUN` is −1: children need their parent's run
        ]
        self._touched.clear()
        self._points, self._texts, self.pending_points = {}, {}, 0
        for update in updates:
            if update.place in diagrams:
                update.tags[DIAGRAM_TAG] = str(diagrams[update.place])
        return updates

    def _places(self, record: Record) -> list[int]:
        """Return the places that a record changes; a trial has a run from its start on."""
        if isinstance(record.body, Suggested):
            return []
        configuration = configuration_of(record.body)
        if configuration is not None:
            return [configuration]
        # A driver's start or end interrupts running trials.
        return [SWEEP_RUN, *(index for index, trial in self.state.trials.items() if trial.status == RUNNING)]

    def name_of(self, index: int) -> str:
        """Return the name of a trial's run: the trial and its varying hyperparameters, for charts' legends."""
        columns = self._configuration(index).columns
        return f"{self._trial(index)} {describe(columns, self._sweep.varying, self._symbols)}"[:LONGEST_NAME]

    def _trial(self, index: int) -> str:
        """Return the name of a trial; for an added seed, which has a separate run, append its replicate's number."""
        added = self.state.trials[index].added if index in self.state.trials else None
        return trial_name(index) if added is None else f"{trial_name(added.trial)}-r{added.replicate}"

    def _configuration(self, index: int) -> Configuration:
        return self.state.values_of(index) or self._sweep.configurations[index]

    def _trial_update(self, index: int, abandoned: bool) -> RunUpdate:
        trial = self.state.trials[index]
        status = INTERRUPTED if abandoned and trial.status == RUNNING else trial.status
        configuration = self._configuration(index)
        named = configuration.get("dataset")
        flat = {key: value for key, value in configuration.columns.items() if value is not None}
        tags = {key: value for key, value in self._tags.items() if key in EVERYWHERE}
        tags |= {"status": status, **_trial_tags(trial), **self._texts.get(index, {})}
        tags |= self._verdicts.get(index, {})
        reason = tags.get("decision") or tags.get("error")
        described = describe(configuration.columns, self._sweep.varying, self._symbols)
        tags["note"] = _text("\n\n".join(filter(None, [described, STATUS_WORDS[status], reason])))
        return RunUpdate(
            place=index,
            name=f"{STOPPED_SIGN if status == EARLY_STOPPED else ''}{self.name_of(index)}",
            identity={
                **self._identity,
                "configuration": str(index),
                "trial": self._trial(index),
                "config_hash": configuration.digest,
            },
            start_time=self._began[index],
            status=status,
            # Pages show end minus start as duration; the time in which the trial paused does not count.
            end_time=None if status in (RUNNING, WAITING) else self._began[index] + round(1000 * trial.wall_seconds),
            params={key: _text(flat[key]) for key in sorted(flat, key=lambda key: key not in self._sweep.varying)},
            tags=tags,
            points=self._points.get(index, []),
            sequence=self.state.sequence,
            dataset=named if isinstance(named, Mapping) else self._sweep.spec.dataset,
        )

    def _sweep_update(self, abandoned: bool) -> RunUpdate:
        outcome = self.state.outcome or (INTERRUPTED if abandoned else RUNNING)
        ended_at = None if outcome == RUNNING else self._changed_at[SWEEP_RUN]
        return RunUpdate(
            place=SWEEP_RUN,
            name=self._sweep.paths.name,
            identity={**self._identity, "configuration": "sweep"},
            start_time=self._began[SWEEP_RUN],
            status=outcome,
            end_time=ended_at,
            tags={**self._tags, "status": outcome, "attempt": str(self.state.attempt)},
            points=self._points.get(SWEEP_RUN, []),
            sequence=self.state.sequence,
        )


def identity_of(paths: SweepPaths) -> dict[str, str]:
    """Return the tags that identify all runs of a sweep; its journal must have a record."""
    quarantined = generation(paths.journal)
    own = {GENERATION_TAG: quarantined} if quarantined else {}
    return {"sweep": paths.name, "sweep_id": sweep_id(paths.journal), **own}


def _sweep_tags(sweep: TrackedSweep) -> dict[str, str]:
    """Return the constant tags of the sweep's run."""
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
        "note": "\n\n".join(text for text in (spec.header.question, spec.header.expected, _in_short(sweep)) if text),
    }
    return {key: str(value) for key, value in facts.items() if value not in (None, "")}


def _in_short(sweep: TrackedSweep) -> str:
    """Describe a sweep in one sentence."""
    spec = sweep.spec
    trials, seeds = plural(len(sweep.configurations), "configuration"), plural(spec.replicates.count, "seed")
    return (
        f"{trials} × {seeds} on {spec.dataset.get('name')}, compared by {spec.objective.mode} {spec.objective.metric}."
    )


def _source_name(manifest: Mapping[str, Any]) -> str:
    """Return the search space that the command names, e.g. `quickstart`, else the program's name."""
    words = [str(word) for word in manifest.get("command") or ()]
    named = [word for word in words[words.index("run") + 1 :] if not word.startswith("-")] if "run" in words else []
    return named[0] if named else "sweeper"


def unavailable_texts(rows: Iterable[Row]) -> dict[str, str]:
    """Return the reasons of unavailable measurements, `posthoc_…_unavailable` and `hessian_unavailable`."""
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
