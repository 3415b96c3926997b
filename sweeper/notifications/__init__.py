"""Telling webhooks and commands of a sweep. No failure here is one of the sweep.

Imports the state of a sweep and its progress; nothing imports it but `running`, `cli` and the check of a space.
"""
