"""The sweeps of a store, for the links that `sweeper ui` prints."""

from __future__ import annotations

import pytest
from mlflow.tracking import MlflowClient

from sweeper.core.errors import SweeperError
from sweeper.tracking import sync as projection
from sweeper.tracking.experiments import experiments
from tests.sweeper.records import made_body


def test_sweeps_are_listed_and_found_by_name_and_nothing_else_is(random_sweep, tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for name in ("first", "second"):
        sweep = random_sweep(1, name=name, count=2)
        sweep.write_spec()
        sweep.journal().append(made_body("attempt", {"attempt": 1}))
        projection.sync(sweep.root, uri)
    client = MlflowClient(uri)
    client.create_experiment("somebody's own")
    ids = {name: client.get_experiment_by_name(name).experiment_id for name in ("first-1", "second-1")}
    assert dict(experiments(uri)) == ids
    assert experiments(uri, "first-1") == [("first-1", ids["first-1"])]
    with pytest.raises(SweeperError, match=r"has no sweep 'frist-1'; did you mean 'first-1'\?"):
        experiments(uri, "frist-1")
