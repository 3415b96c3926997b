"""What a search space file may say, read and checked: from its bytes to a `SweepSpec`, or to all its faults at once."""
