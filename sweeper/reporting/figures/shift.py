"""Distribution shift: does the winner stay calibrated, and does a temperature fitted on clean data still help?

The corruptions come from Hendrycks & Dietterich 2019 (arXiv:1903.12261). The question comes from Ovadia et al. 2019,
Can you trust your model's uncertainty? (arXiv:1906.02530), section 4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sweeper.core.cells import Rows, by_trial, floats, grouped, int_of, measured_or_none, measured_values, text_of
from sweeper.core.labels import label, number, plural
from sweeper.core.statistics.basics import spread
from sweeper.judging.judge import judge
from sweeper.judging.means import means
from sweeper.judging.question import BETTER, WORSE, Data, Question, Verdict
from sweeper.reporting.figures.base import (
    FIGURES,
    MARKS,
    Figure,
    Json,
    Panel,
    bars_to,
    colour,
    ends,
    mark,
    names,
    points,
    quantity,
    shade,
)
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Leaderboard, leaderboard
from sweeper.results.queries import literal
from sweeper.results.verdicts import best_on_networks
from trainables.registry.names import CORRUPTED_PATTERN, OTHER

METRICS = ("ece", "nll")
AFTER = "posthoc_temperature_"
#: Prefix of a metric's column → name of its line.
LINES = {"": "uncalibrated", AFTER: "after temperature scaling on clean validation data"}

DETECTION = {"msp": "MSP", "max_logit": "largest logit", "energy": "energy", "entropy": "entropy"}

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Shifted:
    """A column on corrupted data.

    Attributes:
        values: severity (0 is clean test data) → trial → seed → mean over kinds of corruption.
        kinds: (severity, kind) → the winner's mean over replicates.
    """

    values: Mapping[int, Mapping[str, BySeed]]
    kinds: Mapping[tuple[int, str], float]


@dataclass(frozen=True)
class Effect:
    """The effect of temperature scaling, fitted on clean data, at one kind and severity of corruption.

    Attributes:
        kind, severity: the corruption.
        before, after: a metric's means over seeds without and with temperature scaling.
        verdict: on after against before, by seed; the verdicts of one network and metric hold together at 95 %.
    """

    kind: str
    severity: int
    before: float
    after: float
    verdict: Verdict


@FIGURES.add(
    "shift",
    place=80,
    absent="Under distribution shift: nothing was measured on corrupted data; name them in evaluation.splits, e.g. "
    "{corrupted: {severities: [1, 3, 5]}}.",
)
def draw(results: Results) -> Figure | None:
    """Return the winner's ECE and NLL against severity, before and after temperature scaling; None without data."""
    present = results.columns("evaluations")
    columns = [before + metric for metric in METRICS for before in LINES if before + metric in present]
    board = leaderboard(results)
    # Shifted splits are measured only at a trial's end.
    if board.best is None or board.best["status"] != FINISHED or not columns:
        return None
    winner = text_of(board.best, "trial")
    sql = shifted_sql(columns)
    rows = results.rows(sql)
    data = {column: measured(rows, column, winner) for column in columns}
    data = {column: shifted for column, shifted in data.items() if len(shifted.values) > 1}
    panels = [
        panel(metric, {before: data[before + metric] for before in LINES if before + metric in data}, winner)
        for metric in METRICS
        if metric in data
    ]
    of_losses = {
        metric: {loss: found for loss, trial in best_trials(results, board).items()
                 if (found := effects(rows, metric, trial))}
        for metric in METRICS if metric in data and AFTER + metric in data
    }  # fmt: skip
    panels += [effect_panel(loss, metric, found) for metric, by in of_losses.items() for loss, found in by.items()]
    queries = [sql]
    if f"ood_{next(iter(DETECTION))}_auroc" in present:
        queries.append(other_sql(winner))
        panels += detection(results.rows(queries[-1]))
    if not panels:
        return None
    kinds = max((n for shifted in data.values() for n in Counter(s for s, _ in shifted.kinds).values()), default=0)
    count = spread([*next(iter(data.values())).values[0][winner].values()]).n if data else 0
    return Figure(
        title="Under distribution shift",
        caption=caption(board, winner, kinds, count),
        findings=[sentence for metric in METRICS if metric in data for sentence in finding(data, metric, winner)],
        sql=queries,
        panels=panels,
        legend=[words for before, words in LINES.items() if any(before + metric in data for metric in METRICS)],
    )


