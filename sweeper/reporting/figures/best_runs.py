"""Reliability (before and after temperature scaling) and spectra of the best run and the best cross-entropy run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.core.cells import Row, Rows, float_of, int_of, text_of
from sweeper.core.labels import STATUS_WORDS, plural
from sweeper.core.statistics.basics import spread
from sweeper.reporting.figures.base import (
    FIGURES,
    Figure,
    Json,
    Panel,
    bars_to,
    colour,
    diagonal,
    fields,
    mark,
    paint,
    points,
    quantity,
    rings,
)
from sweeper.reporting.figures.configurations import HESSIANS
from sweeper.results import Results
from sweeper.results.leaderboard import Leaderboard, leaderboard
from sweeper.results.queries import literal
from trainables.metrics import evaluate_probabilities, reliability_bins, softmax64
from trainables.metrics.base import top_confidence
from trainables.metrics.isotonic import consistency_band, consistency_bars, decomposition, isotonic_levels


@FIGURES.add("reliability", place=70, absent="Reliability diagrams: no trial has been evaluated on test data.")
def draw_reliability(results: Results) -> Figure | None:
    """Return the diagrams of the best and the best cross-entropy configuration; None without test evaluations."""
    drawings = [diagrams(results, row, role) for role, row in chosen(leaderboard(results))]
    panels = [panel for drawn, _ in drawings for panel in drawn]
    queries = [query for _, asked in drawings for query in asked]
    if not panels:
        return None
    return Figure(
        title="Reliability diagrams",
        caption=(
            "Accuracy against confidence on test data; below the diagonal a network is over-confident. Line: isotonic "
            "regression, without bins (CORP, Dimitriadis et al. 2021); band: where it lies in 90 % of draws if every "
            "confidence is right. Circles: equal-width bins; shaded: the share of samples in each, "
            "and their number. Without stored predictions, a line joins the bins; bars hold 95 % of a bin's "
            "accuracies if its confidence is right (Bröcker & Smith 2007)."
        ),
        sql=queries,
        tables=["reliability", "predictions", "evaluations"],
        panels=panels,
    )


def diagrams(results: Results, row: Row, role: str) -> tuple[list[Panel], list[str]]:
    """Return a configuration's diagrams before and after temperature scaling, and their queries; empty without bins."""
    scaled = "posthoc_temperature_temperature" in results.columns("evaluations")
    before_sql, stored_sql = bins_sql(row), predictions_sql(row, scaled)
    before = results.rows(before_sql)
    if not sum(int_of(line, "n") for line in before):  # no test split, or an evaluation without bins
        return [], []
    board, stored = leaderboard(results), stored_predictions(results, stored_sql, text_of(row, "trial"))
    replicates = plural(int_of(row, "replicates"), "replicate")
    remarks = [
        f"{board.describe(row)}, {STATUS_WORDS[text_of(row, 'status')]}, epoch {row['epochs']}.",
        f"ECE {board.value(row, 'test_ece')}, {replicates} pooled in the diagram.",
    ]
    curve = (
        None if stored is None else isotonic(*top_confidence(softmax64(stored.logits), stored.targets), stored.sample)
    )
    panels = [diagram(f"{role}, {row['trial']}: before", before, remarks, curve)]
    if stored is not None and stored.scaled:
        heading = f"{role}, {row['trial']}: after temperature scaling"
        panels.append(diagram(heading, *after_temperature(stored, len(before))))
    return panels, [before_sql, *([] if stored is None else [stored_sql])]


def chosen(board: Leaderboard) -> list[tuple[str, Row]]:
    """Return the best configuration and, if it is a different one, the best trained with cross-entropy."""
    if board.best is None:
        return []
    # A finished configuration if there is any, otherwise the best stopped one.
    plain = [row for row in (*board.finished, *board.rows) if row["loss"] == "cross_entropy"]
    picked = [("Best", board.best)]
    if plain and plain[0]["trial"] != board.best["trial"]:
        picked.append(("Best with cross-entropy", plain[0]))
    return picked


