"""Progress of sweeps, once or live: in a terminal, for watchers, in a notebook.

Imports the fold of the journal, and nothing that runs a sweep.
"""