def caption(board: Leaderboard, winner: str, kinds: int, count: int) -> str:
    """Return the caption, with n."""
    assert board.best is not None
    who = f"the best configuration, {winner}: {board.describe(board.best)}"
    if not kinds:
        return f"How well the outputs of {who} distinguish other data from its test data; 0.5 is chance."
    return (
        f"Test metrics of {who}, clean and against the severity of corruption. Lines: means over "
        f"{plural(kinds, 'kind')} of corruption and {plural(count, 'replicate')}; bars: 95 % intervals "
        "for other seeds, on average over configurations; points: each kind."
    )


def shifted_sql(columns: Sequence[str]) -> str:
    """Return the query of every finished replicate on clean and corrupted test data."""
    return (
        f"SELECT trial, seed, regexp_extract(split, '{CORRUPTED_PATTERN}', 1) AS kind, "
        f"coalesce(try_cast(regexp_extract(split, '{CORRUPTED_PATTERN}', 2) AS INTEGER), 0) AS severity, "
        f"{', '.join(columns)}\nFROM final WHERE status = '{FINISHED}' AND "
        f"(split = 'test' OR regexp_matches(split, '{CORRUPTED_PATTERN}')) ORDER BY trial, replicate, split"
    )


def best_trials(results: Results, board: Leaderboard) -> dict[str, str]:
    """Return loss → trial: each loss's best finished configuration on the winner's network."""
    assert board.best is not None
    network, losses = text_of(board.best, "architecture"), dict.fromkeys(text_of(row, "loss") for row in board.finished)
    best = {loss: best_on_networks(results, loss).get(network) for loss in losses}
    return {loss: text_of(row, "trial") for loss, row in best.items() if row is not None}


def effects(rows: Rows, metric: str, trial: str) -> list[Effect]:
    """Return the effect of temperature scaling on a trial at each kind and severity of corruption."""
    shifted = [row for row in rows if row["trial"] == trial and int_of(row, "severity")]
    places = grouped(shifted, lambda row: (text_of(row, "kind"), int_of(row, "severity")))
    sides = {at: [_by_seed(mine, column) for column in (metric, AFTER + metric)] for at, mine in sorted(places.items())}
    known = {f"{kind} {severity}": (kind, severity) for kind, severity in sides}
    # One question for all rows: they share the seeds, and so the spread of a few seeds is estimated from all of them.
    data = {name: sides[at][1] for name, at in known.items()} | {
        f"{name} before": sides[at][0] for name, at in known.items()
    }
    question = Question([*known], metric, relative=True, level=0.95, against=[f"{name} before" for name in known])
    verdicts = judge(question, Data(data)).of
    found = []
    for name, verdict in verdicts.items():
        before, after = sides[known[name]]
        if seeds := before.keys() & after.keys():
            first, second = (fmean(side[seed] for seed in seeds) for side in (before, after))
            found.append(Effect(*known[name], first, second, verdict))
    return found


def _by_seed(rows: Rows, column: str) -> dict[int, float]:
    """Return a column's values by seed."""
    values = {int_of(row, "seed"): measured_or_none(row, column) for row in rows}
    return {seed: value for seed, value in values.items() if value is not None}


def effect_panel(loss: str, metric: str, found: Sequence[Effect]) -> Panel:
    """Return the map of a loss's effects: a row for each kind, a column for each severity."""
    rows: list[Json] = []
    for effect in found:
        values = f"{effect.before:.3f} → {effect.after:.3f}"
        place = {"kind": effect.kind.replace("_", " "), "severity": str(effect.severity)}
        says = f"{place['kind']}, severity {effect.severity}\n{label(metric)} {values} with temperature scaling"
        text = f"{values} {MARKS.get(effect.verdict.code, '?')}"
        rows.append({**place, "change": effect.after - effect.before, "text": text, "says": says})
    furthest = max(abs(effect.after - effect.before) for effect in found) or 1.0
    severities = [str(severity) for severity in sorted({effect.severity for effect in found})]
    layers = [
        mark("rect", rows, color=shade("change", -furthest, furthest, signed=True), opacity={"value": 0.35}),
        mark("text", rows, look={"fontSize": 10}, text={"field": "text"}),
    ]
    counted = Counter(effect.verdict.code for effect in found)
    remark = (
        f"Temperature fitted on clean data lowers {label(metric)} at {counted[BETTER]} of {len(found)} kinds and "
        f"severities, and raises it at {counted[WORSE]} (95 % for all of them together)."
    )
    harmed = dict.fromkeys(effect.kind.replace("_", " ") for effect in found if effect.verdict.code == WORSE)
    remarks = [remark, f"It harms {', '.join(harmed)}."] if harmed else [remark]
    x, y = names("severity", "severity of corruption", severities), names("kind")
    return Panel(f"{loss}: test {label(metric)} → after T", layers, x, y, remarks, width=90 * len(severities) + 160)