def bins_sql(row: Row) -> str:
    """Return the query of a configuration's test bins, pooled over replicates."""
    return (
        "SELECT bin, any_value(lower) AS lower, any_value(upper) AS upper, sum(n)::BIGINT AS n,\n"
        "  sum(n * confidence) / nullif(sum(n), 0) AS confidence, sum(n * accuracy) / nullif(sum(n), 0) AS accuracy,\n"
        "  avg(n) AS samples\n"
        f"FROM reliability WHERE trial = {literal(row['trial'])} AND epoch = {literal(row['epochs'])}\n"
        "  AND split = 'test' GROUP BY bin ORDER BY bin"
    )


def predictions_sql(row: Row, scaled: bool) -> str:
    """Return the query of a configuration's test logits, with each replicate's temperature if `scaled`."""
    temperature = "posthoc_temperature_temperature" if scaled else "NULL::DOUBLE"
    return (
        f"SELECT replicate, sample, {temperature} AS temperature, target, logits\n"
        "FROM predictions JOIN evaluations USING (trial, replicate, epoch, split)\n"
        f"WHERE trial = {literal(row['trial'])} AND epoch = {literal(row['epochs'])} AND split = 'test'\n"
        "ORDER BY replicate, sample"
    )


@dataclass(frozen=True)
class Stored:
    """The concatenated test predictions of all replicates of a configuration.

    Attributes:
        logits: float64, [N, K].
        targets, replicate, sample: integers, [N].
        temperature: temperature of each prediction's replicate, [N]; NaN if none was fitted.
    """

    logits: NDArray[np.float64]
    targets: NDArray[np.int64]
    replicate: NDArray[np.int64]
    sample: NDArray[np.int64]
    temperature: NDArray[np.float64]

    @property
    def scaled(self) -> bool:
        """Whether every replicate has a temperature."""
        return not bool(np.isnan(self.temperature).any())


def stored_predictions(results: Results, sql: str, trial: str) -> Stored | None:
    """Return a configuration's predictions; None if none are stored."""
    table = results.sql(sql, trials=[trial])
    if not table.num_rows:
        return None
    targets, replicate, sample, temperature = (
        table[name].to_numpy() for name in ("target", "replicate", "sample", "temperature")
    )
    # float64 is needed, because a softmax of float32 logits loses the small probabilities on which NLL depends.
    logits = np.stack(table["logits"].to_numpy()).astype(np.float64)
    return Stored(logits, targets, replicate, sample, temperature.astype(np.float64))


#: An isotonic reliability curve over its band, and the Brier score's parts in a sentence.
Isotonic = tuple[list[Json], str]


def isotonic(confidence: NDArray[np.float64], correct: NDArray[np.float64], sample: NDArray[np.int64]) -> Isotonic:
    """Return the isotonic curve and consistency band of a probability [N] of an event, and whether it happened [N]."""
    # Replicates share the test samples, so each sample has one random number for all replicates. With independent
    # numbers, the pooled predictions would seem more precise than they are.
    levels, band = isotonic_levels(confidence, correct), consistency_band(confidence, sample)
    around = [
        {"x": float(x), "y": float(low), "upper": float(high)}
        for x, low, high in zip(band.confidence, band.lower, band.upper, strict=True)
    ]
    curve = [{"x": float(x), "y": float(y)} for x, y in zip(*levels, strict=True)]
    said = fields(x="confidence", y="accuracy")
    parts = decomposition(confidence, correct)
    return [
        mark("area", around, look={"opacity": 0.18}, y2={"field": "upper"}),
        mark("line", curve, look={"strokeWidth": 2, "point": "transparent"}, tooltip=said),
    ], (
        f"Brier score of the confidence {parts.score:.3g} = miscalibration {parts.miscalibration:.2g} − "
        f"discrimination {parts.discrimination:.2g} + uncertainty {parts.uncertainty:.2g}."
    )


