"""The change of each layer's curvature with γ, split into the loss's own scale and the network's change.

For each network, the loss's scale at its logits is the ratio of the training loss's Tr(H_bb) to cross-entropy's. The
change of the network is the ratio of cross-entropy's Tr(H_bb) to that of networks trained with γ = 0. The product of
both ratios is the whole change of the training loss's Tr(H_bb). (In the other order, losses would be compared at the
logits of γ = 0.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from sweeper.core.cells import Rows, float_of, int_of, text_of
from sweeper.core.labels import number, plural
from sweeper.judging.judge import change
from sweeper.judging.question import NOT_COMPARED
from sweeper.reporting.figures.base import FIGURES, Figure, Json, Panel, mark, names, shade
from sweeper.results import Results

#: Largest number of values of γ. More values were probably drawn at random, so each column would have one
#: configuration.
MOST_GAMMAS = 16

WHOLE = "all layers"

#: Part of the change → heading of its panel.
PARTS = {
    "total": "training loss’s Tr(H), against γ = 0",
    "scale": "of it the loss’s scale, at the same network",
    "network": "of it the network’s: cross-entropy’s Tr(H)",
}

SQL = """SELECT f.config_architecture_name AS architecture, f.config_loss_name AS family,
  {gamma} AS gamma, f.trial, f.replicate, t.seed, b.loss, b.layer, b.block, b.trace, b.lambda_max
