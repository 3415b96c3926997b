"""Compare two sweeps: settings, environment and paired results.

Outcomes are compared in pairs of the same configuration (by hash), on the same seeds if both sweeps have them. Only
configurations that ran to the end in both sweeps are compared, so a stopped trial is never compared with a finished
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.core.cells import Row, Rows, Value, grouped, measured_values
from sweeper.core.display import plain_table
from sweeper.core.labels import label, plural
from sweeper.judging.judge import change
from sweeper.judging.pairs import independent_units
from sweeper.judging.question import BETTER, NOT_COMPARED, WORSE, Verdict
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard, selected, winners_interval
from trainables.curvature.statistics.base import headline_columns

#: (Split, column) of the compared metrics. Curvature is measured only on validation data. There are few metrics,
#: because their intervals hold together, so each additional one widens all.
METRICS = (
    ("test", "accuracy"),
    ("test", "nll"),
    ("test", "brier"),
    ("test", "ece"),
    ("test", "ada_ece"),
    *(("val", name) for name in headline_columns() if name.startswith("hessian_cross_entropy_")),
)

UNPAIRED = (
    "configurations share seeds that the other sweep does not have, so neither configurations nor seeds are "
    "independent pairs; run both with the same `seed`"
)

#: A configuration's hash and a replicate's seed.
Key = tuple[str, int]

#: What is paired: a seed, or a configuration by its hash.
Unit = int | str

#: (Dotted key, value in the first sweep, value in the second); None if absent.
Difference = tuple[str, object, object]


@dataclass(frozen=True)
class MetricComparison:
    """One metric in both sweeps, over the pairs for which both have a value.

    Attributes:
        split, metric: the compared metric.
        means: mean of the first and of the second sweep over the same pairs.
        units: number of pairs.
        verdict: on the second sweep against the first, WORSE if its values are larger. The intervals of all metrics
            hold together at 95 %.
    """

    split: str
    metric: str
    means: tuple[float, float]
    units: int
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        names: the two sweeps.
        asked: (key, first, second) for every differing value of the resolved search spaces.
        ran_on: (key, first, second) for every difference in versions, commit and hardware.
        only: number of configurations that only the first sweep has, and number that only the second has.
        shared: number of configurations in both.
        finished: number of shared configurations that finished in both; only these are compared.
        unit: what is paired, `configuration` (means over seeds) or `seed`.
        equal_seeds: whether both members of a pair have the same seeds.
        metrics: the compared metrics that both measured.
        left_out: metric → why it is not compared.
        best: each sweep's best finished configuration, in words; empty if none finished.
    """

    names: tuple[str, str]
    asked: Sequence[Difference]
    ran_on: Sequence[Difference]
    only: tuple[int, int]
    shared: int
    finished: int
    unit: str
    equal_seeds: bool
    metrics: Sequence[MetricComparison]
    left_out: Mapping[str, str]
    best: tuple[str, str] = ("", "")


def compare(first: Results, second: Results) -> Comparison:
    """Compare two sweeps. Raises QueryError if their tables cannot be read."""
    known = "SELECT DISTINCT config_hash FROM trials WHERE config_hash IS NOT NULL"
    hashes = [{row["config_hash"] for row in results.rows(known)} for results in (first, second)]
    rows = [_measured(results) for results in (first, second)]
    finished = {key[0] for key in rows[0]} & {key[0] for key in rows[1]}
    equal_seeds = any(key in rows[1] for key in rows[0])
    common = set(rows[0]) & set(rows[1]) if equal_seeds else None
    sides = [common] if common else rows
    # Configurations that share seeds are not independent. Then their common seeds are the independent units.
    shared_seeds = any(unit != key[0] for keys in sides for key, unit in independent_units(keys).items())
    by_seed = (shared_seeds and common is not None) or (len(finished) == 1 and equal_seeds)
    units = [_units(side, common, by_seed) for side in rows]
    metrics, left_out = ([], {"every metric": UNPAIRED}) if shared_seeds and not common else _compare_metrics(*units)
    return Comparison(
        names=(first.name, second.name),
        # The header is a comment for people.
        asked=differences(*({**results.specification, "header": None} for results in (first, second))),
        ran_on=differences(_environment(first), _environment(second)),
        only=(len(hashes[0] - hashes[1]), len(hashes[1] - hashes[0])),
        shared=len(hashes[0] & hashes[1]),
        finished=len(finished),
        unit="seed" if by_seed else "configuration",
        equal_seeds=equal_seeds,
        metrics=metrics,
        left_out=left_out,
        best=(_best(first), _best(second)),
    )


