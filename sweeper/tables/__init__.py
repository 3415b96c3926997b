"""Parquet tables: projections of the journal, which can be rebuilt from it.

This package imports journal, state and schemas, but no code that runs a sweep. The writer is a `Sink` of
`sweeper.execution.driver.context`, which `sweeper.execution.attempt` passes to the driver.
"""
