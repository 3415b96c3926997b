"""Sweeps on a Ray cluster elsewhere: sent there, asked after, reached through its Jobs API."""
