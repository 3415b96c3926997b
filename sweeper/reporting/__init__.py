"""A sweep's results for readers: the first screen, the summary of a run, live progress, and self-contained pages.

Results come from the tables (through `sweeper.results`), and progress from the journal. Ray and trackers are not
imported.
"""
