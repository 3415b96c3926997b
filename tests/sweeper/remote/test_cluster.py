"""A remote sweep's progress, from what its driver has printed."""

from __future__ import annotations

from sweeper.remote.cluster import last_progress

RUNNING = "running\n3 waiting, 2 running, 1 completed · 1.2 epochs/s\n2 running, 4 completed · 1.3 epochs/s\n"
SUMMARY = "\nBest validation NLL …\n\n6 trials: 4 finished, 2 stopped early\nstopped 2 of 6 at rung 3\n\nnext\n"


def test_while_it_runs_the_last_line_counts_and_after_the_end_the_summary() -> None:
    assert last_progress(RUNNING) == "2 running, 4 completed · 1.3 epochs/s"
    assert last_progress(RUNNING + SUMMARY) == "6 trials: 4 finished, 2 stopped early"
    assert last_progress("1,200 trials: 1,200 finished\n") == "1,200 trials: 1,200 finished"
    assert last_progress("nothing yet\n3 more things\n") == ""
