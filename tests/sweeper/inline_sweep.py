"""Whole sweeps in this process, one trial at a time, without Ray: real training, driver, journal and tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sweeper.core.columns import evaluation_columns
from sweeper.core.ids import ReplicateSeeds
from sweeper.core.schemas import table_schemas
from sweeper.execution.driver.context import DriverSettings
from sweeper.execution.driver.driver import Driver
from sweeper.journal.journal import Journal
from sweeper.journal.state import SweepState
from sweeper.planning.preparation import dataset_facts
from sweeper.space.loading import load_spec
from sweeper.storage.metadata import build_manifest
from sweeper.storage.mirror import SharedFolder
from sweeper.storage.sweeps import Sweep, create_sweep
from sweeper.tables.writer import ParquetSink
from tests.faults.reference import SMALL
from tests.running import write_space
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import TrialSettings


class Inline:
    """Runs sweeps of one small space below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.output, self._space = folder / "results", write_space(folder, SMALL % {"samples": 4})
        self.dataset: Any = None

    def run(self, name: str, *overrides: str) -> Sweep:
        """Run a sweep to its end."""
        spec = load_spec(self._space, overrides)
        settings = TrialSettings(
            dataset=spec.dataset,
            max_epochs=spec.scheduler.max_epochs,
            rungs=tuple(spec.schedule.rungs),
            objective=spec.objective.metric,
            evaluation=spec.evaluation.settings,
        )
        self.dataset = self.dataset or settings.load_dataset()
        manifest = build_manifest(spec, dataset_facts(self.dataset))
        sweep = create_sweep(spec, "small", name, self.output, manifest)
        self.drive(sweep, settings)
        return sweep

    def drive(self, sweep: Sweep, settings: TrialSettings) -> None:
        spec, state, rungs = sweep.spec, SweepState(len(sweep.configurations)), sweep.spec.schedule.begin()
        searcher = None
        if spec.searcher.learns:
            from sweeper.space.loading import searcher_for

            searcher = searcher_for(spec)
        schemas = table_schemas(spec.space.column_types, self.dataset.classes, evaluation_columns(["temperature"]))
        replicates = spec.replicates.count
        known = [None] * len(sweep.configurations) if searcher is not None else sweep.configurations
        tables = ParquetSink(sweep.paths, schemas, known, ReplicateSeeds(spec.seed, replicates))
        driver = Driver(
            sweep.paths, sweep.configurations, DriverSettings.of(spec, sweep.configurations),
            journal=Journal(sweep.paths.journal, durable=False),
            keeper=SharedFolder(sweep.paths), state=state, rungs=rungs, sinks=[tables],
            searcher=searcher,
        )  # fmt: skip
        driver.begin(spec.resolved())
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._train(driver, tables, settings)
        finally:
            torch.set_num_threads(threads)
        assert driver.finish() == "finished"
        tables.close()

    def _train(self, driver: Driver, tables: ParquetSink, settings: TrialSettings) -> None:
        chosen = replace(settings, tables=tables.incoming)
        while (assignment := driver.work.next()) is not None:
            trial = Trial(driver.work.describe(assignment)[0], chosen, self.dataset)
            while not driver.on_reports([(assignment, [trial.advance()], False)]):
                pass
