"""Estimates before training: trials, time, GPU-hours, nodes, prices.

Imports `spec`, `search` and `trainables`; neither journal nor tables.
"""
