"""Notifications to webhooks and commands. A failure here never fails the sweep.

Imports the state of a sweep and its progress.
"""
