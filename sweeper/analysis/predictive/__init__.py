"""What the stored predictions of finished networks give without training: ensembles and conformal sets.

Reads tables, writes none.
"""
