"""Intervals, tests, correlations and importances of given rows. No I/O; imports nothing else of this package.

Imports numpy and scipy, nothing of this package.
"""
