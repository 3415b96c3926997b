"""Mukhoti's Table 3 and Fig. 5: a Transformer on WMT 2014, trained by a loop of its own and measured token by token."""
