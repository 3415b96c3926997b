"""Parquet tables: projections of the journal, which can be rebuilt from it.

Imports journal, state and schemas, and nothing that runs a sweep. The writer is a `Sink` of
`sweeper.execution.driver.context`, which `sweeper.execution.attempt` hands to the driver.
"""
