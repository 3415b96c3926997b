"""Rows of the tables from the journal: the rows that a record adds, and `trials` from the journal's state.

Every projection of the journal (Parquet, trackers) uses `JournalRows`, so all of them show the same rows. A trial that
restarted from an older checkpoint measures some epochs again. The row that was journaled first is kept, because readers
may have seen it.

`trials` has one row per trial and replicate of all configurations, including waiting ones. If a searcher chooses
configurations, hyperparameters are null until their configuration is chosen. A seed added to a trial is a further
replicate, whose evaluation and decisions have the stage `final`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sweeper.core.ids import ReplicateSeeds, config_hash, flatten_configuration, trial_name
from sweeper.core.schemas import ARITHMETIC, REHEARSAL, record_batch
from sweeper.journal.reasons import reason_text
from sweeper.journal.records import Added, AddedSeed, Decision, Judged, Record, Reported
from sweeper.journal.state import FAILED, ReplicateState, SweepState, TrialState
from trainables.worker.trial_reports import Failure, Row

#: The tables whose rows travel through the journal.
SCALAR_TABLES = ("epochs", "evaluations", "decisions")

#: The stage of evaluations of added seeds, and of decisions on them.
FINAL = "final"


class JournalRows:
    """Converts records, in order, to rows without repetitions. Its memory grows with trials, not with records."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int, int, str | None], int] = {}
        self._decided: dict[int, tuple[int, set[str]]] = {}
        self._added: dict[int, int] = {}

    def project(self, record: Record) -> dict[str, list[Row]]:
        """Return the rows that `record` adds, by table; empty if it adds none."""
        body = record.body
        if isinstance(body, Added):
            self._added |= {seed.configuration: seed.trial for seed in body.seeds}
        if isinstance(body, Judged):
            return {"decisions": [self._decision_row(body.configuration, body.epoch, body.decision, record.time)]}
        if not isinstance(body, Reported):
            return {}
        rows = {
            "epochs": list(self._measured("epochs", body.configuration, body.report.epochs)),
            "evaluations": list(self._measured("evaluations", body.configuration, body.report.evaluations)),
            "decisions": self._decision(body, record.time),
        }
        return {table: added for table, added in rows.items() if added}

    def _measured(self, table: str, configuration: int, rows: Iterable[Row]) -> Iterator[Row]:
        trial = trial_name(self._added.get(configuration, configuration))
        final = {"stage": FINAL} if table == "evaluations" and configuration in self._added else {}
        for row in rows:
            key = (table, configuration, row["replicate"], row.get("split"))
            if row["epoch"] > self._newest.get(key, 0):  # else it is measured again, after a restart
                self._newest[key] = row["epoch"]
                yield {"trial": trial, **row, **final}

    def _decision(self, body: Reported, time: float) -> list[Row]:
        configuration, epoch, decision = body.configuration, body.epoch, body.decision
        if decision is None:
            return []
        newest, kinds = self._decided.get(configuration, (0, set()))
        if epoch < newest or (epoch == newest and decision.kind in kinds):
            return []
        self._decided[configuration] = (epoch, {decision.kind} | (kinds if epoch == newest else set()))
        return [self._decision_row(configuration, epoch, decision, time)]

    def _decision_row(self, configuration: int, epoch: int, decision: Decision, time: float) -> Row:
        # UTC without a zone, as the schema has it.
        decided_at = datetime.datetime.fromtimestamp(time, datetime.UTC).replace(tzinfo=None)
        # Constraints have no columns: the rule says whether they are satisfied, and `evaluations` has their metrics.
        fields = {key: value for key, value in decision.to_json().items() if key != "constrained"}
        trial, added = self._added.get(configuration, configuration), configuration in self._added
        stage = FINAL if added else "end" if decision.kind == "complete" else "rung"
        return {"trial": trial_name(trial), "epoch": epoch, "stage": stage, **fields, "decided_at": decided_at}


#: Columns that all replicates of a trial share, named as in its state.
_STATE_COLUMNS = (
    *("stop_kind", "stop_rung", "epochs", "last_evaluation_epoch", "device", "packing"),
    *("objective", "attempt"),
)

#: Columns in which replicates with separate processes differ.
_OWN_COLUMNS = ("status", "epochs", "last_evaluation_epoch", "wall_seconds", "device", "attempt")