def measured(rows: Rows, column: str, winner: str) -> Shifted:
    """Return a column's means over kinds, at the severities at which the winner has a value."""
    # Clean test data have severity 0 and no kind.
    known = [row for row in rows if measured_or_none(row, column) is not None]
    values, kinds = dict[int, Mapping[str, BySeed]](), dict[tuple[int, str], float]()
    for severity, mine in sorted(grouped(known, lambda row: int_of(row, "severity")).items()):
        trials = by_trial(mine)
        if winner in trials:
            values[severity] = {trial: _means(group, column, "seed") for trial, group in trials.items()}
            means = _means(trials[winner], column, "kind") if severity else {}
            kinds |= {(severity, str(kind)): mean for kind, mean in means.items()}
    return Shifted(values, kinds)


def _means(rows: Rows, column: str, by: str) -> dict[Any, float]:
    """Return a column's means by the values of another column."""
    return {key: fmean(floats(mine, column)) for key, mine in grouped(rows, lambda row: row[by]).items()}


def _interval(values: Mapping[str, BySeed], trial: str, mode: str) -> tuple[float, float] | None:
    # The spread is estimated from the replicates of all finished trials. The winner's few replicates would give a wide
    # interval.
    question = Question([*values], "", "max" if mode == "max" else "min", relative=mode == "min", level=0.95)
    mean = means(question, Data(values))[trial]
    return None if mean.seeds < 2 else (mean.low, mean.high)


def factor_of(
    first: Mapping[str, BySeed], second: Mapping[str, BySeed], trial: str
) -> tuple[float, tuple[float, float] | None]:
    """Return the factor by which a trial's values change from the first to the second, and its 95 % interval.

    Values are paired by seed. Growth and spread of errors are proportional to their size, so logarithms are averaged.
    Seeds with a value of 0 are left out. The factor is NaN if no seed is left.
    """
    both: dict[str, BySeed] = {}
    for name in sorted(first.keys() & second.keys()):
        pairs = {seed: (value, second[name].get(seed, 0)) for seed, value in first[name].items()}
        logs = {seed: math.log(new / old) for seed, (old, new) in pairs.items() if old > 0 and new > 0}
        if logs:
            both[name] = logs
    if trial not in both:
        return math.nan, None
    interval = _interval(both, trial, "max")
    factor = math.exp(spread([*both[trial].values()]).mean)
    return factor, None if interval is None else (math.exp(interval[0]), math.exp(interval[1]))


def finding(data: Mapping[str, Shifted], metric: str, winner: str) -> list[str]:
    """Return a sentence on whether the winner stays calibrated and whether temperature scaling still helps."""
    before, after = data[metric].values, data.get(AFTER + metric)
    worst = max(before)
    clean, shifted = (number(spread([*before[severity][winner].values()]).mean) for severity in (0, worst))
    verdict = _verdict(before[0], before[worst], winner, ("no clear change", "worse", "better"))
    said = (
        f"Under distribution shift the winner's {label(metric)} goes from {clean} → {shifted} at severity {worst}: "
        f"{verdict or 'too few replicates for an interval'}."
    )
    if after is None or worst not in after.values:
        return [said]
    words = ("makes no clear difference there", "harms there", "still helps there")
    verdict = _verdict(before[worst], after.values[worst], winner, words)
    factor, _ = factor_of(before[worst], after.values[worst], winner)
    return [f"{said} Temperature fitted on clean validation data {verdict or f'multiplies it by {number(factor)}'}."]


