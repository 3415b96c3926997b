"""The sweeps that a tracking store holds."""

from __future__ import annotations

import os

from sweeper.core.errors import SweeperError
from sweeper.text.redaction import redact
from sweeper.tracking.shared_view import TAG
from trainables.registry.nearest import did_you_mean

MOST = 1000
"""The newest experiments that are looked at."""


def experiments(uri: str, name: str | None = None) -> list[tuple[str, str]]:
    """Return name and experiment's id of the sweeps in a store, the newest first; of `name` alone if given.

    Raises:
        SweeperError: the store cannot be read, or has no such sweep.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    try:
        found = MlflowClient(tracking_uri=uri).search_experiments(max_results=MOST, order_by=["creation_time DESC"])
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise SweeperError(
            f"MLflow at {redact(uri)} cannot be read: {redact(str(error).splitlines()[0])}",
            "correct --tracking-uri, or start the server",
        ) from error
    sweeps = [(each.name, each.experiment_id) for each in found if TAG in each.tags]
    if name is None:
        return sweeps
    named = [each for each in sweeps if each[0] == name]
    if not named:
        known = tuple(each[0] for each in sweeps)
        raise SweeperError(
            f"MLflow at {redact(uri)} has no sweep {name!r}{did_you_mean(name, known)}",
            f"complete it with `sweeper sync {name}`",
        )
    return named
