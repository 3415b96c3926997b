"""Domains of hyperparameters (`uniform`, `choice`, `one_of` …), and how values are chosen from them."""
