"""The first screen in words. Only this module turns an answer into sentences.

The terminal, the report, the page of several sweeps and MLflow's description all use it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources

import yaml

from sweeper.core.labels import duration, label, plural
from sweeper.judging.advice import TRIED
from sweeper.judging.means import Mean
from sweeper.judging.question import BETTER, LEVEL, NOT_COMPARED, OPEN, SAME, SEEDS, Verdict
from sweeper.judging.trends import FALLS, LEVEL as STEP_LEVEL, RISES, TURNS, Trend
from sweeper.reporting.answering.answers import (
    ALIKE,
    ALONE,
    BEST,
    DECIDED,
    EQUAL,
    EQUIVALENT,
    LARGEST,
    LARGEST_STATED,
    NEARLY_DECIDED,
    NOT_DECIDED,
    NOT_JUDGED,
    SMALLEST,
    STOPPED,
    UNFINISHED,
    UNKNOWN,
    WORSE,
    Along,
    Answer,
    Finalist,
    FirstScreen,
    Question,
    Use,
)  # fmt: skip
from sweeper.reporting.answering.questions import Shared, shared_values
from sweeper.results.deployed import Deployed
from sweeper.results.estimators import Judgement
from sweeper.results.selection import Ranked, Selection
from trainables.metrics.base import metric_of
from trainables.registry import OWN

#: How sure a mark is.
SURE = f"{100 * LEVEL:.0f} %"

#: Largest number of names in a sentence. If there are more, the sentence gives their number.
MOST_NAMED = 4

STANDINGS = {BEST: "best", ALIKE: "as good?", EQUAL: "as good", WORSE: "worse", STOPPED: "stopped", UNKNOWN: ""}

#: Code in the glossary → word that readers see.
SHOWN = {
    **STANDINGS,
    UNKNOWN: "not compared",
    f"{BETTER} change": "lower",
    f"{WORSE} change": "higher",
    f"{SAME} change": "≤ x",
    f"{OPEN} change": "open",
}


def sentences(screen: FirstScreen) -> list[str]:
    """Return the screen's sentences: one lead per setting of the data set, or the reason why there is none."""
    return [
        " ".join(filter(None, [lead(answer), deployment(answer), numbers(answer), remedy(answer), *settings(answer)]))
        for answer in screen.answers
    ] or [screen.missing]


def lead(answer: Answer) -> str:
    """Return the lead: the configuration to use, its possible cost, and what is decided."""
    start = [f"At {answer.place}:"] if answer.place else []
    start += ["So far:"] if answer.running else []
    return " ".join([*start, *filter(None, [between(answer), recommendation(answer), as_tuned(answer)])])


def as_tuned(answer: Answer) -> str:
    """Return what else differs between the losses: settings if two are compared in words, and draws if unequal."""
    losses = {line.loss for line in answer.finalists if line.standing != STOPPED}
    drawn = {loss: count for loss, count in answer.draws.items() if loss in losses}
    if len(losses) < 2 or not drawn:
        return ""
    own = f"each at its own {listed(answer.tuned)}" if answer.tuned and answer.between is not None else ""
    fewest = min(drawn.values())
    few = [loss for loss, count in drawn.items() if count == fewest and max(drawn.values()) > fewest + 1]
    had = f"{listed(few)} had {fewest} of {plural(sum(answer.draws.values()), 'drawn configuration')}" if few else ""
    said = "; ".join(filter(None, [own, had]))
    return f"Losses are compared as tuned: {said}." if said else ""


