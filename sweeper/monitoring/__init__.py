"""How far a sweep has come, at one moment or while it runs: in a terminal, to onlookers, in a notebook.

Imports the fold of the journal, and nothing that runs a sweep.
"""
