"""What readers see of the scheduler's reasons."""

from __future__ import annotations

import pytest

from sweeper.scheduling.asha import Promotion
from sweeper.scheduling.base import decide
from sweeper.text.labels import ordinal, plain_reason

NUMBER = "val_nll 0.0483 is number 1 of"


@pytest.mark.parametrize(
    ("reason", "plain"),
    [
        (
            f"{NUMBER} 1 at rung 9, of which the first 0 are promoted; it pauses, within resnet8, cross_entropy",
            "Epoch 9: 1st of 1 (resnet8, cross_entropy); none promoted yet. Paused.",
        ),
        (
            f"promoted: {NUMBER} 2 at rung 9, of which the first 0 are promoted; it continues, for nothing else is "
            "left and the best 1 are kept (keep_at_least), within mlp",
            "Epoch 9: 1st of 2 (mlp). Promoted: keep_at_least: 1 always trains one to the end.",
        ),
        (
            "never promoted: val_nll 0.5 is number 3 of 3 at rung 1, of which the first 1 are promoted; it stops",
            "Epoch 1: 3rd of 3; the first 1 promoted. Never promoted, so stopped.",
        ),
        ("reached the last epoch, 27", "reached the last epoch, 27"),
    ],
)
def test_a_promotion_is_told_in_short_sentences(reason: str, plain: str) -> None:
    assert plain_reason(reason) == plain


def test_what_the_scheduler_writes_today_is_understood() -> None:
    scheduler = Promotion("val_nll", "min", max_epochs=9, grace_epochs=1, reduction_factor=3)
    decision = decide(scheduler.begin(), 0, 1, 0.5)
    assert decision is not None and plain_reason(decision.reason) == "Epoch 1: 1st of 1; none promoted yet. Paused."


def test_places() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"
    ]  # fmt: skip
