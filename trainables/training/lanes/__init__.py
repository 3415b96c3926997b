"""Lanes: networks trained together as one batched network, either replicates of a trial or different trials.

Each lane has its own loss, learning rate, momentum, decay, clipping, schedule, order of data and random numbers, and
its own epoch. Lanes join and leave between epochs. `trainables.worker` fills cohorts with trials.
"""
