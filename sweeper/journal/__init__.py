"""The source of truth about a sweep: immutable records, and the state of its trials as their fold."""
