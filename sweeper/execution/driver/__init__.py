"""The driver's decisions: what to run next, what a report means, what a failure means. Knows nothing of Ray."""
