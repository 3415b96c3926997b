"""Sweeps on a Ray cluster elsewhere, submitted and watched through its Jobs API.

Imports `storage` and `space`; `ray` in `cluster` alone.
"""
