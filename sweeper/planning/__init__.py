"""What a sweep will take, said before anything is trained: trials, time, GPU-hours, nodes, prices.

Imports `spec`, `search` and `trainables`; neither journal nor tables.
"""
