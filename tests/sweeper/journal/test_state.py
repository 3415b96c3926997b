"""The state of a sweep is a fold of its journal."""

import copy
from dataclasses import replace

import pytest

from sweeper.journal.records import Decision
from sweeper.journal.state import fold
from tests.sweeper.records import made_record
from trainables.worker.trial_reports import Failure


class Script:
    """Records in order, with the fields that do not matter here filled in."""

    def __init__(self):
        self.records = []

    def add(self, kind, **body):
        self.records.append(made_record(len(self.records), kind, 100.0 + len(self.records), body))
        return self

    def attempt(self, number):
        return self.add("attempt", attempt=number, host="here", pid=1)

    def started(self, configuration, attempt=1):
        return self.add("started", configuration=configuration, attempt=attempt)

    def report(
        self, configuration, epoch, status="running", *, objective=0.5, attempt=1, kind=None, rung=None, rows=(), **more
    ):
        kind = kind or {"completed": "complete", "early_stopped": "stop", "failed": "fail"}.get(status)
        decision = {"kind": kind, "rule": "cutoff", "rung": rung or epoch} if kind else None
        return self.add(
            "report",
            configuration=configuration,
            attempt=attempt,
            epoch=epoch,
            status=status,
            objective=objective,
            device="cpu",
            wall_seconds=float(epoch),
            packing="sequential",
            epochs=[],
            evaluations=list(rows),
            decision=decision,
            **more,
        )

    def failed(self, configuration, *, counts=True, final=False, attempt=1):
        body = {"epoch": 3, "failure": {"kind": "crash", "counts": counts}, "final": final}
        body |= {"configuration": configuration, "attempt": attempt}
        self.records.append(made_record(len(self.records), "failed", 100.0 + len(self.records), body))
        return self

    def fold(self, configurations=4):
        return fold(self.records, configurations)


def test_a_trials_way():
    script = Script().attempt(1).started(2).report(2, 3, kind="continue", rows=[{"epoch": 3}]).report(2, 5)
    trial = script.fold().trials[2]
    assert (trial.status, trial.epochs, trial.last_evaluation_epoch, trial.wall_seconds) == ("running", 5, 3, 5.0)
    assert (trial.stop_kind, trial.stop_rung, trial.failure) == (None, None, None)
    trial = script.report(2, 9, "early_stopped", objective=0.7).fold().trials[2]
    assert (trial.status, trial.stop_kind, trial.stop_rung, trial.objective) == ("early_stopped", "stop", 9, 0.7)
    assert trial.decision == Decision("stop", "cutoff", 9)


def test_a_failed_report_is_an_error():
    trial = (
        Script()
        .attempt(1)
        .started(0)
        .report(0, 3)
        .report(0, 4, "failed", objective=None, failure={"kind": "non_finite"})
    )
    trial = trial.fold().trials[0]
    assert (trial.status, trial.stop_kind, trial.objective) == ("failed", "non_finite", 0.5)
    assert (trial.epochs, trial.sound_epochs) == (4, 3)


def test_an_objective_that_was_not_measured_keeps_the_last():
    trial = Script().attempt(1).started(0).report(0, 3, objective=0.4).report(0, 5, objective=None).fold().trials[0]
    assert trial.objective == 0.4


def test_failures_count_or_do_not_and_end_a_trial_or_do_not():
    script = Script().attempt(1).started(1).failed(1).started(1).failed(1, counts=False)
    trial = script.fold().trials[1]
    assert (trial.status, trial.failures, trial.failure) == ("waiting", 1, Failure("crash", counts=False))
    trial = script.started(1).fold().trials[1]
    assert (trial.status, trial.failure, trial.decision) == ("running", None, None)
    trial = script.failed(1, final=True).fold().trials[1]
    assert (trial.status, trial.failures, trial.stop_kind) == ("failed", 2, "crash")
    assert script.fold().unfinished() == [0, 2, 3]
    assert script.fold().unfinished(failed_too=True) == [0, 1, 2, 3]


def test_a_failed_trial_that_starts_again_has_its_retries_and_its_sound_epochs():
    script = Script().attempt(1).started(0).report(0, 3).report(0, 4, "failed", objective=None)
    trial = script.attempt(2).started(0, attempt=2).fold().trials[0]
    assert (trial.status, trial.epochs, trial.failures, trial.attempt) == ("running", 3, 0, 2)


@pytest.mark.parametrize("how", ["attempt", "ended"])
def test_running_trials_are_interrupted_when_their_driver_is_gone(how):
    script = Script().attempt(1).started(0).started(1).report(1, 9, "completed")
    if how == "attempt":
        script.attempt(2)
    else:
        script.add("ended", attempt=1, outcome="interrupted")
    state = script.fold()
    assert [t.status for t in state.trials.values()] == ["interrupted", "completed", "waiting", "waiting"]
    assert state.unfinished() == [0, 2, 3]
    assert state.outcome == (None if how == "attempt" else "interrupted")
    assert script.started(0, attempt=2).fold().trials[0].status == "running"


def test_starting_does_not_reopen_what_has_ended():
    trial = Script().attempt(1).started(0).report(0, 9, "completed").started(0).fold().trials[0]
    assert trial.status == "completed"


def test_replicates_that_failed_alone_are_remembered():
    script = Script().attempt(1).started(0).report(0, 3)
    reported = script.records.pop()
    report = replace(reported.body.report, replicate_errors={1: Failure("non_finite")})
    script.records.append(replace(reported, body=replace(reported.body, report=report)))
    assert script.fold().trials[0].replicate_errors == {1: Failure("non_finite")}


def test_folding_in_two_parts_gives_the_same():
    script = Script().attempt(1).started(0).report(0, 3).failed(0).started(0).report(0, 9, "completed").started(1)
    script.add("ended", attempt=1, outcome="stopped")
    whole = script.fold()
    for cut in range(len(script.records) + 1):
        state = fold(script.records[:cut], 4)
        state = copy.deepcopy(state)
        for record in script.records[cut:]:
            state.apply(record)
        assert vars(state) == vars(whole)
    assert (whole.started_at, whole.updated_at) == (100.0, 100.0 + len(script.records) - 1)
