"""Writing runs through MLflow's public client: any store, and the only way to a server.

A call that fails may have been carried out all the same. So after a failure the store is asked again what it holds,
and where a creation turns out to have happened twice, the younger run is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.tracking.dataset_input import CONTEXT, CONTEXT_TAG, UsedDataset
from sweeper.tracking.diagrams import DIAGRAM_TAG
from sweeper.tracking.runs import GENERATION_TAG, SWEEP_RUN, RunUpdate

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

SEQUENCE_TAG = "journal_sequence"
"""The tag with the newest journal record that a run holds."""

PARENT_TAG = "mlflow.parentRunId"
"""MLflow's own tag that makes a run a child of another."""

DESCRIPTION_TAG = "mlflow.note.content"
"""MLflow's own tag with the description that its pages show."""

EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""What makes MLflow's page of an experiment open on its runs, and not ask what kind it is."""

BATCH_ENTITIES = 1000
"""MLflow takes this many metrics, params and tags together in one batch."""

TEXTS_A_BATCH = 100
"""MLflow takes this many params, and as many tags, in one batch."""

SERVER_ANSWERS_WITHIN = 3.0
"""Seconds in which a healthy server has answered: twenty times what its largest request takes, 0.15 s."""

DATABASE_ANSWERS_WITHIN = 20.0
"""The same for a database that is written to directly: creating its tables, or a bulk write, takes seconds."""


@dataclass(frozen=True)
class FoundRun:
    """A run of the sweep that a store holds already, by MLflow's own words for its parts."""

    run_id: str
    status: str
    active: bool
    start_time: int
    tags: Mapping[str, str]

    @property
    def place(self) -> int:
        """The configuration's index, or `SWEEP_RUN`."""
        configuration = self.tags["configuration"]
        return SWEEP_RUN if configuration == "sweep" else int(configuration)

    @property
    def generation(self) -> str:
        """The generation of the journal that the run was made from."""
        return self.tags.get(GENERATION_TAG, "")

    @property
    def sequence(self) -> int:
        """The newest journal record that the run holds."""
        return int(self.tags.get(SEQUENCE_TAG, -1))