def recommendation(answer: Answer) -> str:
    """Return which configuration to use and how certain that is."""
    who, at = name(answer.leader), stage(answer)
    if answer.state == UNFINISHED:
        return f"None was trained to the end. {who} leads at epoch {answer.leader.epoch}."
    if answer.state == ALONE and answer.leader.network == OWN:  # imported, or from a loop that names no parts
        used = answer.leader.used
        if used is None:
            return numbers(answer)
        raw, scaled = used.nll
        accuracy = share(used.accuracy)
        return f"Test NLL {raw:.3f} without and {scaled:.3f} with temperature scaling, accuracy {accuracy}."
    if answer.state == ALONE:
        return f"Use {who}, the only finalist."
    if answer.state == NOT_JUDGED:
        alike = "One seed each" if answer.seeds < 2 else "All seeds of each finalist have the same value"
        return f"{alike}: no difference can be judged. {who} has the best mean{at}."
    facts = [text for question in answer.questions if (text := fact(question))]
    known = f" {'; '.join(facts)}." if facts else ""
    if answer.state in (DECIDED, EQUIVALENT, NEARLY_DECIDED):
        known = known if answer.state == NEARLY_DECIDED else "".join(f" {said}" for said in left_out(answer))
        sure = f"{risk(answer)}, {SURE} sure{of_seeds(answer)}"
        if answer.deployed is None or answer.leader.used is None or not leads_both(answer):
            return f"Use {who}{at}: {sure}.{known}"
        first, other = ("without", "with") if is_scaled(answer) else ("with", "without")
        how = f"{risk(answer)}; {SURE} sure, {plural(answer.seeds, 'seed')}".replace("the best finalist", "the best")
        both = f"{first} temperature scaling ({how}) and {other} ({deployed_risk(answer.deployed)})"
        return f"Use {who} {both}: accuracy {share(answer.leader.used.accuracy)}.{known}"
    if not answer.is_bounded:
        few = f"{plural(answer.seeds, 'seed')} each are too few to recommend a configuration"
        return f"Not decided: {few}. {who} has the best mean{at}.{known}"
    # The bound holds with 90 %, a finalist may be the best at 95 %: between them, nothing is lost and nothing decided.
    lost = f", but could be {cost(answer)} worse than the best finalist" if answer.most_lost else ""
    return f"Not decided. {who} leads{at}{lost}.{known}"


def risk(answer: Answer) -> str:
    """Return how much worse than the best finalist the recommended one may be."""
    if answer.state == DECIDED:
        return "every other finalist is worse"
    if answer.state == EQUIVALENT:
        return "no other finalist is better by more than the margin"
    by = f"{family(answer)} " if answer.relative else ""
    return f"{by}at most {cost(answer)} worse than the best finalist" if answer.most_lost else "no finalist is better"


def family(answer: Answer) -> str:
    """Return the objective's metric without its split and stage, e.g. `NLL`."""
    metric = metric_of(answer.objective.column)
    return label(answer.objective.column) if metric is None else metric.words


def deployed_risk(deployed: Deployed) -> str:
    """Return how much worse than the best finalist the leader may be by the test NLL that `Deployed` judges."""
    verdicts, lost = deployed.verdicts, deployed.verdicts.most_lost_ratio
    if verdicts.code == BETTER:
        return "every other is worse"
    if verdicts.code == SAME:
        return "no other is better by more than the margin"
    return f"at most {percent(lost)}" if lost is not None and lost <= LARGEST_STATED else "others may be better"


def leads_both(answer: Answer) -> bool:
    """Return whether one finalist leads with temperature scaling and without."""
    verdicts = None if answer.deployed is None else answer.deployed.verdicts
    return verdicts is not None and verdicts.code != NOT_COMPARED and verdicts.leader == answer.leader.trial


def stage(answer: Answer) -> str:
    """Return the stage that the objective measures, ` with temperature scaling`, if the other is judged, too."""
    return "" if answer.deployed is None or is_scaled(answer) else " with temperature scaling"


def name(line: Finalist) -> str:
    """Return a finalist's name in a sentence, e.g. `cross_entropy on resnet8`; without the network of an own loop."""
    return line.words if line.network == OWN else f"{line.words} on {line.network}"


def numbers(answer: Answer) -> str:
    """Return a sentence on the leader's test ECE (after temperature scaling if that lowers it) and its objective."""
    leader, said = answer.leader, list[str]()
    if answer.state == ALONE and leader.network == OWN and leader.used is not None:  # `recommendation` says it
        return ""
    if leader.change is not None and answer.objective.column != "ece":  # ECE would be stated twice
        scaled = leader.change.code == BETTER
        at = 0 if scaled else 1
        said.append(f"test ECE {spread(leader.change.means[at], leader.change.deviations[at])}")
        said[-1] += " after temperature scaling" if scaled else ""
    said.append(f"{answer.objective.label} {leader.value.mean:.3g}")
    text = ", ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def spread(mean: float, deviation: float) -> str:
    """Return a mean with its standard deviation over seeds, if it has one."""
    return f"{mean:.3f}" if math.isnan(deviation) else f"{mean:.3f} ± {deviation:.3f}"


