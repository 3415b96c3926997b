"""Telling webhooks and commands of a sweep. No failure here is one of the sweep."""
