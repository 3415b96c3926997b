"""Estimates before training (trials, time, GPU-hours, nodes), and checks that a sweep can start here.

Imports `space`, `scheduling` and `trainables`; neither journal nor tables.
"""
