"""Papers' tables and figures, filled in from sweeps or formulas, next to the published numbers.

The recipe of a number is the shipped search space that trains it. Nothing in `sweeper` or `trainables` imports this
package.
"""
