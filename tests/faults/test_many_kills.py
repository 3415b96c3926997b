"""Drivers of many kinds of sweeps killed again and again: every table ends equal to that of an undisturbed sweep.

Kills come by progress (`tests.faults.processes.Moments`), several in a sweep, each followed by a resume, until KILLS of
them have fallen on a kind. `make test-kills KILLS=100` is the whole test; each kind gets three by default.
"""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from sweeper.core.ids import TABLES, SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Added
from sweeper.journal.state import ENDED
from sweeper.results import load
from sweeper.scheduling.base import audit
from sweeper.scheduling.contenders import audit_rounds
from sweeper.space.loading import build_spec, load_spec
from sweeper.space.spec import final_stage
from tests.faults.forked_drivers import forked
from tests.faults.processes import Moments, until
from tests.patience import patient
from tests.polling import KEYS
from tests.running import started, write_space
from tests.seeds import drawn_seed
from tests.sweeper.records import fields

KILLS = int(os.environ.get("KILLS", "3"))

SPACE = {
    "dataset": "{name: digits}",
    "objective": "{metric: val_nll, mode: min}",
    "scheduler": "{name: asha, max_epochs: 9, grace_epochs: 1, reduction_factor: 3}",
    "samples": "9",
    "replicates": "1",
    "seed": "3",
    "space": """
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 5]}}]}
  architecture: {choice: [{name: mlp, width: 16}, {name: mlp, width: 8}]}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, momentum: 0.9, batch_size: 128, schedule: cosine}""",
    "resources": "{cpu: 1}",
    "evaluation": "{bins: 15, posthoc: [temperature], curvature: false, bootstrap: 0}",
}

KINDS: dict[str, dict[str, str | None]] = {
    "quickstart": {
        "scheduler": "{name: asha, variant: promotion, within: [architecture.width, loss], keep_at_least: 1, "
        "max_epochs: 9, grace_epochs: 1, reduction_factor: 3}",
        "replicates": "2",
        "samples": "14",
        "evaluation": "{bins: 15, posthoc: [temperature], bootstrap: 0, "
        "curvature: {samples: 32, lanczos_steps: 3, trace_probes: 2}}",
    },
    "promotion": {"scheduler": "{name: asha, variant: promotion, max_epochs: 9, grace_epochs: 1, reduction_factor: 3}"},
    "strata": {
        "scheduler": "{name: asha, within: loss, keep_at_least: 1, max_epochs: 9, grace_epochs: 1, reduction_factor: 3}"
    },
    "searcher": {"searcher": "{name: optuna, startup: 3}"},
    "final": {"replicates": "{count: 1, at_most: 5, seeds: common}", "which": "[gamma]", "samples": "6"},
    "final_lanes": {
        "replicates": "{count: 1, at_most: 5, seeds: common, packing: lanes, lanes: 6}",
        "which": "[gamma]",
        "samples": "6",
    },
    "lanes_of_one": {"replicates": "{count: 5, packing: lanes}", "training": "{precision: bfloat16}", "samples": "6"},
    "lanes": {"replicates": "{count: 2, packing: lanes, lanes: 6}", "samples": "12"},
    "apart": {"replicates": "{count: 2, packing: trials}", "samples": "6"},
    "sam": {
        "space": SPACE["space"].replace("schedule: cosine", "schedule: cosine, sharpness: sam"),
        "checkpoint": "{every_seconds: 0.1}",
    },
    "mixup": {
        "space": SPACE["space"].replace("schedule: cosine", "schedule: cosine, mixup: {uniform: [0, 1]}"),
        "checkpoint": "{every_seconds: 0.1}",
    },
    **{
        kind: {"dataset": None, "loop": f"search_spaces.examples.own_{kind}:Loop", "samples": "3", "space": space}
        for kind, space in (
            ("lightning", "{loss: cross_entropy, lr: {loguniform: [0.001, 0.1]}}"),
            ("trainer", "{loss: focal, lr: {loguniform: [0.0003, 0.01]}, hidden: {choice: [8, 16]}}"),
        )
    },
}
"""What differs from `SPACE`, by kind; `None` for what is left out."""

UNEQUAL = {"seconds", "wall_seconds", "decided_at", "attempt"}
"""Columns that tell of times and drivers."""


def _space(folder: Path, kind: str) -> Path:
    values = {**SPACE, **KINDS[kind]}
    return write_space(folder, "\n".join(f"{key}: {text}" for key, text in values.items() if text is not None), kind)