def of_seeds(answer: Answer) -> str:
    """Return the number of seeds behind an answer, as the end of a parenthesis."""
    return f", {plural(answer.seeds, 'fresh seed' if answer.fresh else 'seed')} each"


def cost(answer: Answer) -> str:
    """Return the largest possible cost of using the leader, e.g. `30 %`."""
    assert answer.most_lost is not None  # it is set for NEARLY_DECIDED and NOT_DECIDED
    return percent(answer.most_lost) if answer.relative else f"{answer.most_lost:.2g}"


def percent(lost: float) -> str:
    """Return a share in percent, rounded up, because sentences say "at most"."""
    return f"{math.ceil(100 * lost)} %"


def fact(question: Question) -> str:
    """Return the known part of a question's answer, e.g. `resnet8 beats mlp` or `inverse_focal may be as good`."""
    first, *alike = question.best
    # `settings` describes the lines.
    if question.cell is not None:
        return ""
    parts = [f"{first} beats {listed(question.worse)}"] if question.worse else []
    parts += [f"{listed(alike)} may be as good"] if alike else []
    return "; ".join(parts)


def left_out(answer: Answer) -> list[str]:
    """Return a sentence on the losses and networks that were not compared."""
    unknown = [candidate for question in answer.questions if question.cell is None for candidate in question.unknown]
    was = "was" if len(unknown) == 1 else "were"
    return [f"{listed(unknown)} {was} not trained to the end, so not compared."] if unknown else []


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words.

    Example:
        >>> listed(["mlp", "resnet8", "convnet"])
        'mlp, resnet8 and convnet'
    """
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[:MOST_NAMED])} and {plural(len(names) - MOST_NAMED, 'other')}"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def ends_of(words: Sequence[str]) -> list[str]:
    """Return the first and the last of many words with `…` between them; the report has all.

    Example:
        >>> ends_of(["14", "9", "5"]), ends_of(["14", "12", "9", "7", "5"])
        (['14', '9', '5'], ['14', '…', '5'])
    """
    return [*words] if len(words) <= MOST_NAMED else [words[0], "…", words[-1]]


def remedy(answer: Answer) -> str:
    """Return the command that would decide the open questions, and its cost; empty if there are none."""
    if not answer.command:
        hopeless = answer.state in (NEARLY_DECIDED, NOT_DECIDED) and not answer.running
        return f"Even {TRIED[-1]} more seeds may not decide the “{STANDINGS[ALIKE]}” rows." if hopeless else ""
    if not answer.trainings:
        return f"More seeds may decide: `{answer.command}`."
    takes = f" ({duration(answer.trainings * answer.seconds)})" if answer.seconds else ""
    return f"About {plural(answer.trainings, 'more training')}{takes} may decide: `{answer.command}`."


def between(answer: Answer) -> str:
    """Return the difference in test ECE of the only two finalists, before and after temperature scaling."""
    if answer.between is None:
        return ""
    one, other, before, after = answer.between
    return between_two(one.words, other.words, before, after)


def between_two(one: str, other: str, before: Judgement, after: Judgement) -> str:
    """Return the difference in test ECE of two sides in words, before and after temperature scaling."""
    first, then = effect(before, "test ECE"), effect(after, "it")
    return f"Against {other}, {one} {first} before temperature scaling and {then} after it."


def effect(judgement: Judgement, quantity: str) -> str:
    """Return what a side does to a quantity, e.g. `lowers test ECE by 0.036`."""
    return {
        WORSE: f"raises {quantity} by {size(judgement):.3f}",
        BETTER: f"lowers {quantity} by {size(judgement):.3f}",
        SAME: f"changes {quantity} by no more than {bound(judgement)}",
        OPEN: f"may raise or lower {quantity} ({interval(judgement)})",
    }[judgement.code]


def size(judgement: Judgement) -> float:
    """Return the size of a difference."""
    return abs(judgement.means[0] - judgement.means[1])


def bound(judgement: Judgement) -> str:
    """Return the largest difference that is still possible, rounded up to three decimals."""
    # 0.0004999 instead of 0.0005, so that a value with three decimals stays unchanged.
    return "–" if judgement.verdict is None else f"{judgement.verdict.largest + 0.0004999:.3f}"


def signed(value: float) -> str:
    """Return a change with its sign, to three decimals.

    Example:
        >>> signed(-0.0144)
        '−0.014'
    """
    return f"{value:+.3f}".replace("-", "−")


def interval(judgement: Judgement) -> str:
    """Return the 95 % interval of a difference, e.g. `−0.036 … −0.013`; `one seed` if there is none."""
    verdict = judgement.verdict
    return "one seed" if verdict is None else f"{signed(verdict.low)} … {signed(verdict.high)}"


def lacking(judgement: Judgement) -> str:
    """Return the data needed to decide a difference: `+5 seeds`, `more seeds` or `more samples`."""
    verdict = judgement.verdict
    if verdict is None or (verdict.limited_by == SEEDS and verdict.seeds_needed is None):
        return "more seeds"
    if verdict.seeds_needed is None:  # further seeds would not help: all are measured on the same samples
        return "more samples"
    return f"+{plural(verdict.seeds_needed - len(verdict.seeds), 'seed')}"


@dataclass(frozen=True)
class Cells:
    """A line of the screen in words.

    Attributes:
        value: the objective.
        standing: standing compared with the leader; empty if all lines have the same standing.
        accuracy: test accuracy.
        nll: test NLL before and after temperature scaling, see `nll_words`.
        after: standing by the number that comes last; empty if it is unknown.
        ece: test ECE before → after temperature scaling.
        change: after minus before.
        around: 95 % interval of the change.
        verdict: `lower`, `higher`, `≤ 0.005`, or `open: +5 seeds`.
    """

    value: str
    standing: str
    accuracy: str
    nll: str
    after: str
    ece: str
    change: str
    around: str
    verdict: str


def cells(line: Finalist, answer: Answer) -> Cells:
    """Return a line in words."""
    value = f"{line.value.mean:.3g}"
    # The standing is left out if it is the same for all rows. With two rows it is kept, because it names the better
    # one.
    same = (
        len({other.standing for other in answer.finalists if other.standing != BEST}) == 1 and len(answer.finalists) > 2
    )
    standing = STANDINGS[line.standing] if line.standing != STOPPED else f"stopped at {line.epoch}"
    standing = "" if answer.state in (NOT_JUDGED, ALONE) or (same and line.standing in (ALIKE, UNKNOWN)) else standing
    change, used = line.change, ("", "", "") if line.used is None else use(line.used, answer)
    if change is None:
        return Cells(value, standing, *used, "", "", "", "")
    verdict = {BETTER: "lower", WORSE: "higher", SAME: f"≤ {bound(change)}", OPEN: f"open: {lacking(change)}"}
    ece = f"{change.means[1]:.3f} → {change.means[0]:.3f}"
    return Cells(
        value, standing, *used, ece, signed(change.means[0] - change.means[1]), interval(change), verdict[change.code]
    )


def use(of: Use, answer: Answer) -> tuple[str, str, str]:
    """Return a finalist's accuracy, NLL without and with temperature scaling, and its standing by the last number."""
    compared = answer.deployed is not None and answer.deployed.verdicts.code != NOT_COMPARED
    raw, scaled = (f"{value:.3f}" for value in of.nll)
    nll = f"{raw} → {scaled}" if is_scaled(answer) else f"{scaled}, {raw}"
    return f"{100 * of.accuracy.value:.1f} %", nll, STANDINGS[of.standing] if compared else ""


