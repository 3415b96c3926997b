"""Parquet tables: projections of the journal, which can be rebuilt from it.

Sinks import journal, state and schemas, and nothing that runs a sweep; `mlflow` only in files that begin with it. A
sink is what `sweeper.execution.driver.driver.Sink` asks for, and `sweeper.execution.runner` hands it to the driver.
"""