def _verdict(
    first: Mapping[str, BySeed], second: Mapping[str, BySeed], trial: str, words: tuple[str, str, str]
) -> str | None:
    """Return the word for no clear change, for growth or for decrease, and the factor; None without an interval."""
    factor, interval = factor_of(first, second, trial)
    if interval is None:
        return None
    unclear, grows, shrinks = words
    word = unclear if interval[0] <= 1 <= interval[1] else grows if factor > 1 else shrinks
    return f"{word}, {_with_interval(f'{number(factor)} times', interval)}"


def _with_interval(value: str, interval: tuple[float, float] | None) -> str:
    return value if interval is None else f"{value} (95 % {number(interval[0])} … {number(interval[1])})"


def panel(metric: str, lines: Mapping[str, Shifted], winner: str) -> Panel:
    """Return the panel of a metric against severity: means with intervals, and a point for each kind."""
    means = [row for at, (before, line) in enumerate(lines.items()) for row in mean_rows(line, winner, before, at)]
    kinds = [row for at, (before, line) in enumerate(lines.items()) for row in kind_rows(line, before, at)]
    by = colour("line", [LINES[before] for before in lines])
    layers = [
        mark("line", means, look={"strokeWidth": 2}, color=by), bars_to(means, color=by),
        points(kinds, size=16, color=by, opacity={"value": 0.5}), points(means, color=by),
    ]  # fmt: skip
    x = quantity("severity", "severity of corruption")
    ticks = sorted({severity for line in lines.values() for severity in line.values})
    # Only measured severities are labelled, and 0 is labelled `clean`.
    x["axis"] = {"values": ticks, "labelExpr": "datum.value ? datum.label : 'clean'", "format": "d"}
    return Panel(f"Test {label(metric)}", layers, x, quantity("value", f"test {label(metric)}", zero=True))


def mean_rows(line: Shifted, winner: str, before: str, index: int) -> list[Json]:
    """Return the means over kinds and replicates, with intervals from the moderated spread of replicates."""
    rows: list[Json] = []
    for severity, trials in line.values.items():
        mean, interval = spread([*trials[winner].values()]).mean, _interval(trials, winner, "min")
        said = f"{LINES[before]}\nseverity {severity}: {_with_interval(number(mean), interval)}"
        # Points are moved sideways, so that the bars of two lines at one severity do not cover each other.
        place = {"severity": severity + 0.03 * (2 * index - 1), "value": mean, **ends(interval)}
        rows.append({**place, "line": LINES[before], "says": said})
    return rows


def kind_rows(line: Shifted, before: str, index: int) -> list[Json]:
    """Return each kind's mean over replicates."""
    return [
        {"severity": severity + 0.12 * (2 * index - 1), "value": value, "line": LINES[before],
         "says": f"{kind.replace('_', ' ')}, severity {severity}\n{LINES[before]}: {number(value)}"}
        for (severity, kind), value in line.kinds.items()
    ]  # fmt: skip


def other_sql(winner: str) -> str:
    """Return the query of the winner's AUROC for distinguishing other data from its test data."""
    columns = ", ".join(f"ood_{score}_auroc AS {score}" for score in DETECTION)
    first = f"ood_{next(iter(DETECTION))}_auroc"
    return (
        f"SELECT split, replicate, {columns}\nFROM final\n"
        f"WHERE trial = {literal(winner)} AND {first} IS NOT NULL ORDER BY ALL"
    )


def detection(rows: Rows) -> list[Panel]:
    """Return the panel of AUROCs for distinguishing other data from test data, one point per score and replicate."""
    if not rows:
        return []
    # AUROC depends on neither severity nor temperature. Each other data set has its own colour.
    splits = [*dict.fromkeys(text_of(row, "split") for row in rows)]
    drawn: list[Json] = []
    remarks = []
    for split in splits:
        mine, name = [row for row in rows if row["split"] == split], split.removeprefix(OTHER)
        drawn += [
            {"score": words, "auroc": value, "data": name, "says": f"{name}\n{words}: {number(value)}"}
            for score, words in DETECTION.items() for value in measured_values(mine, score)
        ]  # fmt: skip
        value, best = max((spread(measured_values(mine, score)).mean, words) for score, words in DETECTION.items())
        remarks.append(f"{name}: best detected by {best}, AUROC {number(value)}.")
    layers = [points(drawn, color=colour("data", [split.removeprefix(OTHER) for split in splits]))]
    axes = names("score", "score"), quantity("auroc", "AUROC", limits=(0, 1.02))
    return [Panel("Out-of-distribution detection", layers, *axes, remarks)]
