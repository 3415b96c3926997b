"""Papers' tables and figures, filled in from sweeps or formulas, next to the published numbers.

Imports `results`, `statistics`, `claims` and `space`: a number's recipe is the shipped search space that trains it.
"""
