"""What steers a running sweep: its budget, the cluster's capacity, other sweeps beside it, shares of a card."""
