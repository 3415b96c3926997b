"""Run and resume sweeps, from the search space to the report.

`driver` decides which trial runs next, `local` and `ray` execute trials. Imports every folder of `sweeper` except
`api`; only the folder `ray` imports Ray.
"""
