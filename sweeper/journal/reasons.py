"""Text of reasons: scheduler decisions, failures of trials, stops of a sweep. Only this module renders them.

A rule that is not in `RULES`, for example of a user-defined scheduler, is shown by its name.
"""

from __future__ import annotations

from sweeper.core.cells import Row
from sweeper.core.labels import number, plural
from sweeper.journal.records import Decision
from trainables.worker.trial_reports import Reason

#: Text of a decision's rule; `{relation}` compares the trial's value with the cut-off.
RULES = {
    "first": "nothing to compare with",
    "cutoff": "{relation} the cut-off {cutoff}",
    "median": "its best value is {relation} {cutoff}, the median of the others' running averages",
    "min_competitors": "fewer others than min_competitors",
    "quota": "the first {quota} promoted",
    "evaluation": "evaluated",
    "last_epoch": "the last epoch",
    "non_finite": "the objective is not a finite number",
}

#: Text of a decision's kind. `PROMOTION_ENDS` has other words for promotions, since a paused trial resumes.
ENDS = {"continue": "Continued", "stop": "Stopped", "pause": "Paused", "complete": "Completed", "fail": "Failed"}
PROMOTION_ENDS = {"continue": "Promoted", "stop": "Never promoted, so stopped"}


#: Text of a reason by kind; if a kind has several, the first one whose values are all present is used.
REASONS = (
    ("non_finite", "{metric} of replicate {replicate} is {value} in epoch {epoch}"),
    ("non_finite", "{metric} is {value} after epoch {epoch}"),
    ("non_finite", "logits of seed {logits_of_seed} are not finite in epoch {epoch}"),
    ("non_finite", "the file has no seed {missing_seed}"),
    ("timed_out", "trained for {seconds:.1f} s, longer than trial_timeout = {trial_timeout:g} s, by epoch {epoch}"),
    ("hung", "its process did no work for {silent:.0f} s, longer than hang_timeout = {hang_timeout:g} s"),
    ("hung", "it has not finished an epoch after {step:.0f} s, longer than {times:g} × trial_timeout = {limit:g} s"),
    ("preempted", "its {leaving} is about to be removed; it continues from its checkpoint on another one"),
    ("preempted", "its {died} died"),
    ("preempted", "its node was taken away"),
    ("out_of_memory", "memory ran out: training continues with {lanes} lanes"),
    ("out_of_memory", "the node's memory ran out: it held {gib:.1f} GiB when {taken:.0%} of {total:.1f} GiB was taken"),
    ("out_of_memory", "the node's memory ran out"),
    ("gpu_out_of_memory", "the GPU's memory ran out"),
    ("storage", "the disk of node {node} cannot be written to"),
    ("storage", "the results folder cannot be written to"),
    ("crash", "its process was ended by {signal}"),
    ("crash", "its process exited with code {exit_code}"),
    ("crash", "its process died"),
    ("error", "its checkpoint of epoch {checkpoint_epoch} is ahead of the journal; it starts again"),
    ("error", "its process ended without a {lacks}"),
    ("asked", "`sweeper stop` was called"),
    ("signal", "{name} was received"),
    ("budget", "the budget is reached: {name} {spent:.4g} of {limit:g}; "
               "continue with `sweeper resume … --set budget.{name}={twice:g}`"),
    ("no_node_type", "no node type of the cluster is large enough for a trial, which needs {needs}"),
    ("no_node", "no node large enough for a trial appeared within {patience:.0f} s"),
)  # fmt: skip

#: Remarks that follow in parentheses if their values are present.
REMARKS = (
    "in {function}, {file}:{line}",
    "it used little of it, so it waits {pause:.3g} s for others to release memory",
    "and could not be interrupted: {killed}",
    "it shared the process with {shared_with} more",
    "each is tried {then}",
    "on {share:g} of a GPU; it is tried again on {next_share:g}",
    "try {fruitless} in a row that ended before an epoch was reported: from now on they count",
    "after {tries} tries",
    "there is {others} other node",
)


def reason_text(reason: Reason) -> str:
    """Render a reason, e.g. `its process was ended by SIGKILL (after 2 tries)`.

    Example:
        >>> reason_text(Reason("crash", {"signal": "SIGKILL", "tries": 2}))
        'its process was ended by SIGKILL (after 2 tries)'
    """
    templates = (template for kind, template in REASONS if kind == reason.kind)
    first = next(filter(None, (_filled(template, reason) for template in templates)), "")
    said = ": ".join(filter(None, (first, reason.message))) or reason.kind.replace("_", " ")
    remarks = [remark for template in REMARKS if (remark := _filled(template, reason))]
    return f"{said} ({'; '.join(remarks)})" if remarks else said


def _filled(template: str, reason: Reason) -> str:
    try:
        return template.format(**reason.values)
    except (KeyError, ValueError, TypeError):
        # A value is missing, or has another type in a journal that someone else wrote.
        return ""


def decision_text(decision: Decision) -> str:
    """Render a decision, e.g. `Epoch 9: 3rd of 7 (resnet8, focal); worse than the cut-off 0.167. Stopped.`

    Example:
        >>> decision_text(Decision("stop", "cutoff", rung=9, place=3, count=7, cutoff=0.1667))
        'Epoch 9: 3rd of 7; worse than the cut-off 0.167. Stopped.'
    """
    by_quota = decision.rule == "quota"
    parts = [_place(decision), _rule(decision)]
    parts += [f"kept by {decision.kept_by}"] if decision.kept_by else []
    parts += [f"the mean leaves out {plural(decision.left_out, 'replicate')}"] if decision.left_out else []
    where = f"Epoch {decision.rung}: " if decision.rung is not None else ""
    said = "; ".join(filter(None, parts))
    end = ENDS[decision.kind] if not by_quota else PROMOTION_ENDS.get(decision.kind, ENDS[decision.kind])
    return f"{where}{said if where else said[:1].upper() + said[1:]}. {end}."


def row_text(row: Row) -> str:
    """Render a row of the table `decisions`."""
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
    # A trial can be worse than the cut-off and continue, because a setting such as `keep_at_least` kept it.
    worse = decision.kind == "stop" or decision.kept_by
    relation = "worse than" if worse else "at least as good as"
    template = RULES.get(decision.rule, decision.rule.replace("_", " "))
    return template.format(relation=relation, cutoff=number(decision.cutoff), quota=decision.quota)


def ordinal(place: int) -> str:
    """Return e.g. `1st`, `12th`, `23rd`."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    # 11th, 12th, 13th, and so 111th.
    return f"{place}{'th' if 10 < place % 100 < 14 else last}"
