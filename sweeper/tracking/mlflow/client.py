"""Write runs through MLflow's public client, which reaches any store or server.

A call that fails may still have succeeded on the server. So after a failure the runs are looked up again, and if a run
was created twice, the younger one is deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.tracking.base import DIAGRAM, DIAGRAM_TAG, SWEEP_RUN, Known, RunUpdate, TrackedSweep, Tracker
from sweeper.tracking.mlflow.experiment import ACTIVE, make_experiment
from sweeper.tracking.mlflow.pages import as_markdown, questions, read_data
from sweeper.tracking.runs import GENERATION_TAG
from trainables.registry.names import nearest

if TYPE_CHECKING:
    from mlflow.entities import Dataset, Run
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
    from mlflow.tracking import MlflowClient

#: The store schemes built into MLflow 3; plugins register others.
SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks", "databricks-uc")

PLUGINS = "mlflow.tracking_store"

#: The trackers that are not MLflow, as addresses begin, for remedies.
TRACKERS = ("tensorboard:", "wandb:")

#: The tag with the newest journal record that a run contains.
SEQUENCE_TAG = "journal_sequence"

_NAMES = read_data("names.yaml")

#: MLflow's status for a trial's status and for a sweep's outcome.
RUN_STATUS: Mapping[str, str] = _NAMES["run_status"]

#: Our tags that MLflow has under its own names.
OWN_TAGS: Mapping[str, str] = _NAMES["own_tags"]

#: MLflow's own tag that makes a run a child of another.
PARENT_TAG = "mlflow.parentRunId"

#: MLflow's own tag with the description that its pages show.
DESCRIPTION_TAG = "mlflow.note.content"

#: Tags that make MLflow show an experiment's runs when it is opened, instead of asking for its kind.
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}

#: Limit of MLflow for metrics, params and tags together in one batch.
BATCH_ENTITIES = 1000

#: Limit of MLflow for params, and for tags, in one batch.
TEXTS_A_BATCH = 100


#: Seconds that another process may take to create a store's tables.
CREATION_SECONDS = 60.0


class MlflowTracker(Tracker):
    """The runs of one sweep in an MLflow store, by place."""

    name = "MLflow"
    takes_files = True

    def __init__(self, address: str, sweep: TrackedSweep) -> None:
        """Prepare; nothing is sent before `prepare` and `connect`."""
        for key, value in _NAMES["environment"].items():
            os.environ.setdefault(key, value)
        self._uri, self._sweep = address, sweep
        self._unfinished: set[int] = set()
        self._monitor: SystemMetricsMonitor | None = None
        self._sweep_id = ""
        self._run_ids: dict[int, str] = {}
        self._statuses: dict[int, str] = {}
        self._sent: dict[int, dict[str, str]] = {}

    def prepare(self) -> None:
        """Open the store, which takes seconds the first time; a file is created if it is missing."""
        given_up = time.monotonic() + CREATION_SECONDS
        while True:
            try:
                self._client.search_experiments(max_results=1)
                return
            except Exception as error:
                # Two processes that find no tables both create them (MLflow 3.17), and the second one fails.
                if "already exists" not in str(error) or time.monotonic() > given_up:
                    raise
            time.sleep(0.5)
            del self._client

    def _create_experiment(self, name: str, tags: Mapping[str, str]) -> str:
        tags = {DESCRIPTION_TAG: self._questions(), **EXPERIMENT_TAGS, **tags}
        return str(self._client.create_experiment(name, self._artifact_location(), tags))

    @cached_property
    def _client(self) -> MlflowClient:
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=self._uri)

    def connect(self, sweep_id: str, generation: str) -> Known:
        """Find the runs of sweep `sweep_id`.

        Runs of another generation of its journal are deleted; MLflow can restore deleted runs.
        """
        spec, paths = self._sweep.spec, self._sweep.paths
        made = make_experiment(self._client, paths, spec.tracking.experiment, self._create_experiment)
        self._experiment_id = str(made.experiment_id)
        self._sweep_id, self._run_ids, self._statuses = sweep_id, {}, {}
        self._sent = {}
        known = Known()
        for run in sorted(self._find_runs(), key=_preference):
            info, tags = run.info, dict(run.data.tags)
            place = SWEEP_RUN if tags["configuration"] == "sweep" else int(tags["configuration"])
            active = info.lifecycle_stage == ACTIVE
            if place in known.records or tags.get(GENERATION_TAG, "") != generation:
                if active:
                    self._client.delete_run(info.run_id)
                continue
            if not active:
                self._client.restore_run(info.run_id)
            if tags["sweep"] != paths.name:  # it was renamed
                self._client.set_tag(info.run_id, "sweep", paths.name)
                if place == SWEEP_RUN:
                    self._client.update_run(info.run_id, name=paths.name)
            self._run_ids[place], self._statuses[place], self._sent[place] = info.run_id, info.status, tags
            known.records[place] = _sequence(run)
            if DIAGRAM_TAG in tags:
                known.diagrams[place] = tags[DIAGRAM_TAG]
        known.tags.update(self._sent.get(SWEEP_RUN, {}))
        self._unfinished = {place for place, sequence in known.records.items() if sequence < 0}
        return known

    def write(self, updates: Iterable[RunUpdate]) -> None:
        """Send updates; the parent run's update, if there is one, comes first."""
        for update in updates:
            new = update.place not in self._run_ids or update.place in self._unfinished
            run_id = self._run_ids.get(update.place) or self._create(update)
            if new and update.dataset is not None:
                self._log_dataset(run_id, used_dataset(update.dataset, self._sweep.manifest.get("dataset") or {}))
            self._unfinished.discard(update.place)
            # The tag with the newest record is written last, so after an interruption it never names an unsent record.
            if self._statuses[update.place] != RUN_STATUS[update.status]:
                self._set_status(run_id, update)
            if update.diagram is not None:
                self._client.log_text(run_id, update.diagram, DIAGRAM)
            self._log(run_id, update, new)

    def watch_machine(self) -> None:
        """Log MLflow's system metrics to the parent run, if its own environment variable enables them."""
        from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        if self._monitor is None and MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get():
            run_id = self._run_ids[SWEEP_RUN]
            self._monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=self._uri)
            self._monitor.start()

    def attach(self, answer: str, files: Iterable[tuple[Path, str | None]]) -> None:
        """Put the answer first in the descriptions of experiment and parent run, and attach files to that run."""
        text = f"{answer}\n\n{self._questions()}"
        self._client.set_experiment_tag(self._experiment_id, DESCRIPTION_TAG, text)
        note = self._sent[SWEEP_RUN].get(DESCRIPTION_TAG, "").rpartition(answer)[2].lstrip()
        self._client.set_tag(self._run_ids[SWEEP_RUN], DESCRIPTION_TAG, f"{answer}\n\n{note}")
        for path, folder in files:
            self._client.log_artifact(self._run_ids[SWEEP_RUN], str(path), folder)

    @classmethod
    def errors(cls) -> tuple[type[Exception], ...]:
        """Return the exceptions of MLflow, its databases and its requests."""
        if "mlflow" not in sys.modules:  # then MLflow cannot have raised an error, and importing it takes seconds
            return (OSError,)  # requests' exceptions are OSErrors
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        return MlflowException, SQLAlchemyError, OSError

    @classmethod
    def fault(cls, address: str) -> tuple[str, str] | None:
        """Return whether neither MLflow nor a plugin has the address's scheme."""
        scheme, separator, _ = address.partition("://")
        kind = scheme.partition("+")[0]  # `mysql+pymysql`: database and driver
        name, colon, _ = address.partition(":")
        if not separator and colon and name.isidentifier() and name != "file":  # MLflow would make a folder `wandbb:`
            return f"{name} is not a tracker{nearest(name, TRACKERS)}", f"use {', '.join(TRACKERS)} or an MLflow store"
        if not separator or kind in SCHEMES or scheme in {plugin.name for plugin in entry_points(group=PLUGINS)}:
            return None
        known = ", ".join(f"{name}://" for name in SCHEMES)
        return f"{scheme}:// is not an MLflow tracking store", f"use one of {known}, or --no-mlflow"

    def _questions(self) -> str:
        """Return the questions in the experiment's description."""
        spec = self._sweep.spec
        losses = spec.space.names("loss")
        return as_markdown(questions(losses, spec.objective.metric, spec.schedule.rungs[0]))

    def _artifact_location(self) -> str | None:
        """Return the folder of a new experiment's artifacts, next to the sweeps; `None` leaves it to a server."""
        root = self._sweep.paths.root
        return None if self._uri.startswith("http") else (root.parent / "mlartifacts" / root.name).as_uri()

    def _find_runs(self) -> list[Run]:
        from mlflow.entities import ViewType

        runs: list[Run] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment_id],
                filter_string=f"tags.sweep_id = '{self._sweep_id}'",
                run_view_type=ViewType.ALL,
                max_results=1000,
                page_token=token,
            )
            runs += page
            token = page.token
            if not token:
                return runs

    def _create(self, update: RunUpdate) -> str:
        tags = dict(update.identity)
        if update.place != SWEEP_RUN:
            tags[PARENT_TAG] = self._run_ids[SWEEP_RUN]
        tags |= {OWN_TAGS.get(key, key): value for key, value in update.tags.items()}
        run = self._client.create_run(
            self._experiment_id, start_time=update.start_time, tags=tags, run_name=update.name
        )
        self._run_ids[update.place], self._statuses[update.place] = run.info.run_id, run.info.status
        self._sent[update.place] = tags
        return str(run.info.run_id)

    def _log_dataset(self, run_id: str, used: Dataset) -> None:
        """Log the data set of a run; repeating it changes nothing."""
        from mlflow.entities import DatasetInput, InputTag

        self._client.log_inputs(run_id, datasets=[DatasetInput(used, [InputTag(CONTEXT_TAG, CONTEXT)])])

    def _set_status(self, run_id: str, update: RunUpdate) -> None:
        status = RUN_STATUS[update.status]
        if update.end_time is None:
            self._client.update_run(run_id, status=status)
        else:
            self._client.set_terminated(run_id, status=status, end_time=update.end_time)
        if update.status == "early_stopped":
            self._client.update_run(run_id, name=update.name)
        self._statuses[update.place] = status

    def _log(self, run_id: str, update: RunUpdate, new: bool) -> None:
        from mlflow.entities import Metric, Param, RunTag

        params = [Param(key, value) for key, value in update.params.items()] if new else []
        named = {OWN_TAGS.get(key, key): value for key, value in update.tags.items()}
        sent = self._sent.setdefault(update.place, {})
        # Each tag is a separate database statement, and most tags do not change.
        named = {key: value for key, value in named.items() if sent.get(key) != value}
        tags = [RunTag(key, value) for key, value in {**named, SEQUENCE_TAG: str(update.sequence)}.items()]
        metrics = [Metric(*point) for point in update.points]
        # The rest goes into the last batch, with the tag of the newest record, so most runs need one call.
        for kind, texts in (("params", params), ("tags", tags)):
            while len(texts) > TEXTS_A_BATCH:
                self._client.log_batch(run_id, **{kind: texts[:TEXTS_A_BATCH]})
                del texts[:TEXTS_A_BATCH]
        room = BATCH_ENTITIES - len(tags) - len(params)
        while len(metrics) > room:
            self._client.log_batch(run_id, metrics=metrics[:room])
            metrics = metrics[room:]
        self._client.log_batch(run_id, metrics=metrics, params=params, tags=tags)
        sent |= named