def is_scaled(answer: Answer) -> bool:
    """Return whether the finalists' test NLL is judged with temperature scaling."""
    return answer.deployed is None or answer.deployed.scaled


def nll_words(answer: Answer) -> tuple[str, str]:
    """Return the headings of both test NLLs, the judged one last, and of the judged one alone."""
    return ("test NLL → after T", "NLL after T") if is_scaled(answer) else ("test NLL after T, without", "test NLL")


def deployment(answer: Answer) -> str:
    """Return which finalist to use with (or without) temperature scaling, and its accuracy; empty if unknown."""
    lines = {line.trial: line for line in answer.finalists if line.used is not None}
    if answer.deployed is None or answer.state == UNFINISHED or not lines:
        return ""
    said = answer.state in (DECIDED, EQUIVALENT, NEARLY_DECIDED) and leads_both(answer)
    if said or (answer.state == ALONE and answer.leader.network == OWN):  # `recommendation` says it
        return ""
    verdicts, at = answer.deployed.verdicts, int(answer.deployed.scaled)
    used = "With temperature scaling" if answer.deployed.scaled else "Without temperature scaling"
    best = lines.get(verdicts.leader or "", answer.leader)
    if best.used is None:
        return ""
    accuracy = f"accuracy {share(best.used.accuracy)}"
    if verdicts.code == NOT_COMPARED:
        return f"{used}: test NLL {best.used.nll[at]:.3f}, {accuracy}."
    alike = rivals(best, lines.values(), [*verdicts.named(SAME), *verdicts.named(OPEN)])
    sure = f"{listed(alike)} may be as good" if alike else f"every other finalist is worse ({SURE} sure)"
    if best is answer.leader:
        return f"{used} it leads, too: {sure}; {accuracy}."
    other = answer.leader.used
    against = "" if other is None else f" ({name(answer.leader)}: {other.nll[at]:.3f}, {share(other.accuracy)})"
    return f"{used} {name(best)} leads: {sure}; test NLL {best.used.nll[at]:.3f}, {accuracy}{against}."


