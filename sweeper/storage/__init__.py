"""Where a sweep's files are: names, manifests and leases in a folder, and the same in an object store.

Imports `journal`, `space`, `tables` and `trainables.files.stores`.
"""
