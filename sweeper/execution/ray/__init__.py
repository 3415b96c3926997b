"""Ray: where it runs, what carries trials out, and what the cluster looks like."""
