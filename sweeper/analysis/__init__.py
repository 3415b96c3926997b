"""Analysis of finished sweeps: statistics, claims, comparisons, papers' tables, recalibration. Reads tables."""
