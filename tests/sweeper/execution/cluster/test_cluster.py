"""A remote sweep's progress, from what its driver has printed."""

from sweeper.core.labels import PROGRESS
from sweeper.execution.cluster.cluster import last_progress

RUNNING = f"running\n{PROGRESS}3 waiting, 1 completed\nno word\n{PROGRESS}2 running, 4 completed · 1.3 epochs/s\n"


def test_the_last_line_of_progress_counts() -> None:
    assert last_progress(RUNNING) == "2 running, 4 completed · 1.3 epochs/s"
    assert last_progress(f"{RUNNING}{PROGRESS}6 completed\nnext\n") == "6 completed"
    assert last_progress("nothing yet\n3 more things\n") == ""
