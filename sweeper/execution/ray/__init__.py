"""Ray: sessions, the executor, and the view of the cluster."""
