"""Sweeps on this machine without Ray: forked trial processes, and the loop that serves them.

Imports the driver and `trainables.worker`; neither ray nor anything of `sweeper.execution.ray`.
"""
