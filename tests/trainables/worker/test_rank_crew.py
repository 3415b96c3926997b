"""Which of several lost ranks is named as the cause; the rest is seen in test_rank_process.py."""

from __future__ import annotations

import pytest

from trainables.worker.rank_crew import RankFault, first_lost

MISSED = RankFault("RuntimeError: Connection closed by peer", exchanging=True)
OWN = RankFault("ValueError: no such file", exchanging=False)


@pytest.mark.parametrize(
    ("heard", "cause"),
    [
        ({3: MISSED, 1: None, 2: MISSED}, 1),
        ({2: MISSED, 3: OWN, 1: MISSED}, 3),
        ({1: OWN}, 1),
        ({2: MISSED, 1: MISSED}, 2),
    ],
)
def test_the_rank_that_missed_no_other_is_the_cause(heard: dict[int, RankFault | None], cause: int) -> None:
    assert first_lost(heard) == cause
