"""Lanes: networks trained side by side as one batched network, replicates of a trial or trials of several kinds.

A lane has its own loss, learning rate, momentum, decay, clipping, schedule, order of data and random numbers, and may
be at another epoch than its neighbours. Lanes come and go between epochs. `trainables.worker` fills cohorts with
trials.
"""
