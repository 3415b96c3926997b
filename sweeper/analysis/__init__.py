"""What is made of finished sweeps: statistics, claims, comparisons, papers' tables, recalibration. Reads tables."""
