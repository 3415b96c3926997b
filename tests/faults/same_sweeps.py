"""Small real sweeps of many kinds, run anywhere and killed at random moments, and the comparison of two of them."""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.ids import TABLES, SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Added, Decision, Judged, Reported
from sweeper.journal.state import ENDED
from sweeper.results import load
from sweeper.scheduling.base import audit
from sweeper.scheduling.contenders import audit_rounds
from sweeper.scheduling.order import audit_order
from sweeper.space.loading import build_spec, load_spec
from sweeper.space.spec import final_stage
from tests.faults.processes import Moments, until
from tests.patience import patient
from tests.polling import KEYS
from tests.running import started, write_space
from tests.sweeper.records import fields

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
        "max_epochs: 9, grace_epochs: 1, reduction_factor: 3, width: 6}",
        "replicates": "2",
        "samples": "14",
        "evaluation": "{bins: 15, posthoc: [temperature], bootstrap: 0, "
        "curvature: {samples: 32, lanczos_steps: 3, trace_probes: 2}}",
    },
    "promotion": {
        "scheduler": "{name: asha, variant: promotion, max_epochs: 9, grace_epochs: 1, reduction_factor: 3, width: 4}",
        "samples": "14",
    },
    "strata": {
        "scheduler": "{name: asha, within: loss, keep_at_least: 1, max_epochs: 9, grace_epochs: 1, reduction_factor: 3}"
    },
    "searcher": {
        "scheduler": "{name: asha, max_epochs: 9, grace_epochs: 1, reduction_factor: 3, width: 3}",
        "searcher": "{name: optuna, startup: 3}",
    },
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
            ("loop", "{loss: cross_entropy, lr: {loguniform: [0.001, 0.1]}, width: {choice: [8, 32]}}"),
            ("lightning", "{loss: cross_entropy, lr: {loguniform: [0.001, 0.1]}}"),
            ("trainer", "{loss: focal, lr: {loguniform: [0.0003, 0.01]}, hidden: {choice: [8, 16]}}"),
        )
    },
}
"""What differs from `SPACE`, by kind; `None` for what is left out."""

EVERY = ["quickstart", "promotion", "searcher", "strata", "final", "apart", "loop"]
"""The kinds that are run everywhere."""

UNEQUAL = {"sweep", "seconds", "wall_seconds", "decided_at", "attempt"}
"""Columns that tell of the sweep's name, of times and of drivers."""


def space_of(folder: Path, kind: str) -> Path:
    """Write the search space of a kind and return its path."""
    values = {**SPACE, **KINDS[kind]}
    return write_space(folder, "\n".join(f"{key}: {text}" for key, text in values.items() if text is not None), kind)


@dataclass(frozen=True)
class Place:
    """Where and how often disturbed a sweep runs.

    Attributes:
        slots: numbers of trials at a time; each start of a driver draws one.
        executor: `local` or `ray`.
        environment: environment of drivers on Ray; `None` for the test's own.
        kills: SIGKILLs of the driver that fall at most, each followed by a resume.
        late: whether all of them come in the final stage.
    """

    slots: Sequence[int] = (1,)
    executor: str = "local"
    environment: Mapping[str, str] | None = None
    kills: int = 0
    late: bool = False


def run(space: Path, folder: Path, place: Place, rng: random.Random) -> tuple[SweepPaths, list[str]]:
    """Run a sweep of `space` in an empty folder to its end; return its paths, and at which moments kills fell."""
    folder.mkdir()
    paths, fallen, code = SweepPaths(folder / "results" / "s"), list[str](), None
    searched = load_spec(space).searcher.learns
    while code is None:
        start = ("resume", "s") if paths.sweep_file.exists() else ("run", space, "--name", "s")
        # A cluster that is joined has its own cores.
        cpus = ("--cpus", str(rng.choice(place.slots))) if place.environment is None else ()
        arguments = (*start, "--no-mlflow", *cpus, "--executor", place.executor)
        with started(*arguments, cwd=folder, environment=place.environment) as driver:
            moments = Moments(paths, rng.getrandbits(32), searched=searched)
            goes_on = len(fallen) < place.kills and (not place.late or until(lambda: _adds_seeds(paths), driver, 300))
            moment = moments.draw(driver) if goes_on else None
            if moment is not None:
                driver.kill()
                fallen.append(moment)
                continue
            code = driver.wait(patient(100))
            assert code == 0, (folder / "driver.err").read_text()
    return paths, fallen


def _adds_seeds(paths: SweepPaths) -> bool:
    """Return whether the final stage has begun."""
    return paths.journal.is_dir() and any(isinstance(record.body, Added) for record in read_journal(paths.journal))


@dataclass(frozen=True)
class Outcome:
    """What a sweep decided, in order, and every table's rows in the order of their keys, to the last digit."""

    decisions: list[tuple[int, Decision]]
    tables: dict[str, list[dict[str, str]]]

    @staticmethod
    def of(paths: SweepPaths) -> "Outcome":
        """Read a finished sweep."""
        results, tables = load(paths.root), {}
        for table in TABLES:
            if table == "recalibrations" or not any((paths.tables / table).rglob("*.parquet")):
                continue
            rows = results.rows(f"SELECT * FROM {table} ORDER BY {KEYS[table]}")
            tables[table] = [{name: repr(value) for name, value in row.items() if name not in UNEQUAL} for row in rows]
        assert {"epochs", "evaluations", "decisions", "trials"} <= tables.keys()
        return Outcome(Outcome.decided(paths), tables)

    @staticmethod
    def decided(paths: SweepPaths, before: float = math.inf) -> list[tuple[int, Decision]]:
        """Return the decisions in order, with their trials, up to a record."""
        bodies = (record.body for record in read_journal(paths.journal) if record.sequence < before)
        made = ((body.configuration, body.decision) for body in bodies if isinstance(body, Reported | Judged))
        return [(index, decision) for index, decision in made if decision is not None]

    def check_equal(self, other: "Outcome", about: object) -> None:
        """Assert that another sweep of the same space decided and measured the same; `about` says what it was."""
        decided = zip(self.decisions, other.decisions, strict=False)
        different = [pair for pair in decided if pair[0] != pair[1]]
        assert len(self.decisions) == len(other.decisions) and not different, (about, different[:3])
        for table, rows in self.tables.items():
            found = other.tables[table]
            unequal = [(old, new) for old, new in zip(rows, found, strict=False) if old != new]
            assert len(rows) == len(found) and not unequal, (about, table, unequal[:3])


def check_journal(space: Path, paths: SweepPaths) -> None:
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
    order = spec.order(spec.schedule.begin())
    assert order is not None and audit_order(order, records).differences == []
    rounds = len({record.body.round for record in records if isinstance(record.body, Added)})
    assert audit_rounds(lambda values: final_stage(build_spec(values)), records, spec.samples) == (rounds, [])
