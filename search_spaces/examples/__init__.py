"""Components of one's own, a worked example of each kind, and a search space that uses all five.

`sweeper run examples/own_components` runs them; copy the folder to begin with yours. `trainables.extensions` says what
each kind has to provide. The files import `trainables` and what is installed, nothing of `sweeper`.
"""
