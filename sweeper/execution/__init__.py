"""Running and resuming a sweep, from its search space to its report.

`driver` decides what runs next, `local` and `ray` carry trials out. Imports everything here but
`api`, `cli` and `remote`; `ray` in the folder of that name alone.
"""
