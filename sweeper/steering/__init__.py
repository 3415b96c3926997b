"""People and agents at a sweep: what they looked at on test data, and what they asked of it while it ran."""
