"""Mukhoti's Table 3 and Fig. 5: a Transformer on WMT 2014, with its own training loop, measured token by token."""
