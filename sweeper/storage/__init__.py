"""Storage of sweeps: names, manifests and leases in a folder or in an object store.

Imports `journal`, `space`, `tables` and `trainables.files.stores`.
"""