def _tables(paths: SweepPaths) -> dict[str, list[dict[str, str]]]:
    """Return every table's rows in the order of their keys, numbers to their last digit as text."""
    results, found = load(paths.root), {}
    for table in TABLES:
        if table == "recalibrations" or not any((paths.tables / table).rglob("*.parquet")):
            continue
        rows = results.rows(f"SELECT * FROM {table} ORDER BY {KEYS[table]}")
        found[table] = [{name: repr(value) for name, value in row.items() if name not in UNEQUAL} for row in rows]
    return found


def _run(
    space: Path, folder: Path, kills: int, rng: random.Random, executor: str = "local", *, final: bool = False
) -> tuple[SweepPaths, list[str]]:
    """Run a sweep of `space` to its end through at most `kills` kills; return its paths and when these came.

    Args:
        space: its search space file.
        folder: an empty one.
        kills: the most.
        rng: chooses the moments.
        executor: `local` or `ray`.
        final: whether all kills come in the final stage.
    """
    folder.mkdir()
    paths, fallen, code = SweepPaths(folder / "results" / "s"), list[str](), None
    searched = load_spec(space).searcher.learns
    while code is None:
        start = ("resume", "s") if paths.sweep_file.exists() else ("run", space, "--name", "s")
        arguments = (*start, "--no-mlflow", "--cpus", "1", "--executor", executor)
        begun = forked(folder, *arguments) if executor == "local" else started(*arguments, cwd=folder)
        with begun as driver:
            moments = Moments(paths, rng.getrandbits(32), searched=searched)
            goes_on = len(fallen) < kills and (not final or until(lambda: _adds_seeds(paths), driver, 300))
            moment = moments.draw(driver) if goes_on else None
            if moment is not None:
                driver.kill()
                fallen.append(moment)
                continue
            code = driver.wait(patient(100))
            assert code == 0, (folder / "driver.out").read_text()
    return paths, fallen


def _adds_seeds(paths: SweepPaths) -> bool:
    """Return whether the final stage has begun."""
    return paths.journal.is_dir() and any(isinstance(record.body, Added) for record in read_journal(paths.journal))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_every_table_equals_that_of_an_undisturbed_sweep(tmp_path: Path, kind: str) -> None:
    _tables_are_equal(tmp_path, kind)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("executor", ["local", "ray"])
@pytest.mark.parametrize("kind", ["final", "final_lanes"])
def test_kills_in_the_final_stage(tmp_path: Path, kind: str, executor: str) -> None:
    _tables_are_equal(tmp_path, kind, executor, final=True)


def _tables_are_equal(tmp_path: Path, kind: str, executor: str = "local", *, final: bool = False) -> None:
    """Kill drivers of sweeps until `KILLS` have fallen, and compare each sweep's tables with an undisturbed one's."""
    rng, space = random.Random(f"{drawn_seed()} {kind} {executor}"), _space(tmp_path, kind)
    paths, _ = _run(space, tmp_path / "undisturbed", 0, rng)
    expected, fallen, number = _tables(paths), list[str](), 0
    assert {"epochs", "evaluations", "decisions", "trials"} <= expected.keys()
    while len(fallen) < KILLS:
        folder = tmp_path / f"disturbed{number}"
        paths, moments = _run(space, folder, KILLS - len(fallen), rng, executor, final=final)
        number += 1
        fallen += moments
        _check_journal(space, paths)
        found = _tables(paths)
        for table, rows in expected.items():
            different = [(old, new) for old, new in zip(rows, found[table], strict=False) if old != new]
            assert len(rows) == len(found[table]) and not different, (number, moments, table, different[:3])
        print(f"{kind} on {executor}: sweep {number}, {len(fallen)} kills so far; {', '.join(moments)}")


def _check_journal(space: Path, paths: SweepPaths) -> None:
    """Assert that every configuration and added seed ended once, and that all follows from the records before it."""
    spec, records = load_spec(space), list(read_journal(paths.journal))
    ended = Counter(
        fields(record)["configuration"]
        for record in records
        if record.kind in ("report", "judged") and fields(record)["status"] in ENDED
    )
    added = [seed.configuration for record in records if isinstance(record.body, Added) for seed in record.body.seeds]
    assert ended == dict.fromkeys([*range(spec.samples), *added], 1)
    assert bool(added) is (spec.replicates.at_most is not None)
    assert audit(spec.schedule, records)[1] == []
    rounds = len({record.body.round for record in records if isinstance(record.body, Added)})
    assert audit_rounds(lambda values: final_stage(build_spec(values)), records, spec.samples) == (rounds, [])