class ClientStore:
    """The runs of one sweep in a tracking store, by place."""

    def __init__(
        self,
        uri: str,
        experiment: str,
        artifact_location: str | None,
        description: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Take note; nothing is sent before `prepare` and `connect`.

        Args:
            uri: of the tracking store.
            experiment: its name; created when missing, restored when deleted.
            artifact_location: of a new experiment; `None` leaves it to the server.
            description: of a new experiment, in Markdown.
            tags: further tags of the experiment, new or not.
        """
        self._uri, self._experiment, self._artifact_location = uri, experiment, artifact_location
        self.answers_within = SERVER_ANSWERS_WITHIN if uri.startswith("http") else DATABASE_ANSWERS_WITHIN
        self.answered: Callable[[], None] = lambda: None
        self._description, self._more_tags = description, dict(tags or {})
        self._unfinished: set[int] = set()
        self._sweep_id = self._generation = ""
        self._run_ids: dict[int, str] = {}
        self._statuses: dict[int, str] = {}
        self._tags: dict[str, str] = {}
        self.drawn: dict[int, str] = {}
        """Place → the epoch of the diagram that its run has, as `DIAGRAM_TAG` says."""

    def load(self) -> None:
        """Import what writing needs; that takes seconds, which are not the store's."""
        import mlflow.tracking  # noqa: F401

    def prepare(self) -> None:
        """Open the store, which creates it where it is a file, and the experiment."""
        self._experiment_id = self._open_experiment()

    @cached_property
    def _client(self) -> MlflowClient:
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=self._uri)

    def connect(self, sweep_id: str, generation: str) -> dict[int, int]:
        """Find the runs of sweep `sweep_id`; return the newest record that each place's run holds.

        Runs of another generation of its journal are deleted, as MLflow deletes: they can be restored.
        """
        self._sweep_id, self._generation, self._run_ids, self._statuses = sweep_id, generation, {}, {}
        self.drawn = {}
        known: dict[int, int] = {}
        for run in sorted(self._find_runs(), key=_preference):
            if run.place in known or run.generation != generation:
                if run.active:
                    self._client.delete_run(run.run_id)
                continue
            if not run.active:
                self._client.restore_run(run.run_id)
            self._run_ids[run.place], self._statuses[run.place] = run.run_id, run.status
            known[run.place] = run.sequence
            if DIAGRAM_TAG in run.tags:
                self.drawn[run.place] = run.tags[DIAGRAM_TAG]
            if run.place == SWEEP_RUN:
                self._tags = dict(run.tags)
        self._unfinished = {place for place, sequence in known.items() if sequence < 0}
        return known

    def write(self, updates: Iterable[RunUpdate]) -> None:
        """Send updates, the parent's first when there is one."""
        for update in updates:
            new = update.place not in self._run_ids or update.place in self._unfinished
            run_id = self._run_ids.get(update.place) or self._create(update)
            if new and update.dataset is not None:
                self._log_dataset(run_id, update.dataset)
            self._unfinished.discard(update.place)
            # The tag that says what a run holds goes last, so that it never promises too much.
            if self._statuses[update.place] != update.status:
                self._set_status(run_id, update)
            self._log(run_id, update)
            self.answered()

    def parent_tag(self, key: str) -> str | None:
        """Return a tag of the parent run, as it was found or set."""
        return self._tags.get(key)

    def set_parent_tag(self, key: str, value: str) -> None:
        """Set a tag of the parent run."""
        self._client.set_tag(self._run_ids[SWEEP_RUN], key, value)
        self._tags[key] = value

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Attach a file to the parent run, in `folder`."""
        self._client.log_artifact(self._run_ids[SWEEP_RUN], str(path), folder)

    def draw(self, files: Mapping[int, tuple[Path, int]]) -> None:
        """Attach diagrams to trials' runs: place → (file, epoch)."""
        for place, (path, epoch) in files.items():
            self._attach(self._run_ids[place], path)
            self._client.set_tag(self._run_ids[place], DIAGRAM_TAG, str(epoch))
            self.drawn[place] = str(epoch)
            self.answered()

    def _attach(self, run_id: str, path: Path) -> None:
        self._client.log_artifact(run_id, str(path))

    def _open_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            tags = {DESCRIPTION_TAG: self._description, **EXPERIMENT_TAGS, **self._more_tags}
            try:
                return str(self._client.create_experiment(self._experiment, self._artifact_location, tags))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._client.get_experiment_by_name(self._experiment)
        if found.lifecycle_stage != "active":
            self._client.restore_experiment(found.experiment_id)
        for key, value in self._more_tags.items():
            if found.tags.get(key) != value:
                self._client.set_experiment_tag(found.experiment_id, key, value)
        return str(found.experiment_id)

    def _find_runs(self) -> list[FoundRun]:
        from mlflow.entities import ViewType

        runs: list[FoundRun] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment_id],
                filter_string=f"tags.sweep_id = '{self._sweep_id}'",
                run_view_type=ViewType.ALL,
                max_results=1000,
                page_token=token,
            )
            for run in page:
                info = run.info
                runs.append(
                    FoundRun(info.run_id, info.status, info.lifecycle_stage == "active", info.start_time, run.data.tags)
                )
            token = page.token
            if not token:
                return runs

    def _create(self, update: RunUpdate) -> str:
        tags = dict(update.identity)
        if update.place != SWEEP_RUN:
            tags[PARENT_TAG] = self._run_ids[SWEEP_RUN]
        run = self._client.create_run(
            self._experiment_id, start_time=update.start_time, tags=tags, run_name=update.name
        )
        self._run_ids[update.place], self._statuses[update.place] = run.info.run_id, run.info.status
        return str(run.info.run_id)

    def _log_dataset(self, run_id: str, used: UsedDataset) -> None:
        """Record what a run trains on; a second time changes nothing."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(used.name, used.digest, used.source_type, used.source, profile=used.profile)
        self._client.log_inputs(run_id, datasets=[DatasetInput(dataset, [InputTag(CONTEXT_TAG, CONTEXT)])])

    def _set_status(self, run_id: str, update: RunUpdate) -> None:
        if update.end_time is None:
            self._client.update_run(run_id, status=update.status)
        else:
            self._client.set_terminated(run_id, status=update.status, end_time=update.end_time)
        self._statuses[update.place] = update.status

    def _log(self, run_id: str, update: RunUpdate) -> None:
        from mlflow.entities import Metric, Param, RunTag

        params = [Param(key, value) for key, value in update.params.items()]
        tags = [RunTag(key, value) for key, value in {**update.tags, SEQUENCE_TAG: str(update.sequence)}.items()]
        metrics = [Metric(*point) for point in update.points]
        for first in range(0, len(params), TEXTS_A_BATCH):
            self._client.log_batch(run_id, params=params[first : first + TEXTS_A_BATCH])
        room = BATCH_ENTITIES - min(len(tags), TEXTS_A_BATCH)
        while len(metrics) > room:
            self._client.log_batch(run_id, metrics=metrics[:BATCH_ENTITIES])
            metrics = metrics[BATCH_ENTITIES:]
        while len(tags) > TEXTS_A_BATCH:
            self._client.log_batch(run_id, tags=tags[:TEXTS_A_BATCH])
            tags = tags[TEXTS_A_BATCH:]
        self._client.log_batch(run_id, metrics=metrics, tags=tags)


def _preference(run: FoundRun) -> tuple[bool, int, int]:
    """Order runs of one place: the one to keep, of several that a repeated creation made, comes first."""
    return not run.active, -run.sequence, run.start_time
