"""Decisions on reports, and their recomputation from the journal, for all schedulers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sweeper.journal.decision import Decision
from sweeper.journal.records import Judged, Record, Reported
from sweeper.scheduling.base import RungState, Scheduler, decide, measurements
from trainables.worker.trial_reports import TrialReport


def decide_on(state: RungState, report: TrialReport) -> Decision | None:
    """Return the decision on a trial's report: `decide` on its objective, which is a mean over sound replicates.

    Where replicates diverged, or failed otherwise in separate processes, the mean is over the others and the reason
    says so: such a configuration competes, but never unmarked.
    """
    measured = measurements(report, state.scheduler.metrics)
    decision = decide(state, report.configuration, report.epoch, report.objective, measured)
    diverged = sorted(report.replicate_errors)
    if decision is None or decision.kind == "fail" or not diverged:
        return decision
    named = f"replicate{'s' if len(diverged) > 1 else ''} {', '.join(map(str, diverged))}"
    word = "failed" if report.replicate_kinds else "diverged"
    return replace(decision, reason=f"{decision.reason}; the mean leaves out {named}, which {word}")


def audit(scheduler: Scheduler, records: Iterable[Record]) -> tuple[int, list[str]]:
    """Recompute every decision, and every absence of one, from the records before it.

    Returns how many decisions were checked, and one sentence for each that differs. Of a failure only the sentence
    is taken on trust: it is the trial's own, and may say more than that its objective is not a number.
    """
    state, checked, differences = scheduler.begin(), 0, []
    for record in records:
        if isinstance(record.body, Reported):
            journaled = record.body.decision
            again = decide_on(state, record.body.report)
            checked += journaled is not None
            if _comparable(again) != _comparable(journaled):
                differences.append(f"record {record.sequence}: journaled {_text(journaled)}, recomputed {_text(again)}")
                if journaled is not None and journaled.rung not in state.epochs:
                    continue
        if isinstance(record.body, Judged):
            again = _judged_again(state, record.body)
            checked += 1
            if again != record.body.decision:
                told = (_text(record.body.decision), _text(again))
                differences.append(f"record {record.sequence}: journaled {told[0]}, recomputed {told[1]}")
        state.apply(record)
    return checked, differences


def _judged_again(state: RungState, body: Judged) -> Decision | None:
    """Return the decision on a paused trial as it follows from the records before; `None` for another's promotion."""
    if body.decision.kind == "stop":
        return state.never_promoted(body.epoch, body.configuration)
    # Whether others were to begin is not in the journal; a promotion for lack of them says so in its reason.
    made = (body.decision.stratum, body.decision.rung)
    for found in (state.promotion(), state.promotion(lambda stratum, rung: (stratum, rung) == made)):
        if found is not None and found == (body.configuration, body.decision):
            return found[1]
    return None


def _comparable(decision: Decision | None) -> Decision | None:
    if decision is None or decision.kind != "fail":
        return decision
    return replace(decision, reason="", stratum=None)  # releases before 0.3 left a failed trial's stratum out


def _text(decision: Decision | None) -> str:
    return str(decision.to_dict() if decision is not None else None)
