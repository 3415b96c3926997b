"""Running a sweep and taking it up again: the driver decides, Ray carries out, budget and peers look on.

Imports everything here but `cli` and `remote`; `ray` in `executor` and the files whose names begin with `ray_`.
"""
