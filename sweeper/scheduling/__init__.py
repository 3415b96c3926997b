"""Which trials go on: decisions as pure functions of the rungs so far and a report."""
