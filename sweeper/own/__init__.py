"""The user's own components: where their code lies, how it is tried before a sweep, and kept with it.

Imports `spec` and `trainables.extensions`.
"""
