"""Decisions, failures and stops in words: every rule and reason has a sentence of its own, with its numbers."""

import re

from sweeper.journal.reasons import RULES, decision_text, ordinal, reason_text
from sweeper.journal.records import Decision
from trainables.worker.trial_reports import Failure, Reason

DECISIONS = [
    Decision("continue", "first", 3, 0.2, place=1, count=1),
    Decision("stop", "cutoff", 9, 0.25, place=3, count=7, cutoff=1 / 6, stratum="mlp, focal"),
    Decision("continue", "cutoff", 9, 0.25, place=2, count=4, cutoff=0.2, kept_by="keep_at_least"),
    Decision("continue", "median", 5, 9.0, count=3, cutoff=2.5),
    Decision("continue", "min_competitors", 5, 9.0, count=2),
    Decision("stop", "quota", 2, 0.2, place=3, count=4, quota=2, left_out=1),
    Decision("pause", "quota", 9, 0.5, place=1, count=1, quota=0, stratum="mlp"),
    Decision("continue", "evaluation", 4, 0.5),
    Decision("complete", "last_epoch", 27, 0.1, count=3),
    Decision("fail", "non_finite", None),
    Decision("continue", "of_my_own", 1, 0.5, place=1, count=2),
]
REMARKED = [
    Failure("non_finite", {"metric": "val_nll", "replicate": 1, "value": "nan", "epoch": 4}),
    Failure("non_finite", {"metric": "val_nll", "value": "inf", "epoch": 4}),
    Failure("non_finite", {"logits_of_seed": 7, "epoch": 2}),
    Failure("non_finite", {"missing_seed": 7}),
    Failure("timed_out", {"seconds": 26, "trial_timeout": 25.0, "epoch": 3}),
    Failure("hung", {"silent": 5, "hang_timeout": 4, "function": "wait", "file": "loop.py", "line": 7}),
    Failure("hung", {"step": 9.0, "times": 3.0, "limit": 6.0, "killed": "SIGKILL"}),
    Failure("preempted", {"leaving": "node"}),
    Failure("preempted", {"died": "node"}),
    Failure("preempted", message="spot"),
    Failure("out_of_memory", {"lanes": 4}),
    Failure("out_of_memory", {"gib": 3.5, "taken": 0.96, "total": 99.0, "held": 0.04, "pause": 20.0}),
    Failure("gpu_out_of_memory", {"share": 0.25, "next_share": 0.5}),
    Failure("storage", {"node": "ab", "others": "no"}, "full"),
    Failure("storage", message="full"),
    Failure("crash", {"signal": "SIGKILL", "shared_with": 3, "then": "alone"}),
    Failure("crash", {"exit_code": 1, "tries": 3}),
    Failure("crash", {"fruitless": 11}),
    Failure("error", {"checkpoint_epoch": 4}),
    Failure("error", {"lacks": "last report"}),
    Failure("error", message="ValueError: γ = -1"),
    Reason("asked"),
    Reason("signal", {"name": "SIGTERM"}),
    Reason("budget", {"name": "gpu_hours", "spent": 1.0, "limit": 3.0, "twice": 2.0}),
    Reason("no_node_type", {"needs": "1 CPU"}),
    Reason("no_node", {"patience": 60.0}, "no capacity"),
    Reason("of_my_own"),
]


def test_every_rule_has_a_sentence_of_its_own_with_the_decisions_numbers() -> None:
    assert {decision.rule for decision in DECISIONS} == {*RULES, "of_my_own"}
    texts = [decision_text(decision) for decision in DECISIONS]
    assert len({*texts}) == len(texts)
    for decision, text in zip(DECISIONS, texts, strict=True):
        wanted = [decision.rung, decision.stratum, decision.kept_by, decision.left_out]
        wanted += [decision.cutoff and f"{decision.cutoff:.3g}", decision.place and ordinal(decision.place)]
        assert all(str(part) in text for part in wanted if part), text


def test_every_reason_has_a_sentence_of_its_own_with_its_values() -> None:
    texts = [reason_text(reason) for reason in REMARKED]
    assert len({*texts}) == len(texts)
    for reason, text in zip(REMARKED, texts, strict=True):
        numbers = {float(part) for part in re.findall(r"\d+(?:\.\d+)?", text)}
        given = {float(value) for value in reason.values.values() if isinstance(value, int | float) and value > 1}
        assert "{" not in text and given <= numbers and reason.message in text, text


def test_places() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"
    ]  # fmt: skip


def test_values_of_another_type_are_left_out() -> None:
    assert reason_text(Failure("timed_out", {"seconds": "long", "trial_timeout": 1, "epoch": 2})) == "timed out"
