"""MLflow: runs, artifacts, pages and models, through its public client. Only this folder imports `mlflow`."""

from sweeper.tracking.mlflow.client import MlflowTracker

TRACKER = MlflowTracker