def rivals(best: Finalist, lines: Iterable[Finalist], alike: Collection[str]) -> list[str]:
    """Return the finalists that may be as good as the best one: other losses, or settings of its own loss if none.

    A loss is named with its setting if another of its settings is worse.

    Args:
        best: the best finalist.
        lines: all finalists.
        alike: names of trials that may be as good.
    """
    rest = [line for line in lines if line.trial in alike and line is not best]
    mixed = {(line.loss, line.network) for line in lines if line.trial not in alike}
    others = [line for line in rest if (line.loss, line.network) != (best.loss, best.network)]
    if not others:
        return [line.words for line in rest]
    said = [line if (line.loss, line.network) in mixed else replace(line, setting="") for line in others]
    return [*dict.fromkeys(line.words if line.network == best.network else name(line) for line in said)]


def share(mean: Mean) -> str:
    """Return a share in percent with its interval, e.g. `97.8 % (96.1–98.9)`."""
    if math.isnan(mean.low):
        return f"{100 * mean.value:.1f} %"
    return f"{100 * mean.value:.1f} % ({100 * max(0.0, mean.low):.1f}–{100 * min(1.0, mean.high):.1f})"


def settings(answer: Answer, *, brief: bool = False) -> list[str]:
    """Return the sentences on each line of values (best ones, accuracy's price, curvature), and on selective losses.

    Args:
        answer: the answer.
        brief: leave out sentences that have nothing but open comparisons besides the objective.
    """
    asked = [question for question in answer.questions if question.cell is not None]
    said = [text for question in asked for text in (line_in_words(question), curvature_in_words(question)) if text]
    if any(question.along and question.along.curvature for question in asked):
        said[-1] = " ".join(filter(None, [said[-1], trace_in_words(answer, brief=brief)]))
    said += [shared_in_words(shared) for shared in shared_values(answer.questions)]
    return [*said, *(selective_in_words(answer, one) for one in answer.selective if not brief or not one.is_open)]


def shared_in_words(shared: Shared) -> str:
    """Return whether one value suits all networks, e.g. `The same γ of focal, 0, is the best on mlp and resnet8.`"""
    what, networks = f"{shared.name} of {shared.loss}" if shared.loss else shared.name, listed([*shared.best])
    if shared.code == SAME:
        return f"The same {what}, {shared.common[0]}, is the best on {networks}."
    if shared.code == WORSE:
        each = ", ".join(f"{' or '.join(sorted(values))} on {network}" for network, values in shared.best.items())
        return f"No one {what} suits {networks}: {each}."
    may = f"; {listed(shared.common)} may" if shared.common else ""
    return f"Whether one {what} suits {networks} is open{may}."


