"""How decisions are said in words: one sentence for each rule."""

import pytest

from sweeper.journal.reasons import REASONS, REMARKS, RULES, decision_text, ordinal, reason_text
from sweeper.journal.records import Decision
from trainables.worker.trial_reports import Failure, Reason

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
    "Epoch 2: 3rd of 4; the first 2 promoted; the mean leaves out 1 replicate. Never promoted, so stopped.": Decision(
        "stop", "quota", 2, 0.2, place=3, count=4, quota=2, left_out=1
    ),
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


FAILURES = {
    "val_nll of replicate 1 is nan in epoch 4": Failure(
        "non_finite", {"metric": "val_nll", "replicate": 1, "value": "nan", "epoch": 4}
    ),
    "val_nll is inf after epoch 4": Failure("non_finite", {"metric": "val_nll", "value": "inf", "epoch": 4}),
    "logits of seed 7 are not finite in epoch 2": Failure("non_finite", {"logits_of_seed": 7, "epoch": 2}),
    "the file has no seed 7": Failure("non_finite", {"missing_seed": 7}),
    "trained for 26.0 s, longer than trial_timeout = 25 s, by epoch 3": Failure(
        "timed_out", {"seconds": 26, "trial_timeout": 25.0, "epoch": 3}
    ),
    "its process did no work for 5 s, longer than hang_timeout = 4 s (in wait, loop.py:7)": Failure(
        "hung", {"silent": 4.6, "hang_timeout": 4, "function": "wait", "file": "loop.py", "line": 7}
    ),
    "it has not finished an epoch after 9 s, longer than 3 × trial_timeout = 6 s "
    "(and could not be interrupted: SIGKILL)": Failure(
        "hung", {"step": 9.0, "times": 3.0, "limit": 6.0, "killed": "SIGKILL"}
    ),
    "its node is about to be removed; it continues from its checkpoint on another one": Failure(
        "preempted", {"leaving": "node"}
    ),
    "its node died": Failure("preempted", {"died": "node"}),
    "its node was taken away: spot": Failure("preempted", message="spot"),
    "memory ran out: training continues with 4 lanes": Failure("out_of_memory", {"lanes": 4}),
    "the node's memory ran out: it held 3.5 GiB when 96% of 99.0 GiB was taken (it used little of it, so it "
    "waits 20 s for others to release memory)": Failure(
        "out_of_memory", {"gib": 3.5, "taken": 0.96, "total": 99.0, "held": 0.04, "pause": 20.0}
    ),
    "the node's memory ran out: MemoryError": Failure("out_of_memory", message="MemoryError"),
    "the GPU's memory ran out (on 0.25 of a GPU; it is tried again on 0.5)": Failure(
        "gpu_out_of_memory", {"share": 0.25, "next_share": 0.5}
    ),
    "the disk of node ab cannot be written to: full (there is no other node)": Failure(
        "storage", {"node": "ab", "others": "no"}, "full"
    ),
    "the results folder cannot be written to: full": Failure("storage", message="full"),
    "its process was ended by SIGKILL (it shared the process with 3 more; each is tried alone)": Failure(
        "crash", {"signal": "SIGKILL", "shared_with": 3, "then": "alone"}
    ),
    "its process exited with code 1 (after 3 tries)": Failure("crash", {"exit_code": 1, "tries": 3}),
    "its process died (try 11 in a row that ended before an epoch was reported: from now on they count)": Failure(
        "crash", {"fruitless": 11}
    ),
    "its checkpoint of epoch 4 is ahead of the journal; it starts again": Failure("error", {"checkpoint_epoch": 4}),
    "its process ended without a last report": Failure("error", {"lacks": "last report"}),
    "ValueError: γ = -1": Failure("error", message="ValueError: γ = -1"),
    "the store is out of reach": Failure("store", message="the store is out of reach"),
    "`sweeper stop` was called": Reason("asked"),
    "SIGTERM was received": Reason("signal", {"name": "SIGTERM"}),
    "the budget is reached: gpu_hours 1 of 1; continue with `sweeper resume … --set budget.gpu_hours=2`": Reason(
        "budget", {"name": "gpu_hours", "spent": 1.0, "limit": 1.0, "twice": 2.0}
    ),
    "no node type of the cluster is large enough for a trial, which needs 1 CPU": Reason(
        "no_node_type", {"needs": "1 CPU"}
    ),
    "no node large enough for a trial appeared within 60 s: no capacity": Reason(
        "no_node", {"patience": 60.0}, "no capacity"
    ),
    "of my own": Reason("of_my_own", {"name": 3}),
}  # fmt: skip


@pytest.mark.parametrize("sentence", FAILURES)
def test_a_failure_or_a_stop_in_words(sentence: str) -> None:
    assert reason_text(FAILURES[sentence]) == sentence


def test_every_template_is_used() -> None:
    for template in (*(template for _, template in REASONS), *REMARKS):
        parts = [part.partition("}")[2] if "}" in part else part for part in template.split("{")]
        assert any(all(part in sentence for part in parts) for sentence in FAILURES), template


def test_values_of_another_type_are_left_out() -> None:
    assert reason_text(Failure("timed_out", {"seconds": "long", "trial_timeout": 1, "epoch": 2})) == "timed out"
