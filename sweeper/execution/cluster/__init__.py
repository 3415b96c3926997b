"""Submit sweeps to a remote Ray cluster and follow them through its Jobs API.

Imports `storage` and `space`; only `cluster` imports Ray.
"""