def after_temperature(stored: Stored, bins: int) -> tuple[Rows, list[str], Isotonic]:
    """Return the pooled test bins of softmax(logits / T), remarks with T and ECE, and the curve."""
    probabilities = softmax64(stored.logits / stored.temperature[:, None])
    # T and ECE are computed per replicate, because an ECE of the pooled predictions would average errors of opposite
    # sign.
    of = {int(r): stored.replicate == r for r in np.unique(stored.replicate)}
    parts = [(probabilities[rows], stored.targets[rows]) for rows in of.values()]
    ece = spread([evaluate_probabilities(*part, bins)["ece"] for part in parts])
    values = ", ".join(f"{float(stored.temperature[rows][0]):.3g}" for rows in of.values())
    remarks = [
        f"T = {values}, fitted on validation data, one per replicate.",
        f"ECE {ece.text()}, {plural(ece.n, 'replicate')} pooled in the diagram.",
    ]
    judged = top_confidence(probabilities, stored.targets)
    return reliability_bins(probabilities, stored.targets, bins), remarks, isotonic(*judged, stored.sample)


def diagram(
    heading: str,
    bins: Rows,
    remarks: Sequence[str],
    curve: Isotonic | None = None,
    axes: tuple[str, str] = ("confidence", "accuracy"),
) -> Panel:
    """Return a reliability diagram: curve with band, accuracy by bin, diagonal, and bars for the shares of samples.

    Without a curve, which needs stored predictions, a line joins the bins over their consistency bars. Replicates share
    their samples, so the bars are those of one replicate's `samples`.
    """
    total = sum(int_of(row, "n") for row in bins)
    shares = [
        {"x": row["lower"], "upper": row["upper"], "y": int_of(row, "n") / total, "n": f"{row['n']:,}",
         "says": f"{int_of(row, 'n') / total:.1%} of the samples"}
        for row in bins if row["n"]
    ]  # fmt: skip
    means = [
        {"x": row["confidence"], "y": row["accuracy"],
         "says": f"({row['lower']:.2f}, {row['upper']:.2f}], n = {row['n']}\n"
                 f"confidence {row['confidence']:.3f}\naccuracy {row['accuracy']:.3f}"}
        for row in bins if row["n"]
    ]  # fmt: skip
    small: Json = {"align": "left", "baseline": "bottom", "fontSize": 9, "dx": 1}
    layers = [
        mark("rect", shares, x2={"field": "upper"}, y2={"datum": 0}, color=paint("shade")),
        mark("text", shares, look=small, text={"field": "n"}), diagonal(),
    ]  # fmt: skip
    if curve is None:
        filled = [row for row in bins if row["n"]]
        confidence, samples = ([float_of(row, name) for row in filled] for name in ("confidence", "samples"))
        low, high = consistency_bars(confidence, samples)
        bars = [{**mean, "low": a, "high": b} for mean, a, b in zip(means, low.tolist(), high.tolist(), strict=True)]
        layers += [bars_to(bars, color=paint("soft")), mark("line", means), points(means)]
    else:
        layers += [*curve[0], rings(means, "second", size=36)]
    x, y = (quantity(at, words, limits=(0, 1.03), step=0.2) for at, words in zip("xy", axes, strict=True))
    return Panel(
        heading, layers, x, y, [*remarks, *([] if curve is None else [curve[1]]), f"n = {total:,} predictions."]
    )


#: Densities below this share of a panel's highest density are cut off. The Gaussians' tails carry no information there.
LOWEST = 1e-8

#: Eigenvalues within this share of a spectrum's range count as near 0. It is two widths of the drawn Gaussians.
BULK = 0.02