def _best(results: Results) -> str:
    """Return the best finished configuration of a sweep by its own objective, `validation NLL 0.045 ± 0.001, …`.

    The value is too optimistic, because it selected the configuration. An interval that accounts for this follows.
    """
    board = leaderboard(results)
    if not board.finished:
        return ""
    row, answer = board.finished[0], selected(results, board)
    said = f"{board.objective.label} {board.value(row)}, {row['trial']} {board.describe(row)}"
    said += f", best of {len(board.finished)} finished"
    return said if answer is None else f"{said}. {winners_interval(answer)}"


def differences(first: Mapping[str, object], second: Mapping[str, object]) -> list[Difference]:
    """Return the values that differ between two nested mappings."""
    a, b = _flat(first), _flat(second)
    return [(key, a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]


def _flat(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _environment(results: Results) -> dict[str, object]:
    manifest = results.manifest
    return {key: manifest[key] for key in ("versions", "git", "hardware", "dataset") if manifest.get(key) is not None}


def _measured(results: Results) -> dict[Key, dict[str, Value]]:
    """Return the measurements of each finished replicate, by configuration and seed."""
    # Only the last evaluation is used, because earlier rungs measured half-trained networks.
    table = results.sql(
        "SELECT * FROM final WHERE status = 'completed' AND split IN ('val', 'test') ORDER BY config_hash, seed"
    )
    measurements: dict[Key, dict[str, Value]] = {}
    wanted = {metric for _, metric in METRICS} | {"hessian_cross_entropy_samples"}
    columns = ["config_hash", "seed", "split", *sorted(wanted & set(table.column_names))]
    for row in table.select(columns).to_pylist():
        values = {f"{row['split']}_{name}": row[name] for name in columns[3:]}
        measurements.setdefault((row["config_hash"], row["seed"]), {}).update(values)
    return measurements


def _units(rows: Mapping[Key, Row], keys: set[Key] | None, by_seed: bool) -> dict[Unit, list[Row]]:
    """Group replicates into paired units: seeds or configurations."""
    kept = [key for key in rows if keys is None or key in keys]
    units = grouped(kept, lambda key: key[1] if by_seed else key[0])
    if by_seed:  # a mean over six configurations and one over two of them cannot be averaged
        most = max((len(of_one) for of_one in units.values()), default=0)
        units = {unit: of_one for unit, of_one in units.items() if len(of_one) == most}
    return {unit: [rows[key] for key in of_one] for unit, of_one in units.items()}


def _compare_metrics(
    first: Mapping[Unit, Rows], second: Mapping[Unit, Rows]
) -> tuple[list[MetricComparison], dict[str, str]]:
    pairs: dict[tuple[str, str], tuple[dict[Unit, float], dict[Unit, float]]] = {}
    left_out: dict[str, str] = {}
    for split, metric in METRICS:
        column = f"{split}_{metric}"
        if metric.startswith("hessian") and _sample_counts(first) != _sample_counts(second):
            left_out[metric] = "measured on different numbers of samples"
            continue
        before, after = (
            {unit: value for unit, of_one in side.items() if (value := _mean(of_one, column)) is not None}
            for side in (first, second)
        )
        common = [unit for unit in before if unit in after]
        if common:
            pairs[split, metric] = {u: before[u] for u in common}, {u: after[u] for u in common}
    compared = []
    for (split, metric), (before, after) in pairs.items():
        means = fmean(before.values()), fmean(after.values())
        compared.append(
            MetricComparison(split, metric, means, len(before), change(metric, before, after, among=len(pairs)))
        )
    return compared, left_out


def _sample_counts(units: Mapping[Unit, Rows]) -> set[Value]:
    """Return the numbers of samples on which curvature was measured."""
    # Curvature on different numbers of samples is not comparable: for focal loss, λ_max on 128 of 350 samples was 1.8
    # times the full value.
    counts = {row.get("val_hessian_cross_entropy_samples") for rows in units.values() for row in rows}
    return counts - {None}


def _mean(rows: Rows, column: str) -> float | None:
    values = measured_values(rows, column)
    return sum(values) / len(values) if values else None


#: Largest number of differing values listed; the sweeps' files contain all.
SHOWN = 12


def view(comparison: Comparison) -> RenderableType:
    """Return the comparison as text for a terminal."""
    first, second = comparison.names
    parts: list[RenderableType] = [Text(f"{first} and {second}", style="bold")]
    parts += _differing("settings", comparison.asked) + _differing("environment", comparison.ran_on)
    parts += [Text(), Text(count_sentence(comparison))]
    if comparison.metrics:
        parts += [_table(comparison)]
        clear = [entry for entry in comparison.metrics if entry.verdict.code in (BETTER, WORSE)]
        parts += [Text(verdict(comparison, entry)) for entry in clear]
    best = [f"best of {name}: {text}" for name, text in zip(comparison.names, comparison.best, strict=True) if text]
    parts += [Text(), *map(Text, best)] if best else []
    parts += [Text(f"{label(name)} not compared: {why}", style="dim") for name, why in comparison.left_out.items()]
    return Group(*parts)


def count_sentence(comparison: Comparison) -> str:
    """Return the number of configurations in both sweeps and how they are paired, in one sentence."""
    first, second = comparison.names
    sentence = (
        f"{plural(comparison.shared, 'configuration')} in both, {comparison.only[0]} only in {first}, "
        f"{comparison.only[1]} only in {second}; {comparison.finished} finished in both"
    )
    if not comparison.metrics:
        return sentence + "; no pairs to compare"
    seeds = "with equal seeds" if comparison.equal_seeds else "with different seeds"
    return f"{sentence}, paired by {comparison.unit} {seeds}"


def verdict(comparison: Comparison, entry: MetricComparison) -> str:
    """Return which sweep has the higher value of a metric, in words."""
    higher = comparison.names[1] if entry.verdict.code == WORSE else comparison.names[0]
    said = f"{label(entry.split)} {label(entry.metric)} is higher in {higher}: {difference(entry)}"
    return f"{said} (95 % {limits(entry)}, n = {entry.units})"


def difference(entry: MetricComparison) -> str:
    """Return the mean of second − first, with its sign."""
    return f"{entry.means[1] - entry.means[0]:+.3g}".replace("-", "−")


def limits(entry: MetricComparison) -> str:
    """Return the interval of the difference; empty if there is none."""
    if entry.verdict.code == NOT_COMPARED:
        return ""
    return f"{entry.verdict.low:+.3g} … {entry.verdict.high:+.3g}".replace("-", "−")


def _differing(title: str, values: Sequence[Difference]) -> list[RenderableType]:
    if not values:
        return [Text(f"{title}: identical", style="dim")]
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, a, b in values[:SHOWN]:
        table.add_row(f"  {key}", _shown(a), "→", _shown(b))
    more = [Text(f"  … and {len(values) - SHOWN} more", style="dim")] if len(values) > SHOWN else []
    return [Text(title), table, *more]


def _shown(value: object) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _table(comparison: Comparison) -> RenderableType:
    headings, rows = ("metric", *comparison.names, "difference", "95 % together", "n"), []
    for entry in comparison.metrics:
        means = (f"{mean:.4g}" for mean in entry.means)
        metric = f"{label(entry.split)} {label(entry.metric)}"
        rows.append((metric, *means, difference(entry), limits(entry), str(entry.units)))
    return plain_table(headings, rows, left=headings[:1])
