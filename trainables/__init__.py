"""The code that runs inside one trial. It does not depend on sweeps, trackers or the command line.

Only `trainable` imports ray. At their top, modules import nothing slower than torch, numpy and pyarrow, because every
worker process waits for these imports.
"""
