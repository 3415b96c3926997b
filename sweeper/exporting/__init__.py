"""Export a trained network as a calibrated program with its model card.

Reads tables and checkpoints; writes only into the requested folder.
"""
