"""MLflow: a process beside the driver that follows the journal and fills runs in. Only this folder imports `mlflow`."""
