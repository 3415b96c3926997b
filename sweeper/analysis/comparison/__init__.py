"""Comparison of two sweeps and its view in a terminal. Reads tables.

Imports `results`, `several` and `statistics`.
"""