class TrialsTable:
    """Makes the table `trials` from the sweep's state; constant columns are converted once."""

    def __init__(
        self,
        sweep: str,
        schema: pa.Schema,
        configurations: Sequence[Mapping[str, object] | None],
        seeds: ReplicateSeeds,
    ) -> None:
        """Convert the configurations; `None` stands for a configuration that only the state will contain.

        Raises ValueError if a configuration has a hyperparameter without a column in the schema.
        """
        self._sweep, self._schema, self._replicates = sweep, schema, seeds.count
        self._places = np.repeat(np.arange(len(configurations)), seeds.count)
        hyperparameters = (name for name in schema.names if name.startswith("config_"))
        fixed = ("sweep", "trial", "config_hash", ARITHMETIC, REHEARSAL, *hyperparameters)
        self._texts = {field.name for field in schema if field.type == pa.string()}
        self._fixed_schema = pa.schema([schema.field(name) for name in dict.fromkeys(fixed) if name in schema.names])
        self._rows = [self._row(index, configuration) for index, configuration in enumerate(configurations)]
        # Use the rows, because every access to `configurations` draws them again.
        self._unknown = {index for index, row in enumerate(self._rows) if "config_hash" not in row}
        indices = range(len(self._rows))
        self._fixed = {
            "replicate": pa.array([replicate for _ in indices for replicate in range(seeds.count)], pa.int64()),
            "seed": pa.array([seed for index in indices for seed in seeds.of(index)], pa.int64()),
        }
        self._convert()

    def _row(self, index: int, configuration: Mapping[str, object] | None) -> dict[str, object]:
        """Return the constant columns of a trial, as far as its configuration is known."""
        row: dict[str, object] = {"sweep": self._sweep, "trial": trial_name(index)}
        if configuration is None:
            return row
        values = flatten_configuration(configuration).items()
        shown = {name: _as_text(value) if name in self._texts else value for name, value in values}
        return {**row, "config_hash": config_hash(configuration), **shown}

    @property
    def config_hashes(self) -> list[str | None]:
        """Hash of every configuration's values, by index; `None` for one that is not known yet."""
        return [None if (digest := row.get("config_hash")) is None else str(digest) for row in self._rows]

    def _convert(self) -> None:
        batch = record_batch("trials", self._fixed_schema, self._rows).take(pa.array(self._places))
        self._fixed |= {name: batch.column(name) for name in self._fixed_schema.names}

    def _take_suggestions(self, state: SweepState) -> None:
        """Fill in the configurations that a searcher has chosen since the last call."""
        known = self._unknown & state.configurations.keys()
        if known:
            for index in known:
                self._rows[index] = self._row(index, state.configurations[index])
            self._unknown -= known
            self._convert()

    def batch(self, state: SweepState) -> pa.RecordBatch:
        """Return the table for `state`: replicates of all configurations, then added seeds."""
        rows = [self._added_row(trial, trial.added) for trial in state.added if trial.added is not None]
        batch = pa.concat_batches([self._drawn(state), record_batch("trials", self._schema, rows)])
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if ARITHMETIC in columns:
            columns[ARITHMETIC] = _computed(columns[ARITHMETIC], columns["device"])
        return pa.RecordBatch.from_arrays([*columns.values()], schema=self._schema)

    def _added_row(self, trial: TrialState, added: AddedSeed) -> dict[str, object]:
        for known in trial.replicates.values():  # a separate process can be ahead of its trial's last report
            trial = replace(trial, **{name: getattr(known, name) for name in _OWN_COLUMNS})
        same = {name: getattr(trial, name) for name in (*_STATE_COLUMNS, "status", "wall_seconds")}
        failure = _failure(trial, added.replicate)
        same["error"] = None if failure is None else reason_text(failure)
        row = self._row(added.trial, added.values) | same | {"replicate": added.replicate, "seed": added.seed}
        return {name: value for name, value in row.items() if name in self._schema.names}

    def _drawn(self, state: SweepState) -> pa.RecordBatch:
        """Return the rows of drawn configurations.

        A replicate that failed while the others continued is `failed` with its own error. `wall_seconds` is the
        replicate's share of its trial's time, so that sums over rows are right. Replicates with separate processes have
        their own epochs, times and attempts.
        """
        self._take_suggestions(state)
        trials = [trial for trial in state.trials.values() if trial.added is None]
        replicates = [(trial, replicate) for trial in trials for replicate in range(self._replicates)]
        columns = dict(self._fixed)
        for column in _STATE_COLUMNS:
            values = pa.array([getattr(trial, column) for trial in trials], self._schema.field(column).type)
            columns[column] = values.take(pa.array(self._places))
        statuses = [FAILED if r in trial.replicate_errors else trial.status for trial, r in replicates]
        failures = [_failure(trial, replicate) for trial, replicate in replicates]
        errors = [None if failure is None else reason_text(failure) for failure in failures]
        columns |= {"status": pa.array(statuses, pa.string()), "error": pa.array(errors, pa.string())}
        columns["wall_seconds"] = pa.array([trial.wall_seconds / self._replicates for trial, _ in replicates])
        if any(trial.replicates for trial in trials):
            columns |= self._own_columns(replicates, columns)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def _own_columns(
        self, replicates: Sequence[tuple[TrialState, int]], columns: Mapping[str, pa.Array]
    ) -> dict[str, pa.Array]:
        """Return the columns in which replicates with separate processes differ."""
        never_begun, own_columns = ReplicateState(), dict[str, pa.Array]()
        states = [trial.replicates.get(r, never_begun) if trial.replicates else None for trial, r in replicates]
        for name in _OWN_COLUMNS:
            shared = columns[name].to_pylist()
            values = [cell if own is None else getattr(own, name) for own, cell in zip(states, shared, strict=True)]
            own_columns[name] = pa.array(values, self._schema.field(name).type)
        return own_columns


def _failure(trial: TrialState, number: int) -> Failure | None:
    """Return the failure of a replicate, or of its whole trial."""
    if trial.replicates:
        return trial.replicates[number].failure if number in trial.replicates else None
    return trial.replicate_errors.get(number, trial.failure)


def _computed(asked: pa.Array, device: pa.Array) -> pa.Array:
    """Return the arithmetic of training steps: a CPU computes in float32 where TF32 is requested."""
    on_cpu = pc.equal(device, pa.scalar("cpu", device.type)).fill_null(False)
    return pc.if_else(on_cpu, pc.replace_substring_regex(asked, "^tf32", "float32"), asked)


def _as_text(value: object) -> str | None:
    """Convert a value for a column whose type differs between branches of the space."""
    return value if value is None or isinstance(value, str) else str(value)
