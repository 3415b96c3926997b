"""The service: what to run, how it runs and survives, where results land, how they are read and shown.

Imports `trainables`; nothing there imports this. Only `executor` (and later `cluster`) imports ray, only
`sinks.mlflow` imports mlflow, and only `cli` prints.
"""
