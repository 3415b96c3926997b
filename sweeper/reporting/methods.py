"""Post-hoc methods in words: which one to use on an imported network, and what each gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sweeper.core.cells import grouped
from sweeper.core.display import plain_table
from sweeper.core.errors import SweeperError
from sweeper.core.labels import plural
from sweeper.judging.question import BETTER, OPEN, SAME, WORSE
from sweeper.reporting.figures.base import MARKS
from sweeper.reporting.sentences import listed, signed
from sweeper.results import Results
from sweeper.results.estimators import SHOWN
from sweeper.results.improvements import NONE, SCORES, Gain, Improvement, Methods, methods_of_sweep
from trainables.registry import IMPORTED


def imported_methods(results: Results) -> Methods | None:
    """Return the methods of imported predictions of one network; None for any other sweep, and without test data."""
    if results.specification.get("loop") != IMPORTED:
        return None
    try:
        found = methods_of_sweep(results)
    except (SweeperError, LookupError):  # not finished, or cross-fitted without test data
        return None
    trials = results.rows("SELECT count(DISTINCT trial) AS n FROM trials")[0]["n"]
    return found[0] if len(found) == trials == 1 else None


def method_sentence(methods: Methods) -> str:
    """Return which method to use, by test NLL alone; doing nothing is one of the candidates."""
    best, nll = methods.best, methods.scores["NLL"]
    leader, none = best.leader or NONE, best.of[NONE]
    seeds = len(next(iter(best.of.values())).seeds)
    over = f"{plural(methods.samples, 'test sample')}, " + ("this network" if seeds == 1 else plural(seeds, "seed"))
    sure = f"95 % sure, {over}"
    alike = [name for name in best.named(OPEN, SAME) if name not in (leader, NONE)]
    others = f" {listed(alike)} may be as good." if alike else ""
    if leader == NONE:
        shown = f"each raises test NLL from {nll[NONE]:.3f} ({sure})" if best.code == BETTER else (
            f"none is shown to lower test NLL from {nll[NONE]:.3f} ({over})"
        )  # fmt: skip
        return f"Use no post-hoc method: {shown}.{others}"
    change = f"test NLL {nll[leader]:.3f} instead of {nll[NONE]:.3f}"
    if none.code == WORSE:
        worse = "" if alike or len(nll) < 3 else " Every other method is worse."
        return f"Use {leader}: {change} ({sure}).{others}{worse}"
    if none.code == SAME:
        return f"Use no post-hoc method: {leader} changes test NLL by no more than {none.largest:.3f} ({sure}).{others}"
    return f"No post-hoc method is shown to help ({over}). {leader} has the smallest NLL, {change}{wanted(methods)}."


def wanted(methods: Methods) -> str:
    """Return the number of test samples that would probably decide whether the leading method helps."""
    times = methods.best.of[NONE].samples_needed
    return "" if times is None else f"; about {number_of(times * methods.samples)} test samples would decide"


def number_of(samples: float) -> str:
    """Return a number of samples with two significant digits, e.g. `12,000`."""
    return f"{float(f'{samples:.2g}'):,.0f}"


def gained(gain: Gain, samples: int | None = None) -> str:
    """Return e.g. `✓ +0.012 +0.008…+0.016`; ✓ better, ✗ worse, ≈ no difference larger than the margin, ? open."""
    if gain.interval is None:
        return f"? {signed(gain.value)}"
    low, high = gain.interval
    code = (BETTER if low > 0 else WORSE if high < 0 else OPEN) if gain.verdict is None else gain.verdict.code
    text = f"{MARKS[code]} {signed(gain.value)} {signed(low)}…{signed(high)}"
    times = None if gain.verdict is None else gain.verdict.samples_needed
    return f"{text} {number_of(times * samples)} samples" if times and samples else text


def method_table(methods: Methods) -> RenderableType:
    """Return a row for each method and for doing nothing, in the order of their NLL."""
    gains: Mapping[str, Mapping[str, Gain]] = {row.method: row.gains for row in methods.improvements}
    rows = []
    for name in sorted(methods.scores["NLL"], key=lambda name: methods.scores["NLL"][name]):
        own = gains.get(name, {})
        cells = [gained(own[score], methods.samples) if score in own else "" for score in SCORES[:2]]
        rows.append((name, f"{methods.scores['NLL'][name]:.3f}", *cells, f"{methods.scores[SHOWN][name]:.3f}"))
    heads = (
        "method",
        "test NLL",
        "NLL gained, 95 %",
        "Brier gained, 95 %",
        "ECE of class 1" if methods.positive else "ECE",
    )
    return plain_table(heads, rows, left=("method", *heads[2:4]))


def methods_view(methods: Methods) -> RenderableType:
    """Return the sentence, the table and the methods that are not in it."""
    left_out = _left_out(methods.left_out)
    return Group(
        Text(method_sentence(methods), style="bold"), Text(), method_table(methods),
        Text(f"{LEGEND} 95 % for all methods together, over the test samples.{left_out}", style="dim"),
    )  # fmt: skip


def gains_view(rows: Sequence[Improvement], left_out: Sequence[str] = ()) -> RenderableType:
    """Return a table for each network and one of the means; methods are in the order of their gain in NLL.

    The last line names the methods that are `left_out`.
    """
    parts: list[RenderableType] = []
    for where, own in grouped(rows, lambda row: row.where).items():
        best_first = sorted(own, key=lambda row: -row.gains[SCORES[0]].value)
        lines = [
            (row.method, *(gained(row.gains[score]) for score in SCORES), str(row.gains[SCORES[0]].n))
            for row in best_first
        ]
        parts += [plain_table((where, *SCORES, "n"), lines, left=(where, *SCORES)), Text()]
    over = "95 % for all methods of a network together, over n seeds and the test samples, or over n data sets."
    return Group(*parts, Text(f"{LEGEND} {over}{_left_out(left_out)}", style="dim"))


def _left_out(methods: Sequence[str]) -> str:
    return f" Not judged: {listed(methods)}, see the report." if methods else ""


LEGEND = (
    "Gained: the score without the method minus with it, on test data. ✓ better, ✗ worse, ≈ no difference larger than "
    "the margin, ? open."
)
