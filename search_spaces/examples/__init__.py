"""Your own components: one worked example of each kind, and search spaces that use them.

`sweeper run examples/own_components` runs all five; copy the folder to start with yours. `trainables.extensions` says
what each kind has to provide. Components import `trainables` and installed packages, nothing from `sweeper`.
"""
