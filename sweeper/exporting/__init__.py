"""Taking a sweep's result elsewhere: a trained network as a calibrated program, figures and tables for a paper.

Reads tables and checkpoints; writes only the files that were asked for.
"""
