"""Rows of the tables: what any decision of a scheduler becomes."""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from sweeper.core.ids import ReplicateSeeds, SweepPaths
from sweeper.core.schemas import TRIAL_COLUMNS, record_batch, table_schemas
from sweeper.journal.records import Decision, Judged, Record, Reported
from sweeper.journal.state import SweepState, fold
from sweeper.scheduling.asha import Halving
from sweeper.tables.rows import JournalRows, TrialsTable
from tests.sweeper.fake_executor import CRASHED, alone
from tests.sweeper.fake_replicates import COUNT, Apart, ApartSweep, diverges_at
from trainables.registry.configuration import Configuration
from trainables.worker.trial_reports import TrialReport

TOLD = Decision(
    "complete", "last_epoch", 9, 0.2, place=4, count=5, quota=1, cutoff=0.3, kept_by="keep_at_least", left_out=1,
    stratum="resnet8",
)  # fmt: skip
SILENT = Decision("continue", "first", None)


@pytest.mark.parametrize("decision", [TOLD, SILENT], ids=["everything is said", "nothing but what must be"])
def test_every_decision_fits_its_table(decision: Decision) -> None:
    schema = table_schemas({}, 10, ())["decisions"]
    report = TrialReport(configuration=3, epoch=9, objective=0.2, device="cpu", wall_seconds=1.0)
    bodies = Reported(report, 1, "completed", decision), Judged(4, 1, 9, "waiting", decision)
    for body in bodies:
        rows = JournalRows().project(Record(1, 12.5, body))["decisions"]
        written = record_batch("decisions", schema, rows).to_pylist()
        kept = {name: value for name, value in decision.to_json().items() if name in schema.names}
        assert [{name: row[name] for name in kept} for row in written] == [kept]


HALVING = Halving("val_nll", "min", 27, 3, 3)
SCHEMA = pa.schema([*TRIAL_COLUMNS.items(), ("config_index", pa.int64())])


def _rows(sweep):
    table = TrialsTable(
        "s", SCHEMA, [Configuration({"index": i}) for i in range(sweep.configurations)], ReplicateSeeds(0, COUNT)
    )
    batch = table.batch(fold(sweep.records(), sweep.configurations))
    assert batch.num_rows == COUNT * sweep.configurations
    return {(row["trial"], row["replicate"]): row for row in batch.to_pylist()}


def test_each_replicate_shows_where_it_stands(tmp_path):
    sweep = ApartSweep(SweepPaths(tmp_path / "s"), HALVING, 2, retries=0)
    driver = sweep.driver()
    driver.begin()
    rng = np.random.default_rng(0)
    first, second = driver.work.next(), driver.work.next()
    driver.on_started(first)
    driver.on_started(second)
    alone(Apart(sweep.paths, HALVING, rng, first), driver)
    shown = ("status", "epochs", "last_evaluation_epoch", "wall_seconds", "device", "error", "packing", "objective")
    rows = _rows(sweep)
    assert [rows["c00000", 0][name] for name in shown] == ["waiting", 3, None, 3.0, "cpu", None, "trials", None]
    assert [rows["c00000", 1][name] for name in shown[:4]] == ["running", 0, None, 0.0]
    assert [rows["c00000", 2][name] for name in shown[:4]] == ["waiting", 0, None, 0.0]
    assert [rows["c00001", 0][name] for name in shown[:4]] == ["waiting", 0, None, 0.0]
    driver.on_failure(second, CRASHED)
    third = driver.work.next()
    driver.on_started(third)
    alone(Apart(sweep.paths, HALVING, rng, third), driver)
    rows = _rows(sweep)
    assert [rows["c00000", r]["status"] for r in range(COUNT)] == ["waiting", "failed", "waiting"]
    assert [rows["c00000", r]["last_evaluation_epoch"] for r in range(COUNT)] == [3, None, 3], "judged, so it is shown"
    assert rows["c00000", 1]["error"] == "its process died"
    assert len({rows["c00000", r]["objective"] for r in range(COUNT)}) == 1


def test_a_row_does_not_say_tf32_where_a_cpu_trained():
    schema = table_schemas({"config_index": int}, 3, (), arithmetic="tf32, deterministic")["trials"]
    table = TrialsTable("s", schema, [Configuration({"index": i}) for i in range(3)], ReplicateSeeds(0, 1))
    state = SweepState(3)
    state.trials[0].device, state.trials[1].device = "cpu", "cuda"
    assert table.batch(state).column("arithmetic").to_pylist() == [
        "float32, deterministic", "tf32, deterministic", "tf32, deterministic",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_at_the_end_every_replicate_has_ended_with_its_own_epochs(tmp_path, seed):
    sweep = ApartSweep(SweepPaths(tmp_path / "s"), HALVING, 12, slots=3)
    driver = sweep.run(np.random.default_rng(seed), kills=5, trouble=0.05)
    for (trial, replicate), row in _rows(sweep).items():
        index = int(trial[1:])
        state = driver.state.trials[index]
        diverged = diverges_at(index, replicate)
        failed = diverged is not None and diverged <= state.epochs
        assert row["status"] == ("failed" if failed else state.status)
        assert row["epochs"] == (diverged if failed else state.epochs) == row["wall_seconds"]
        assert (row["error"] is not None) == failed
        assert row["objective"] is None or math.isfinite(row["objective"])


def test_each_configuration_is_drawn_once():
    drawn = []

    class Counted(Sequence):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            if index >= 5:
                raise IndexError(index)
            drawn.append(index)
            return Configuration({"index": index}) if index != 3 else None

    table = TrialsTable("s", SCHEMA, Counted(), ReplicateSeeds(0, 2))
    table.batch(SweepState(5))
    assert drawn == [0, 1, 2, 3, 4]
    assert [number is None for number in table.config_hashes] == [False, False, False, True, False]
