"""Judge differences between candidates: arrays in, data out. No files and no sentences.

Imports numpy and scipy, nothing of this package. `judge` answers a question; its parts are pairs of candidates, their
moderated spreads, the test samples' share, and the seeds that would decide. `outliers` finds seeds in bad optima.
"""
