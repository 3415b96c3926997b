"""Sweeps as Slurm jobs: a head job with the driver, and preemptible worker jobs (one GPU or whole nodes) that train.

`settings` reads a site's `slurm.yaml` and writes the batch scripts, `jobs` calls Slurm's commands; the scripts start
`head` and `worker`, which communicate through files in `<output>/.slurm/<sweep>/`.
"""
