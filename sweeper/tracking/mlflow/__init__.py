"""MLflow: runs, artifacts, pages and models, through its public client. Only this folder imports `mlflow`."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import the tracker on first use: commands import this folder's pages, and most of them need no tracker."""
    if name != "TRACKER":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sweeper.tracking.mlflow.client import MlflowTracker

    return MlflowTracker
