"""Taking a sweep's result elsewhere: a trained network as a calibrated program with its model card.

Reads tables and checkpoints; writes only the files that were asked for.
"""
