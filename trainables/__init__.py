"""The science: what happens inside one trial. Knows nothing of sweeps, trackers or the command line.

Only `trainable` imports ray. Modules import torch, numpy and pyarrow at their top and nothing slower, because
every worker process pays for it.
"""
