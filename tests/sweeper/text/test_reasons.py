"""How decisions are said in words: one sentence for each rule."""

from __future__ import annotations

import pytest

from sweeper.journal.records import Decision
from sweeper.text.reasons import RULES, decision_text, ordinal

SENTENCES = {
    "Epoch 3: 1st of 1; nothing to compare with. Continued.": Decision("continue", "first", 3, 0.2, place=1, count=1),
    "Epoch 9: 3rd of 7 (mlp, focal); worse than the cut-off 0.167. Stopped.": Decision(
        "stop", "cutoff", 9, 0.25, place=3, count=7, cutoff=1 / 6, stratum="mlp, focal"
    ),
    "Epoch 9: 2nd of 4; worse than the cut-off 0.2; kept by keep_at_least. Continued.": Decision(
        "continue", "cutoff", 9, 0.25, place=2, count=4, cutoff=0.2, kept_by="keep_at_least"
    ),
    "Epoch 5: compared with 2 others; its best value is at least as good as 2.5, the median of the others' running "
    "averages. Continued.": Decision("continue", "median", 5, 9.0, count=3, cutoff=2.5),
    "Epoch 5: compared with 1 other; fewer others than min_competitors. Continued.": Decision(
        "continue", "min_competitors", 5, 9.0, count=2
    ),
    "Epoch 2: 3rd of 4; the first 2 continue; the mean leaves out 1 replicate. Stopped.": Decision(
        "stop", "ranking", 2, 0.2, place=3, count=4, quota=2, left_out=1
    ),
    "Epoch 2: 4th of 4; breaks a constraint. Stopped.": Decision("stop", "constraint", 2, 0.0, place=4, count=4),
    "Epoch 9: 1st of 1 (mlp); none promoted yet. Paused.": Decision(
        "pause", "quota", 9, 0.5, place=1, count=1, quota=0, stratum="mlp"
    ),
    "Epoch 9: 1st of 2; none promoted; kept by keep_at_least. Promoted.": Decision(
        "continue", "quota", 9, 0.5, place=1, count=2, quota=0, kept_by="keep_at_least"
    ),
    "Epoch 1: 3rd of 3; the first 1 promoted. Never promoted, so stopped.": Decision(
        "stop", "quota", 1, 0.5, place=3, count=3, quota=1
    ),
    "Epoch 4: evaluated. Continued.": Decision("continue", "evaluation", 4, 0.5),
    "Epoch 27: the last epoch. Completed.": Decision("complete", "last_epoch", 27, 0.1, count=3),
    "The objective is not a finite number. Failed.": Decision("fail", "non_finite", None),
    "Epoch 1: 1st of 2; of my own. Continued.": Decision("continue", "of_my_own", 1, 0.5, place=1, count=2),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_decision_in_words(sentence: str) -> None:
    assert decision_text(SENTENCES[sentence]) == sentence


def test_every_rule_has_a_sentence() -> None:
    assert {decision.rule for decision in SENTENCES.values()} == {*RULES, "of_my_own"}


def test_places() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"
    ]  # fmt: skip
