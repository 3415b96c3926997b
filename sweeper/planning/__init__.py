"""Estimates before training: trials, time, GPU-hours, nodes; and what this machine lacks.

Imports `space`, `scheduling` and `trainables`; neither journal nor tables.
"""