def trace_in_words(answer: Answer, *, brief: bool) -> str:
    """Return a sentence on ECE against curvature over configurations; empty if unknown, or if open in a brief text."""
    if answer.ece_by_trace is None:
        return ""
    found, count = answer.ece_by_trace
    if brief and (found is None or found.interval is None or found.interval[0] <= 0 <= found.interval[1]):
        return ""
    words = f"too few configurations ({count})" if found is None else found.text()
    return f"ECE against cross-entropy's trace: {words}."


def selective_in_words(answer: Answer, one: Selection) -> str:
    """Return a sentence on a finalist with a selective loss: accuracy at the coverage, and AURC, each → after T."""
    lines = {line.trial: line for line in answer.finalists}
    rival = f" against {lines[one.rival].words}" if one.rival else ""
    accuracy = " → ".join(dict.fromkeys(f"{100 * mean:.1f}" for mean in one.accuracy.means))
    aurc = " → ".join(dict.fromkeys(f"{mean:.2g}" for mean in one.aurc.means))
    return (
        f"{name(lines[one.trial])}{rival} at coverage {one.coverage:g}: "
        f"accuracy {accuracy} %{ranks_in_words(one.accuracy)}, AURC {aurc}{ranks_in_words(one.aurc)}."
    )


def ranks_in_words(of: Ranked) -> str:
    """Return the verdicts on a quantity before → after temperature scaling, e.g. ` (open)`; empty without a rival."""
    words = [{BETTER: "better", WORSE: "worse", SAME: "the same"}.get(one.code, "open") for one in of.verdicts]
    return f" ({' → '.join(dict.fromkeys(words))})" if words else ""


def line_in_words(question: Question) -> str:
    """Return the verdict on a line of values, its price, and the end of the line at which the best value is."""
    first, *alike = question.best
    said = f"{listed(question.best)} may be the best" if alike else f"{first} is the best ({SURE} sure)"
    parts = [f"{first} has the best mean; seeds cannot judge it" if question.unknown else said]
    parts += [f"{listed(question.worse)} {'is' if len(question.worse) == 1 else 'are'} worse"] if question.worse else []
    beyond = {LARGEST: "larger", SMALLEST: "smaller"}.get(question.edge)
    edge = f" The best value tried is at the edge of the line: try {beyond} ones." if beyond else ""
    price = "" if question.along is None else price_in_words(question.along)
    return f"{place_in_words(question)}: {'; '.join(parts)}.{price}{edge}"


def price_in_words(along: Along) -> str:
    """Return the accuracy of each value minus the reference's, in percentage points with the intervals of known ones.

    Values without a known difference are named. The report has the intervals of all.
    """
    known = {word: verdict for word, verdict in along.accuracy.items() if verdict.code in (BETTER, WORSE)}
    costs = ends_of([f"{word} {points(v.estimate)} points {points_between(v)}" for word, v in known.items()])
    rest = [word for word, verdict in along.accuracy.items() if word not in known]
    costs += [f"{listed(rest)} open"] if rest else []
    against = along.reference.partition(" ")[0]
    return f" Accuracy against {against}: {', '.join(costs)}." if costs else ""


def points(share_of_one: float) -> str:
    """Return a difference of shares in percentage points with its sign, e.g. `−2.6`."""
    return f"{100 * share_of_one:+.1f}".replace("-", "−")


def points_between(verdict: Verdict) -> str:
    """Return the interval of a difference of shares in percentage points, e.g. `(−3.4 … −1.8)`."""
    return f"({points(verdict.low)} … {points(verdict.high)})"


#: Code of a step → its mark.
STEPS = {BETTER: "↓", WORSE: "↑"}


