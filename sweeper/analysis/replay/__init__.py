"""Replays of a fully trained sweep: what another scheduler, other strata or another objective would have kept.

Imports `sweeper.results`, `sweeper.scheduling` and `sweeper.space`.
"""
