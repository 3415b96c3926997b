"""Intervals, tests, correlations and importances of given rows. No I/O.

Imports numpy and scipy, nothing of this package.
"""