FROM blocks AS b
JOIN final AS f ON f.trial = b.trial AND f.replicate = b.replicate AND f.epoch = b.epoch AND f.split = 'val'
JOIN trials AS t ON t.trial = b.trial AND t.replicate = b.replicate
WHERE f.stage = 'end' ORDER BY b.layer, f.trial, f.replicate"""


@dataclass(frozen=True)
class Ratio:
    """The natural logarithm of a ratio: its mean over seeds and 95 % limits; None for a single seed."""

    value: float
    limits: tuple[float, float] | None

    @classmethod
    def of(cls, values: Sequence[float], others: Sequence[float] | None = None) -> Ratio:
        """Return the mean of the values, minus that of independent others if given."""
        against = dict(enumerate(others or [0.0] * len(values)))
        found = change("", against, dict(enumerate(values)), paired=others is None, skewed=True)
        limits = None if found.code == NOT_COMPARED else (found.low, found.high)
        return cls(fmean(values) - fmean(against.values()), limits)


#: Layer and γ → seed and trial → value.
Readings = Mapping[tuple[str, float], Mapping[tuple[int, str], float]]
#: Part → layer → γ → ln of the ratio.
Changes = Mapping[str, Mapping[str, Mapping[float, Ratio]]]


@FIGURES.add(
    "curvature_by_layer",
    place=15,
    absent="Curvature by layer and γ: needs evaluation.curvature.blocks, a grid of γ, and γ = 0 or cross-entropy.",
)
def draw(results: Results) -> Figure | None:
    """Return heat maps of layer × γ per network, three of the trace and one of λ_max; None without blocks or γ."""
    gamma = results.quantity("gamma", "f")
    if gamma is None:
        return None
    # Cross-entropy is focal loss at γ = 0, the reference of every ratio.
    sql = SQL.format(gamma=f"if(f.config_loss_name = 'cross_entropy', 0, {gamma})")
    rows = [row for row in results.rows(sql) if row["gamma"] is not None]
    panels: list[Panel] = []
    findings: list[str] = []
    for family in sorted({str(row["family"]) for row in rows} - {"cross_entropy"}):
        for architecture in sorted({str(row["architecture"]) for row in rows}):
            mine = [r for r in rows if r["family"] in (family, "cross_entropy") and r["architecture"] == architecture]
            gammas = {float_of(row, "gamma") for row in mine}
            if 0 in gammas and 2 <= len(gammas) <= MOST_GAMMAS:
                changes = changes_of(mine)
                panels += panels_of(f"{architecture}, {family}", changes, mine)
                findings.append(finding(architecture, family, changes))
    if not panels:
        return None
    seeds = len({(row["trial"], row["replicate"]) for row in rows})
    return Figure(
        title="Curvature by layer and γ",
        caption=(
            "Natural logarithm of the ratio of Hessians’ traces, by layer (0 is next to the input) and γ: means over "
            f"{plural(seeds, 'finished network')}. The first panel is the sum of the next two. 95 % intervals over "
            "seeds are in the hover text, of differences within a seed where seeds are common to all γ."
        ),
        sql=[sql],
        panels=panels,
        tables=["blocks", "evaluations", "trials"],
        findings=findings,
    )


def changes_of(rows: Rows) -> Changes:
    """Return part → layer → γ → ln of the ratio, for each of `PARTS` and `lambda_max` (cross-entropy's, by layer)."""
    training, plain = (readings(rows, loss, "trace") for loss in ("training", "cross_entropy"))
    tops = readings(rows, "cross_entropy", "lambda_max")
    scale: dict[str, dict[float, Ratio]] = defaultdict(dict)
    for (layer, gamma), held in training.items():
        same = plain.get((layer, gamma), {})
        ratios = [value - same[key] for key, value in held.items() if key in same]
        if ratios and gamma:
            scale[layer][gamma] = Ratio.of(ratios)
    return {
        "total": against_zero(training),
        "scale": scale,
        "network": against_zero(plain),
        "lambda_max": against_zero({key: held for key, held in tops.items() if key[0] != WHOLE}),
    }


def readings(rows: Rows, loss: str, column: str) -> Readings:
    """Return ln of a column of one loss, for each layer and for the sum over layers. Only positive values are used."""
    # The trace of the whole Hessian is the sum of its diagonal blocks' traces.
    sums: dict[tuple[str, float, int, str], float] = defaultdict(float)
    for row in rows:
        value = float_of(row, column)
        if row["loss"] == loss and math.isfinite(value):
            key = float_of(row, "gamma"), int_of(row, "seed"), text_of(row, "trial")
            sums[text_of(row, "block"), *key] = value
            sums[WHOLE, *key] += value
    by_layer: dict[tuple[str, float], dict[tuple[int, str], float]] = defaultdict(dict)
    for (layer, gamma, seed, trial), value in sums.items():
        if value > 0:
            by_layer[layer, gamma][seed, trial] = math.log(value)
    return by_layer


def against_zero(by_layer: Readings) -> dict[str, dict[float, Ratio]]:
    """Return each layer's mean at γ minus its mean at γ = 0; paired by seed if both have the same distinct seeds."""
    means: dict[str, dict[float, Ratio]] = defaultdict(dict)
    for (layer, gamma), held in by_layer.items():
        base = by_layer.get((layer, 0.0), {})
        mine, zero = ({seed: value for (seed, _), value in reading.items()} for reading in (held, base))
        if not zero or gamma == 0:
            continue
        paired = mine.keys() == zero.keys() and len(held) == len(mine) == len(base)
        differences = [mine[seed] - zero[seed] for seed in mine] if paired else []
        means[layer][gamma] = Ratio.of(differences) if paired else Ratio.of([*held.values()], [*base.values()])
    return means


def panels_of(name: str, changes: Changes, rows: Rows) -> list[Panel]:
    """Return a network's panels, all on one colour scale."""
    # Vega draws the first name at the top, so the layers are reversed: the input is at the bottom.
    layers = [WHOLE, *reversed(dict.fromkeys(text_of(row, "block") for row in rows))]
    gammas = sorted({float_of(row, "gamma") for row in rows} - {0.0})
    values = [mean.value for part in changes.values() for held in part.values() for mean in held.values()]
    if not values:
        return []
    largest = max(map(abs, values))
    scale = shade("ratio", -largest, largest, signed=True)
    headings = {**PARTS, "lambda_max": "λ_max of cross-entropy’s H within the layer"}
    return [
        Panel(
            f"{name}: {words}", [mark("rect", cells(changes[part]), color=scale)],
            names("gamma", "γ", map(number, gammas)), names("layer", "layer", layers),
        )
        for part, words in headings.items()
    ]  # fmt: skip


def cells(means: Mapping[str, Mapping[float, Ratio]]) -> list[Json]:
    """Return the cells of a heat map: ln ratio by layer and γ."""
    return [
        {"layer": layer, "gamma": number(gamma), "ratio": mean.value,
         "says": f"{layer}, γ = {number(gamma)}\n{factor(mean)}"}
        for layer, held in means.items()
        for gamma, mean in held.items()
    ]  # fmt: skip


def factor(mean: Ratio) -> str:
    """Return a mean logarithm as a factor with its 95 % interval, e.g. `× 0.31 (95 % 0.28 … 0.35)`."""
    limits = mean.limits
    shown = f"× {math.exp(mean.value):.3g}"
    return shown if limits is None else f"{shown} (95 % {math.exp(limits[0]):.3g} … {math.exp(limits[1]):.3g})"


def finding(architecture: str, family: str, changes: Changes) -> str:
    """Return a sentence on the change at the largest γ: the loss's share, the network's share, and the layers."""
    total = changes["total"].get(WHOLE, {})
    if not total:
        return f"γ of {family} and Tr(H) by layer on {architecture}: no trace above 0 to compare."
    gamma = max(total)
    words = [f"{name} {factor(mean)}" for part, name in (("scale", "the loss’s scale"), ("network", "the network"))
             if (mean := changes[part].get(WHOLE, {}).get(gamma)) is not None]  # fmt: skip
    layers = {layer: held[gamma] for layer, held in changes["network"].items() if layer != WHOLE and gamma in held}
    least, most = (choose(layers, key=lambda layer: layers[layer].value) for choose in (min, max))
    return (
        f"γ = {number(gamma)} of {family} changes the training loss’s Tr(H) on {architecture} by "
        f"{factor(total[gamma])}: {', '.join(words)}. Of cross-entropy’s, layer {least} changes by "
        f"{factor(layers[least])}, layer {most} by {factor(layers[most])}."
    )