@FIGURES.add(
    "spectral_density",
    place=60,
    absent="Spectral densities: none was measured; set evaluation.curvature.spectrum: true.",
)
def draw_densities(results: Results) -> Figure | None:
    """Return the densities of the best and the best cross-entropy configuration; None if neither has any."""
    board = leaderboard(results)
    queries: list[str] = []
    densities, names = dict[str, Rows](), dict[str, str]()
    for role, row in chosen(board):
        sql = density_sql(row)
        rows = results.rows(sql)
        if rows:
            queries.append(sql)
            label = f"{role}, {row['trial']}: {board.describe(row)}, {STATUS_WORDS[text_of(row, 'status')]}"
            densities[label], names[label] = rows, f"{role}, {row['trial']}"
    panels = [panel for loss in HESSIANS if (panel := density_panel(loss, densities, names))]
    if not panels:
        return None
    sizes = sorted({int_of(row, "samples") for rows in densities.values() for row in rows})
    return Figure(
        title="Spectral density of the Hessian",
        caption=(
            "Estimated density of the eigenvalues of the validation Hessian at the last evaluation, one line per "
            f"replicate, n = {' or '.join(map(str, sizes))} validation samples. Stochastic Lanczos quadrature, each "
            f"node drawn as a Gaussian 1 % of the range wide; cut off below {LOWEST:g} of the peak."
        ),
        sql=queries,
        tables=["spectra"],
        panels=panels,
        legend=list(densities),
    )


def density_sql(row: Row) -> str:
    """Return the query of a configuration's densities at its last evaluation."""
    return (
        "SELECT loss, replicate, samples, eigenvalue, density, weight\n"
        f"FROM spectra WHERE trial = {literal(row['trial'])} AND epoch = {literal(row['epochs'])}\n"
        "ORDER BY loss, replicate, eigenvalue"
    )


def density_panel(loss: str, densities: Mapping[str, Rows], names: Mapping[str, str]) -> Panel | None:
    """Return the panel of one Hessian's densities, one line per replicate; None if it was not measured for that loss.

    Args:
        loss: the loss of the Hessian.
        densities: label of a configuration → rows of its densities.
        names: label of a configuration → its short name.
    """
    measured = {label: [row for row in rows if row["loss"] == loss] for label, rows in densities.items()}
    highest = max((float_of(row, "density") for rows in measured.values() for row in rows), default=0.0)
    if highest <= 0:
        return None
    floor = LOWEST * highest  # the axis is logarithmic, and the tails would stretch it to 1e-300
    lines: list[Json] = []
    remarks: list[str] = []
    for label, rows in measured.items():
        replicates = sorted({int_of(row, "replicate") for row in rows})
        if replicates:
            remarks.append(f"{names[label]}: {ends_of(rows, len(replicates))}")
        lines += [
            {"eigenvalue": row["eigenvalue"], "density": max(float_of(row, "density"), floor), "run": label,
             "replicate": row["replicate"]}
            for row in rows
        ]  # fmt: skip
    said = fields(replicate="replicate", eigenvalue="λ", density="density")
    look: Json = {"strokeWidth": 1.5, "opacity": 0.8, "point": "transparent"}
    by = colour("run", [*densities])
    drawn = mark("line", lines, look=look, color=by, detail={"field": "replicate"}, tooltip=said)
    height = quantity("density", "density", log=True, limits=(floor, highest * 10**0.4))
    return Panel(HESSIANS[loss], [drawn], quantity("eigenvalue", "eigenvalue λ"), height, remarks)


def ends_of(rows: Rows, replicates: int) -> str:
    """Return a sentence on a spectrum's ends and its share of eigenvalues near 0, over all replicates."""
    # Only quadrature nodes have a weight. The other rows are points of the drawn curve, which extends beyond the
    # spectrum.
    weighed = [(float_of(row, "eigenvalue"), float_of(row, "weight")) for row in rows]
    nodes = [(eigenvalue, weight) for eigenvalue, weight in weighed if weight > 0]
    low, high = min(eigenvalue for eigenvalue, _ in nodes), max(eigenvalue for eigenvalue, _ in nodes)
    near = sum(weight for eigenvalue, weight in nodes if abs(eigenvalue) <= BULK * (high - low)) / replicates
    return (
        f"λ from {low:.3g} to {high:.3g}, {near:.1%} of the eigenvalues within {BULK:.0%} of that range around 0 "
        f"({plural(replicates, 'replicate')})."
    ).replace("-", "−")
