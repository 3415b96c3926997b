"""Reading and checking a search space file: from its bytes to a `SweepSpec`, or to all its faults at once.

Imports `search.choices` and registries of `trainables`; neither journal nor tables.
"""
