"""Reasons in words: what the scheduler decided, from the fields of a decision. The only place that writes them.

A rule that is not in `RULES`, as of a scheduler of the user's own, is called by its name.
"""

from __future__ import annotations

from sweeper.journal.records import BREAKS_CONSTRAINT, Decision
from sweeper.text.cells import Row
from sweeper.text.labels import number, plural

#: What decided, by a decision's rule; `{relation}` says how the trial's value compares with the cut-off.
RULES = {
    "first": "nothing to compare with",
    "cutoff": "{relation} the cut-off {cutoff}",
    "median": "its best value is {relation} {cutoff}, the median of the others' running averages",
    "min_competitors": "fewer others than min_competitors",
    "ranking": "the first {quota} continue",
    "quota": "the first {quota} promoted",
    BREAKS_CONSTRAINT: "breaks a constraint",
    "evaluation": "evaluated",
    "last_epoch": "the last epoch",
    "non_finite": "the objective is not a finite number",
}

#: What became of the trial, by a decision's kind; first by rule and kind.
ENDS = {"continue": "Continued", "stop": "Stopped", "pause": "Paused", "complete": "Completed", "fail": "Failed"}
PROMOTION_ENDS = {"continue": "Promoted", "stop": "Never promoted, so stopped"}


def decision_text(decision: Decision) -> str:
    """Return e.g. `Epoch 9: 3rd of 7 (resnet8, focal); worse than the cut-off 0.167. Stopped.`"""
    by_quota = decision.rule == "quota"
    parts = [_place(decision), _rule(decision)]
    parts += [f"kept by {decision.kept_by}"] if decision.kept_by else []
    parts += [f"the mean leaves out {plural(decision.left_out, 'replicate')}"] if decision.left_out else []
    where = f"Epoch {decision.rung}: " if decision.rung is not None else ""
    said = "; ".join(filter(None, parts))
    end = ENDS[decision.kind] if not by_quota else PROMOTION_ENDS.get(decision.kind, ENDS[decision.kind])
    return f"{where}{said if where else said[:1].upper() + said[1:]}. {end}."


def row_text(row: Row) -> str:
    """Return the same of a row of the table `decisions`."""
    return decision_text(Decision.from_json(row))


def _place(decision: Decision) -> str:
    within = f" ({decision.stratum})" if decision.stratum else ""
    if decision.kind in ("complete", "fail") or decision.count is None:
        return ""
    if decision.place is None:
        return f"compared with {plural(decision.count - 1, 'other')}{within}"
    return f"{ordinal(decision.place)} of {decision.count}{within}"


def _rule(decision: Decision) -> str:
    if decision.rule == "quota" and not decision.quota:
        return "none promoted yet" if decision.kind == "pause" else "none promoted"
    worse = decision.kind == "stop" or decision.kept_by
    relation = "worse than" if worse else "at least as good as"
    template = RULES.get(decision.rule, decision.rule.replace("_", " "))
    return template.format(relation=relation, cutoff=number(decision.cutoff), quota=decision.quota)


def ordinal(place: int) -> str:
    """Return e.g. `1st`, `12th`, `23rd`."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{'th' if 10 < place % 100 < 14 else last}"
