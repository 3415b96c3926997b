"""Lanes: networks trained together as one batched network, either replicates of a trial or different trials.

Lanes can differ in loss, learning rate, momentum, decay, clipping, schedule, order of data, random numbers and epoch.
Lanes join and leave between epochs. `trainables.worker` fills cohorts with trials.
"""
