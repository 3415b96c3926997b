"""Reading and checking a search space file: from its bytes to a `SweepSpec`, or to all its faults at once.

`domains` holds what values may be chosen from. Imports `scheduling`, `search` and registries of `trainables`; of the
journal only the configurations that it has.
"""
