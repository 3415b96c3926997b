"""The driver: choose the next trial, judge reports, handle failures. Independent of Ray."""
