"""Intervals, tests, correlations and importances of rows that are given. No I/O, nothing else of this package.

Imports numpy and scipy, nothing of this package.
"""
