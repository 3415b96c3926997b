"""Controllers of a running sweep: its budget, the cluster's capacity, other sweeps next to it, shares of a GPU."""
