"""Ideal finished sweeps of the papers' search spaces: every configuration completed, everything measured, no training.

The program's own code says what a sweep consists of: configurations, columns, `sweep.yaml`. The values are noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from search_spaces.papers.finished import FinishedSweep
from search_spaces.papers.recipes import shipped_recipe
from search_spaces.papers.tables import PaperTable, paper_table
from search_spaces.papers.translation.loop import measured_columns
from sweeper.core.columns import epoch_columns, evaluation_columns
from sweeper.core.ids import trial_name
from sweeper.core.schemas import record_batch, table_schemas
from sweeper.results import Results
from sweeper.space.configurations import configurations
from sweeper.space.spec import SweepSpec
from sweeper.storage.sweeps import create_sweep
from trainables.registry import entry_label

Ending = Callable[[Mapping[str, Any], int], dict[str, object]]
"""Configuration and replicate → what `trials` says in place of `completed`."""


def ideal_sweep(
    output: Path, space: str, spec: SweepSpec | None = None, name: str | None = None, ended: Ending | None = None
) -> Results:
    """Write the results folder of a finished sweep of a shipped search space.

    Args:
        output: where sweeps lie.
        space: the search space's name.
        spec: what to run in place of what its own command runs.
        name: of the sweep; the space's if unset.
        ended: how replicates ended that did not complete; nothing is measured of them.
    """
    spec = spec or shipped_recipe(space).spec
    paths = create_sweep(spec, space, name, output, {"created": "2026-01-01T00:00:00+00:00"}).paths
    trajectory, methods = spec.evaluation.trajectory, spec.evaluation.posthoc
    columns = evaluation_columns(methods, [m["name"] for m in spec.evaluation.metrics], spec.cross_fitted)
    own = measured_columns([entry_label(entry) for entry in methods]) if spec.loop is not None else ()
    schemas = table_schemas(
        spec.space.column_types,
        2,
        [*dict.fromkeys((*columns, *own))],
        epoch_columns=epoch_columns(None if trajectory is None else trajectory.model_dump()),
        rehearsal=spec.is_rehearsal,
    )
    random = np.random.default_rng(0)
    generation = paths.generations / "0001"
    rows = {"trials": trial_rows, "evaluations": evaluation_rows, "epochs": epoch_rows, "reliability": reliability_rows}
    for table, schema in schemas.items():
        held = [*rows[table](spec, schema, random)] if table in rows else []
        if ended is not None:
            ends = {tuple(key.values()): ended(made, int(key["replicate"])) for key, made in replicates_of(spec)}
            of = [ends[row["trial"], row["replicate"]] for row in held]
            held = [{**row, **end} for row, end in zip(held, of, strict=True) if table == "trials" or not end]
        (generation / table).mkdir(parents=True)
        batch = record_batch(table, schema, held)
        pq.write_table(pa.Table.from_batches([batch]), generation / table / "part.parquet")
    paths.tables.symlink_to(generation.relative_to(paths.root))
    return Results(paths.root)


def table_of(name: str, *sweeps: Results, rehearsed: bool = False) -> PaperTable:
    """Return a published table filled in from sweeps."""
    return paper_table(name, [FinishedSweep(results) for results in sweeps], rehearsed=rehearsed)


def replicates_of(spec: SweepSpec) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """Yield the key columns and the configuration of every replicate."""
    for index, configuration in enumerate(configurations(spec)):
        for replicate in range(spec.replicates.count):
            yield {"trial": trial_name(index), "replicate": replicate}, configuration


def trial_rows(spec: SweepSpec, schema: pa.Schema, random: np.random.Generator) -> Iterator[dict[str, object]]:
    """Yield the rows of `trials`."""
    for key, configuration in replicates_of(spec):
        texts = {name for name in schema.names if schema.field(name).type == pa.string()}
        values = {
            name: str(value) if name in texts and value is not None else value
            for name, value in configuration.columns.items()
        }
        end = {"status": "completed", "epochs": spec.scheduler.max_epochs, "objective": random.random()}
        yield {**key, **end, "config_hash": configuration.digest, **values}


def evaluation_rows(spec: SweepSpec, schema: pa.Schema, random: np.random.Generator) -> Iterator[dict[str, object]]:
    """Yield the rows of `evaluations` at the end of training, every number measured."""
    measured = [field.name for field in schema if field.type == pa.float64()]
    for key, _ in replicates_of(spec):
        for split in spec.evaluation.splits:
            held = [name for name in measured if split == "val" or not name.startswith("hessian_")]
            values = zip(held, random.uniform(0.01, 0.99, len(held)).tolist(), strict=True)
            yield {**key, "epoch": spec.scheduler.max_epochs, "split": split, "stage": "end", **dict(values)}


def epoch_rows(spec: SweepSpec, schema: pa.Schema, random: np.random.Generator) -> Iterator[dict[str, object]]:
    """Yield the rows of `epochs` where the search space asks for a trajectory."""
    if spec.evaluation.trajectory is None:
        return
    measured = [field.name for field in schema if field.type == pa.float64()]
    for key, _ in replicates_of(spec):
        for epoch in range(1, spec.scheduler.max_epochs + 1):
            yield {**key, "epoch": epoch, **dict(zip(measured, random.random(len(measured)).tolist(), strict=True))}


def reliability_rows(spec: SweepSpec, schema: pa.Schema, random: np.random.Generator) -> Iterator[dict[str, object]]:
    """Yield the rows of `reliability` of sweeps that are evaluated at more than their last epoch."""
    epochs = [*getattr(spec.scheduler, "evaluate_epochs", ()), spec.scheduler.max_epochs]
    for key, _ in replicates_of(spec) if len(epochs) > 1 else ():
        for epoch in epochs:
            for split in spec.evaluation.splits:
                for place in range(spec.evaluation.bins):
                    counted = {"bin": place, "n": int(random.integers(1, 100)), "accuracy": random.random()}
                    yield {**key, "epoch": epoch, "split": split, **counted}
