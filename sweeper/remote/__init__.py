"""Sweeps on a Ray cluster elsewhere: sent there, asked after, reached through its Jobs API.

Imports `store` and `spec`; `ray` in `cluster` alone.
"""
