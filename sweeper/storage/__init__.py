"""Where a sweep's files lie when no folder is shared: a store's addresses, journal, lease and mirror.

Imports `ids`, `journal` and `trainables.worker.object_store`.
"""
