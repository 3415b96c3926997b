"""One trial in a separate process: its settings, its turns, its checkpoints and what it writes."""
