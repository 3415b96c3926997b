"""The location of a sweep's files without a shared folder: a store's addresses, journal, lease and mirror.

Imports `ids`, `journal` and `trainables.worker.object_store`.
"""
