"""The experiment of a sweep in an MLflow store, found by the sweep's id, so that it keeps its runs when it is renamed.

An experiment is named after its sweep. A sweep of the same name in another folder gets an experiment of its own, named
after the folder too: `quickstart (mine/results)`. Only `tracking.experiment` of a search space makes sweeps share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.core.ids import SweepPaths
from sweeper.journal.segments import last_sequence, sweep_id
from sweeper.storage.metadata import read_specification, user_and_host

if TYPE_CHECKING:
    from mlflow.entities import Experiment
    from mlflow.tracking import MlflowClient

#: An experiment's tags with its sweep's id, which marks it as a sweep's, and with the sweep's machine and folder.
SWEEP_TAG, PLACE_TAG = "sweep_id", "sweep_folder"

#: MLflow's lifecycle stage of runs and experiments that are not deleted.
ACTIVE = "active"


def find_experiment(client: MlflowClient, paths: SweepPaths, shared: str | None = None) -> Experiment | None:
    """Return the experiment of a sweep, also if it was deleted, or made under another name; `None` if there is none.

    Args:
        client: client of the store.
        paths: the sweep, whose journal has a record.
        shared: name of the experiment that the search space names.
    """
    from mlflow.entities import ViewType

    if shared is not None:
        return client.get_experiment_by_name(shared)
    identity, place = sweep_id(paths.journal), _place(paths.root)
    known = client.search_experiments(ViewType.ALL, filter_string=f"tags.{SWEEP_TAG} = '{identity}'")
    own = [experiment for experiment in known if experiment.tags.get(PLACE_TAG) == place]
    moved = [experiment for experiment in known if not _is_there(experiment.tags.get(PLACE_TAG, ""), identity)]
    return next(iter((*own, *moved)), None)


def shared_experiment(paths: SweepPaths) -> str | None:
    """Return the name of the experiment that a sweep's search space names."""
    name: str | None = (read_specification(paths.sweep_file).get("tracking") or {}).get("experiment")
    return name


def make_experiment(
    client: MlflowClient, paths: SweepPaths, shared: str | None, create: Callable[[str, Mapping[str, str]], str]
) -> Experiment:
    """Return the experiment of a sweep, with its name and tags up to date.

    Args:
        client: client of the store.
        paths: the sweep, whose journal has a record.
        shared: name of the experiment that the search space names.
        create: function that creates an experiment of a name with tags.
    """
    identity, place = sweep_id(paths.journal), _place(paths.root)
    tags = {SWEEP_TAG: identity, PLACE_TAG: place} if shared is None else {SWEEP_TAG: "several"}
    experiment = find_experiment(client, paths, shared)
    for name in _names(paths, identity) if shared is None else (shared,):
        named = client.get_experiment_by_name(name)
        if experiment is None:
            named = named or _created(client, name, lambda name: create(name, tags))
            # An earlier sweep of this folder leaves its experiment to this one, whose runs have another id.
            experiment = named if shared is not None or named.tags.get(PLACE_TAG) == place else None
        elif named is not None and named.experiment_id != experiment.experiment_id:
            continue
        if experiment is not None:
            return _refreshed(client, experiment, name, tags)
    raise AssertionError("the last name has the sweep's id")


def _created(client: MlflowClient, name: str, create: Callable[[str], str]) -> Experiment:
    from mlflow.exceptions import MlflowException

    try:
        create(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another sweep was first, or an answer was lost
            raise
    return client.get_experiment_by_name(name)


def _refreshed(client: MlflowClient, experiment: Experiment, name: str, tags: Mapping[str, str]) -> Experiment:
    if experiment.lifecycle_stage != ACTIVE:
        client.restore_experiment(experiment.experiment_id)
    if experiment.name != name:
        client.rename_experiment(experiment.experiment_id, name)
    for key, value in tags.items():
        if experiment.tags.get(key) != value:
            client.set_experiment_tag(experiment.experiment_id, key, value)
    return experiment


def _names(paths: SweepPaths, identity: str) -> Iterator[str]:
    """Yield names for a sweep's experiment, the preferred one first."""
    yield paths.name
    yield f"{paths.name} ({Path(*paths.root.parent.parts[-2:])})"
    yield f"{paths.name} ({identity})"


def _place(root: Path) -> str:
    return f"{user_and_host()}:{root}"


def _is_there(place: str, identity: str) -> bool:
    """Return whether a place is a folder of this machine that still has the sweep, of which the other is a copy."""
    machine, _, folder = place.partition(":")
    journal = SweepPaths(Path(folder)).journal
    return machine == user_and_host() and last_sequence(journal) >= 0 and sweep_id(journal) == identity
