"""Times in words."""

from __future__ import annotations

import pytest

from sweeper.text.durations import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (45.4, "45 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (3599.6, "1 h"),
        (11_400, "3 h 10 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
