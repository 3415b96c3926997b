"""Recalibration of stored predictions: post-hoc methods and bins without training. Reads tables, writes one.

Imports `results` and `trainables.posthoc`.
"""
