"""Papers' tables and figures, filled in from sweeps or formulas, next to the published numbers.

Imports `results` and `statistics`.
"""
