"""Running and resuming a sweep: the driver decides, Ray executes, controllers steer.

Imports everything here but `cli` and `remote`; `ray` in `executor` and the files whose names begin with `ray_`.
"""
