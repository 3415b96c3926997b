"""One trial in a separate process: its settings, its training, its checkpoints and its output."""
