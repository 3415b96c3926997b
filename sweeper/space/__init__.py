"""Read and check a search space file: from its bytes to a `SweepSpec`, or to all its faults at once.

Imports `scheduling`, `search`, the registries of `trainables`, and the configurations in the journal.
"""
