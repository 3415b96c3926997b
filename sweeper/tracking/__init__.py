"""Trackers, such as MLflow and TensorBoard: a process beside the driver follows the journal and fills their runs."""
