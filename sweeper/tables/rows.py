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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from sweeper.core.ids import ReplicateSeeds, trial_name
from sweeper.core.schemas import ARITHMETIC, record_batch
from sweeper.journal.reasons import reason_text
from sweeper.journal.records import Added, AddedSeed, Decision, Judged, Record, Reported
from sweeper.journal.state import FAILED, ReplicateState, SweepState, TrialState
from trainables.registry import Configuration
from trainables.worker.trial_reports import Row

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
        fields = decision.to_json()
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
    """Makes the table `trials` from the sweep's state."""

    def __init__(
        self, sweep: str, schema: pa.Schema, configurations: Sequence[Configuration | None], seeds: ReplicateSeeds
    ) -> None:
        """Prepare the configurations; `None` stands for a configuration that only the state will contain."""
        self._sweep, self._schema = sweep, schema
        self._texts = {field.name for field in schema if field.type == pa.string()}
        # Rows are made once, because every access to `configurations` draws them again.
        self._rows = [self._row(index, configuration) for index, configuration in enumerate(configurations)]
        self._seeds = [seeds.of(index) for index in range(len(self._rows))]

    def _row(self, index: int, configuration: Configuration | None) -> dict[str, object]:
        """Return the constant columns of a trial, as far as its configuration is known."""
        row: dict[str, object] = {"sweep": self._sweep, "trial": trial_name(index)}
        if configuration is None:
            return row
        values = configuration.columns.items()
        # A column is text if the type of its values differs between branches of the space.
        shown = {name: str(value) if name in self._texts and value is not None else value for name, value in values}
        return {**row, "config_hash": configuration.digest, **shown}

    @property
    def config_hashes(self) -> list[str | None]:
        """Hash of every configuration's values, by index; `None` for one that is not known yet."""
        return [None if (digest := row.get("config_hash")) is None else str(digest) for row in self._rows]

    def batch(self, state: SweepState) -> pa.RecordBatch:
        """Return the table for `state`: replicates of all configurations, then added seeds.

        A replicate that failed while the others continued is `failed` with its own error. `wall_seconds` is the
        replicate's share of its trial's time, so that sums over rows are right. Replicates with separate processes have
        their own epochs, times and attempts.

        Raises ValueError if a configuration has a hyperparameter without a column in the schema.
        """
        for index, configuration in state.configurations.items():  # those that a searcher has chosen
            if "config_hash" not in self._rows[index]:
                self._rows[index] = self._row(index, configuration)
        drawn = [(index, trial) for index, trial in state.trials.items() if trial.added is None]
        rows = [
            {**self._rows[index], "replicate": r, "seed": seed, **_standing(trial, r, len(self._seeds[index]))}
            for index, trial in drawn
            for r, seed in enumerate(self._seeds[index])
        ]
        rows += [self._added_row(trial, trial.added) for trial in state.added if trial.added is not None]
        batch = record_batch("trials", self._schema, rows)
        if ARITHMETIC not in self._schema.names:
            return batch
        # A CPU computes in float32 where TF32 is requested.
        asked, device = batch[ARITHMETIC], batch["device"]
        on_cpu = pc.equal(device, pa.scalar("cpu", device.type)).fill_null(False)
        computed = pc.if_else(on_cpu, pc.replace_substring_regex(asked, "^tf32", "float32"), asked)
        return batch.set_column(self._schema.get_field_index(ARITHMETIC), self._schema.field(ARITHMETIC), computed)

    def _added_row(self, trial: TrialState, added: AddedSeed) -> dict[str, object]:
        for known in trial.replicates.values():  # a separate process can be ahead of its trial's last report
            trial = replace(trial, **{name: getattr(known, name) for name in _OWN_COLUMNS})
        same = {name: getattr(trial, name) for name in (*_STATE_COLUMNS, "status", "wall_seconds")}
        row = self._row(added.trial, added.values) | same | {"replicate": added.replicate, "seed": added.seed}
        row["error"] = _error(trial, added.replicate)
        return {name: value for name, value in row.items() if name in self._schema.names}


def _standing(trial: TrialState, number: int, count: int) -> dict[str, object]:
    """Return where one of a trial's `count` replicates stands: the columns that change during a sweep."""
    row = {name: getattr(trial, name) for name in _STATE_COLUMNS}
    row |= {"status": FAILED if number in trial.replicate_errors else trial.status, "error": _error(trial, number)}
    row["wall_seconds"] = trial.wall_seconds / count
    if trial.replicates:
        own = trial.replicates.get(number, ReplicateState())
        row |= {name: getattr(own, name) for name in _OWN_COLUMNS}
    return row


def _error(trial: TrialState, number: int) -> str | None:
    """Return why a replicate, or its whole trial, failed."""
    failure = trial.replicate_errors.get(number, trial.failure)
    if trial.replicates:
        failure = trial.replicates[number].failure if number in trial.replicates else None
    return None if failure is None else reason_text(failure)
