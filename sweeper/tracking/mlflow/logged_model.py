"""Log an exported model to MLflow with its run, metrics and data set, and on request register it."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sweeper.core.display import redact
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, configuration_index
from sweeper.journal.journal import read_journal
from sweeper.journal.state import fold
from sweeper.scheduling.contenders import unit_of
from sweeper.storage.lookup import find_sweep
from sweeper.tracking.mlflow.client import used_dataset
from sweeper.tracking.mlflow.experiment import find_experiment, shared_experiment
from sweeper.tracking.mlflow.pages import store
from sweeper.tracking.runs import identity_of
from sweeper.tracking.sync import tracked

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run
    from mlflow.tracking import MlflowClient

BEST_ALIAS = "best"
KIND = "classifier"

#: MLflow's own tag with a model's versions in the registry, which its page shows.
VERSIONS_TAG = "mlflow.modelVersions"


def log_model(folder: Path, name: str, output: Path, uri: str, register: str | None = None) -> str:
    """Log an exported model to the run of its trial; return a sentence with its address.

    Its metrics are named `calibrated_<split>_<metric>`.

    Args:
        folder: folder of the export.
        name: name of its sweep.
        output: folder of the sweep.
        uri: address of the MLflow store.
        register: name in the registry, whose alias `best` then points to this model.

    Raises:
        SweeperError: the store cannot be reached, or has no run of the trial.
    """
    description = json.loads((folder / "model.json").read_text("utf-8"))
    source = description["source"]
    refused = f"the model is written, but MLflow at {redact(uri)} refused it"
    with store(uri, refused, "start the server or correct --tracking-uri, and export into another folder") as client:
        run = _run_of(client, find_sweep(name, output), source, uri)
        model = _logged(client, run, folder, description)
        _log_metrics(client, run, model, description)
        with _default_store(uri):
            version = _registered(client, run, model, register) if register else None
    where = f"logged in MLflow as models:/{model.model_id}"
    if version is None:
        return where
    alias = f"alias {BEST_ALIAS}: models:/{register}@{BEST_ALIAS}"
    return f"{where}; registered as {register}, version {version}, {alias}"


def _run_of(client: MlflowClient, paths: SweepPaths, source: Mapping[str, Any], uri: str) -> Run:
    """Return the up-to-date run of an exported trial of this sweep, not of another sweep of the same name."""
    state = fold(read_journal(paths.journal), len(tracked(paths).configurations))
    trial = source["trial"]
    # An added seed has its own run. An ensemble is logged with the run of its first replicate.
    unit = unit_of(state, configuration_index(trial), source["replicates"][0])
    wanted = {**identity_of(paths), "configuration": str(unit.configuration), "attempt": str(unit.attempt)}
    filters = " AND ".join(f"tags.{key} = '{value}'" for key, value in wanted.items())
    experiment = find_experiment(client, paths, shared_experiment(paths))
    runs = client.search_runs([experiment.experiment_id], filters, max_results=1) if experiment is not None else []
    if not runs:
        raise SweeperError(
            f"MLflow at {redact(uri)} has no run of {trial} of the sweep {paths.name!r} as it is now",
            f"complete it with `sweeper manage sync {paths.in_commands}`, then export again",
        )
    return runs[0]


def _logged(client: MlflowClient, run: Run, folder: Path, description: Mapping[str, Any]) -> LoggedModel:
    """Create the logged model with its files, and link it to the run."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    source, posthoc = description["source"], description["posthoc"]
    network = source["configuration"]["architecture"]["name"].replace(":", "-")
    replicates = ", ".join(map(str, source["replicates"]))
    tags = {"trial": source["trial"], "sweep": source["sweep"], "split_hash": source["split_hash"]}
    params = {"posthoc": posthoc["method"], "replicates": replicates, **posthoc["parameters"], **run.data.params}
    model = client.create_logged_model(
        run.info.experiment_id,
        name=f"{source['trial']}-{network}",
        source_run_id=run.info.run_id,
        tags=tags,
        params={key: str(value) for key, value in params.items()},
        model_type=KIND,
    )
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "model"
        shutil.copytree(folder, copy)
        # MLflow's `log_model` also writes the model's id and location into this file, and its loaders read them.
        stated = yaml.safe_load((copy / "MLmodel").read_text("utf-8"))
        stated |= {"model_id": model.model_id, "run_id": run.info.run_id, "artifact_path": model.artifact_location}
        (copy / "MLmodel").write_text(yaml.safe_dump(stated, sort_keys=False), encoding="utf-8")
        client.log_model_artifacts(model.model_id, str(copy))
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step=source["epoch"])])
    return model


def _log_metrics(client: MlflowClient, run: Run, model: LoggedModel, description: Mapping[str, Any]) -> None:
    """Log the metrics of the exported probabilities, linked to the model and the data set."""
    source = description["source"]
    used, epoch = used_dataset(source["dataset"], source["dataset_facts"]), source["epoch"]
    for split, values in description["metrics"].items():
        for name, value in values.items():
            client.log_metric(
                run.info.run_id, f"calibrated_{split}_{name}", value, step=epoch,
                model_id=model.model_id, dataset_name=used.name, dataset_digest=used.digest,
            )  # fmt: skip


def _registered(client: MlflowClient, run: Run, model: LoggedModel, name: str) -> str:
    """Register the model as a new version with the alias; return the version."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    made = client.create_model_version(
        name, f"models:/{model.model_id}", run_id=run.info.run_id, model_id=model.model_id, tags=model.tags
    )
    client.set_registered_model_alias(name, BEST_ALIAS, made.version)
    versions = json.dumps([{"name": name, "version": str(made.version)}])
    client.set_logged_model_tags(model.model_id, {VERSIONS_TAG: versions})
    return str(made.version)


@contextlib.contextmanager
def _default_store(uri: str) -> Iterator[None]:
    """Make a store MLflow's default within this context."""
    # When MLflow registers a model, it looks up `models:/<model_id>` in the default store, not in the client's store.
    import mlflow

    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)
