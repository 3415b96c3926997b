"""Papers' tables and figures, filled in from sweeps' rows or from formulas, the published numbers beside them.

Imports `results` and `statistics`.
"""
