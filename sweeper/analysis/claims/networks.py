"""Claims judged network by network: rows of each, and one verdict from the networks' own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from sweeper.analysis.claims.base import FAILS, HOLDS, UNDECIDED, Verdict, decide
from sweeper.analysis.claims.numbers import LEVEL, Estimate, Point, difference, mean_correlation, number
from sweeper.text.cells import Row, Rows, text_of

Ours = Callable[[Row], bool]
"""Selects the rows of one loss."""


def by_network(rows: Rows) -> dict[str, list[Row]]:
    """Return rows by network, called after its architecture and the hyperparameters of it that vary among the rows."""
    columns = sorted({key for row in rows for key in row if key.startswith("config_architecture_")})
    named = "config_architecture_name"
    kinds = {name: [row for row in rows if row.get(named) == name] for name in {row.get(named) for row in rows}}
    varying = {
        name: [c for c in columns if c != named and len({row.get(c) for row in held}) > 1]
        for name, held in kinds.items()
    }
    found: dict[str, list[Row]] = {}
    for row in rows:
        words = (f"{c.removeprefix('config_architecture_')} {row.get(c)}" for c in varying[row.get(named)])
        found.setdefault(" ".join((text_of(row, named), *words)), []).append(row)
    return dict(sorted(found.items()))


def verdict_of(
    claim: str,
    found: Mapping[str, Estimate],
    what: str,
    unit: str,
    *,
    missing: str,
    form: str = ".3g",
    positive_holds: bool = True,
    details: Mapping[str, object] | None = None,
) -> Verdict:
    """Return one verdict from an estimate for each comparison, or each network.

    It holds where every interval lies on the claim's side of 0, does not hold where one lies on the other side, and is
    undecided otherwise. The verdict's statistic is that which is worst for the claim.

    Args:
        claim: its name.
        found: what was estimated, by network or comparison.
        what: the estimate in words, before the numbers.
        unit: what n counts.
        missing: the sentence where nothing could be estimated.
        form: of the numbers.
        positive_holds: whether the claim's side of 0 is above it.
        details: further ones.
    """
    known = {name: each for name, each in found.items() if each.value is not None}
    if not known:
        return Verdict(claim, UNDECIDED, None, None, 0, unit, missing, {})
    verdicts = {name: decide(each.interval, positive_holds=positive_holds) for name, each in found.items()}
    kinds = set(verdicts.values())
    verdict = HOLDS if kinds == {HOLDS} else FAILS if FAILS in kinds else UNDECIDED
    sign = 1 if positive_holds else -1
    worst = min(known.values(), key=lambda each: sign * (each.value or 0.0))
    words = "; ".join(f"{name} {each.text(form)}" for name, each in found.items())
    sentence = f"{what}: {words}; n = {_counts(known)} {unit}"
    more = {"verdicts": verdicts, "estimates": {name: each.value for name, each in found.items()}}
    return Verdict(claim, verdict, worst.value, worst.interval, worst.n, unit, sentence, {**more, **(details or {})})


def _counts(found: Mapping[str, Estimate]) -> str:
    """Return how many were compared each time: `16`, or `12 to 16`."""
    least, most = (choose(each.n for each in found.values()) for choose in (min, max))
    return str(most) if least == most else f"{least} to {most}"


def values(rows: Rows, column: str) -> list[float]:
    """Return a column's finite numbers."""
    return [value for row in rows if (value := number(row, column)) is not None]


def differences(
    rows: Rows, column: str, ours: Ours, others: Mapping[str, Ours], extra: Mapping[str, str] | None = None
) -> dict[str, Estimate]:
    """Return every other loss's mean of a column minus ours, network by network, with Welch's intervals.

    Together they have 95 % (Bonferroni). What has no rows is left out.

    Args:
        rows: of one split.
        column: what is compared.
        ours: the loss that the claim is about.
        others: those that it is compared with, by name.
        extra: further columns to compare besides, by the word that stands behind the comparison's name.
    """
    columns = {"": column, **{f" {word}": each for word, each in (extra or {}).items()}}
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    for network, held in by_network(rows).items():
        for name, is_other in others.items():
            for word, each in columns.items():
                pair = values(list(filter(is_other, held)), each), values(list(filter(ours, held)), each)
                if all(pair):
                    pairs[f"{network}, {name}{word}"] = pair
    level = 1 - (1 - LEVEL) / max(1, len(pairs))
    return {key: difference(*pair, level) for key, pair in pairs.items()}


def correlations(rows: Rows, x: Callable[[Row], float | None], column: str) -> dict[str, Estimate]:
    """Return each network's rank correlation of `x` and a column over its replicates, with a bootstrap interval."""
    found = {}
    for network, held in by_network(rows).items():
        pairs = [(x(row), number(row, column)) for row in held]
        points = [Point(None, a, b, 1) for a, b in pairs if a is not None and b is not None]
        if points:
            found[network] = mean_correlation(points)
    return found


def losses(names: Sequence[str]) -> dict[str, Ours]:
    """Return losses by name, each with what selects its rows, whatever their hyperparameters."""
    return {name: _is(name) for name in names}


def _is(name: Hashable) -> Ours:
    return lambda row: row["config_loss_name"] == name
