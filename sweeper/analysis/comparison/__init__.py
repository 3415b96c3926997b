"""Two sweeps side by side, and how that looks in a terminal. Reads tables.

Imports `results`, `several` and `statistics`.
"""