def _sequence(run: Run) -> int:
    """Return the newest journal record of a run."""
    return int(run.data.tags.get(SEQUENCE_TAG, -1))


def _preference(run: Run) -> tuple[bool, int, int]:
    """Sort key for several runs of one place, made by a repeated creation: the run to keep comes first."""
    return run.info.lifecycle_stage != ACTIVE, -_sequence(run), run.info.start_time


#: MLflow's tag of an input; the profile describes the data set's other splits.
CONTEXT_TAG, CONTEXT = "mlflow.data.context", "training"

#: Length of a data set's digest; MLflow's tables allow 36.
DIGEST_CHARACTERS = 16


def used_dataset(named: Mapping[str, Any], recorded: Mapping[str, Any]) -> Dataset:
    """Describe the data set of a configuration.

    Args:
        named: name and options of the data set.
        recorded: the manifest's facts about the sweep's data set: name, options, `samples`, `classes`, `split_hash`.
    """
    from mlflow.entities import Dataset

    options = {key: value for key, value in named.items() if key != "name"}
    own = all(recorded.get(key) == value for key, value in named.items())
    facts = {key: recorded[key] for key in ("samples", "classes", "split_hash") if own and key in recorded}
    whole = json.dumps([dict(named), facts.get("split_hash")], sort_keys=True, default=str)
    sizes = facts.pop("samples", {})
    profile = {**({"num_rows": sum(sizes.values())} if sizes else {}), **sizes, **facts, **options}
    digest = hashlib.sha256(whole.encode()).hexdigest()[:DIGEST_CHARACTERS]
    return Dataset(str(named["name"]), digest, *_source(named), profile=json.dumps(profile, default=str))


def _source(named: Mapping[str, Any]) -> tuple[str, str]:
    """Return type and JSON of the source: the data's folder, else the code that loads them."""
    folder = named.get("folder")
    if isinstance(folder, str):
        return "local", json.dumps({"uri": Path(folder).expanduser().absolute().as_uri()})
    loader = str(named["name"]) if ":" in str(named["name"]) else f"trainables.datasets: {named['name']}"
    return "code", json.dumps({"tags": {"mlflow.source.type": "LOCAL", "mlflow.source.name": loader}})