def along_table(question: Question) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the table of a line: accuracy and curvature at each value; empty if neither is known.

    A step of curvature is marked ↓ or ↑ if its 95 % interval excludes no change, else ?.
    """
    along = question.along
    if along is None or not (along.accuracy or along.curvature):
        return [], []
    heads = [question.name, f"accuracy against {along.reference}, points (95 %)", *map(label, along.curvature)]
    rows = []
    for at, word in enumerate(along.values):
        verdict = along.accuracy.get(word)
        accuracy = "" if verdict is None else f"{points(verdict.estimate)} {points_between(verdict)}"
        steps = [f"{t.means[at]:.2g}" + (f" {STEPS.get(t.steps[at - 1].code, '?')}" if at else "")
                 for t in along.curvature.values()]  # fmt: skip
        rows.append([word, accuracy, *steps])
    return heads, rows


#: Code of a trend → the verb of its sentence.
TRENDS = {FALLS: "falls", RISES: "rises", TURNS: "neither only falls nor only rises"}

#: The columns of λ_max, of the training loss and of cross-entropy.
CURVED = ("hessian_training_lambda_max", "hessian_cross_entropy_lambda_max")


def curvature_in_words(question: Question) -> str:
    """Return how both losses' largest eigenvalues change along a line; empty if curvature was not measured."""
    known = question.along.curvature if question.along is not None else {}
    ends = [] if question.along is None else ends_of(question.along.values)
    along = f"{question.name} {' → '.join(ends)}"
    training, plain = (trend_in_words(known[name], along) if name in known else "" for name in CURVED)
    losses = (("the training loss", training), ("cross-entropy", plain))
    said = "; ".join(f"λ_max of {name}{end}" for name, end in losses if end)
    return f"{said}." if said else ""


def trend_in_words(found: Trend, along: str) -> str:
    """Return the end of a sentence on a trend, or `: open`.

    For example, ` falls with γ 0 → 2 → 5 (14 → 9 → 5; each step 95 % sure)`.
    """
    every = [f"{mean:.2g}" for mean in found.means]
    means = " → ".join(every if found.code == TURNS else ends_of(every))  # a turn lies between the ends
    if found.code == OPEN:
        return ": open"
    compared = "steps" if found.code == TURNS else "each step" if found.by_steps else "first to last"
    return f" {TRENDS[found.code]} with {along} ({means}; {compared} {100 * STEP_LEVEL:.0f} % sure)"


def place_in_words(question: Question) -> str:
    """Return the hyperparameter of a line and where it was varied, e.g. `γ of focal on mlp at lr 0.1`."""
    loss, network = question.cell or ("", "")
    of, on = f" of {loss}" if loss else " with all else equal", f" on {network}" if network not in ("", OWN) else ""
    return f"{question.name}{of}{on}" + (f" at {question.at}" if question.at else "")


def objective_words(answer: Answer) -> str:
    """Return the objective's metric as the heading of a column."""
    return label(answer.objective.column).replace("after temperature", "after T")


@functools.cache
def glossaries() -> list[dict[str, str]]:
    """Return two glossaries (term → meaning): terms of the first screen, and terms that are used only elsewhere."""
    text = resources.files("sweeper.reporting").joinpath("glossary.yaml").read_text("utf-8")
    return [*yaml.safe_load_all(text)]


def words_of(screen: FirstScreen) -> list[str]:
    """Return the glossary's terms that this screen uses."""
    verdicts = {line.change.code for line in screen.finalists if line.change is not None}
    used = {line.standing for line in screen.finalists} | {f"{verdict} change" for verdict in verdicts}
    optional = {*SHOWN} if any(answer.fresh for answer in screen.answers) else {*SHOWN, "fresh seeds"}
    return [word for word in glossaries()[0] if word not in optional or word in used]


def legend(screen: FirstScreen) -> str:
    """Return the explanation of this screen's rows and verdicts; empty if no row has a verdict."""
    verdicts = {line.change.code for line in screen.finalists if line.change is not None}
    if not verdicts:
        return ""
    lines = dict.fromkeys(q.name for answer in screen.answers for q in answer.questions if q.cell is not None)
    on_lines = f", and the values of {listed([*lines])} on a line" if lines else ""
    own = dict.fromkeys(name for answer in screen.answers for name in answer.tuned)
    tuned = f" as tuned (own {listed([*own])})" if own else ""
    rows = f"Finalists: the best of each loss on each network{tuned}{on_lines}."
    said = [rows] if len(screen.finalists) > 1 else []
    seeds = {len(change.verdict.seeds) for line in screen.finalists if (change := line.change) and change.verdict}
    over = "test samples, for this network alone" if seeds == {1} else "seeds and test samples"
    said += [f"Change: test ECE after minus before temperature scaling, its 95 % interval over {over}."]
    said += ["≤ x: no difference larger than x (two tests of 5 %)."] if SAME in verdicts else []
    said += ["open: more seeds or test samples may decide."] if OPEN in verdicts else []
    return " ".join(said)
