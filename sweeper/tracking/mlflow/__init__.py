"""MLflow: runs, artifacts, pages and models, through its public client. Only this folder imports `mlflow`."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

from sweeper.tracking.base import TrackedSweep, Tracker, TrackerKind

#: The store schemes built into MLflow 3; plugins register others.
SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks", "databricks-uc")

PLUGINS = "mlflow.tracking_store"


def _open(address: str, sweep: TrackedSweep) -> Tracker:
    # Imported late: MLflow takes more than a second, which commands that do not track should not spend.
    from sweeper.tracking.mlflow.client import MlflowTracker

    return MlflowTracker(address, sweep)


def _errors() -> tuple[type[Exception], ...]:
    if "mlflow" not in sys.modules:  # then MLflow cannot have raised an error, and importing it takes seconds
        return (OSError,)  # requests' exceptions are OSErrors
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError


def _fault(address: str) -> tuple[str, str] | None:
    scheme, separator, _ = address.partition("://")
    kind = scheme.partition("+")[0]  # `mysql+pymysql`: database and driver
    if not separator or kind in SCHEMES or scheme in {plugin.name for plugin in entry_points(group=PLUGINS)}:
        return None
    known = ", ".join(f"{name}://" for name in SCHEMES)
    return f"{scheme}:// is not an MLflow tracking store", f"use one of {known}, or --no-mlflow"


TRACKER = TrackerKind("MLflow", _open, _errors, _fault)
