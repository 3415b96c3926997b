"""One trial in a process of its own: its settings, its turns, its checkpoints and what it writes."""
