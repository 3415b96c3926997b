"""Sweeps as Slurm jobs: a head that drives, and one-GPU jobs or whole nodes that train for it and may be preempted.

`settings` reads what a site wants of its jobs, `script` writes the batch scripts, `jobs` asks Slurm; `head` and
`worker` are what the scripts start. Everything they say to each other lies in `<output>/.slurm/<sweep>/`.
"""
