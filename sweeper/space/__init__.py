"""What a search space file may say, read and checked: from its bytes to a `SweepSpec`, or to all its faults at once.

Imports `search.choices` and registries of `trainables`; neither journal nor tables.
"""
