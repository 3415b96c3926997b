"""Pictures of mukhoti's Figs. 1, 4, 5 and 8, posterior's Figs. 5 and 6 and the trajectories of sweeps.

Fig. 1: reliability on training data by epoch. Fig. 5: BLEU and calibration error against temperature. Fig. 8:
confidence in mistakes, and decision boundaries of linear networks. A sweep without the rows has no such picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from search_spaces.papers.curvature_bounds import curvature_bounds
from search_spaces.papers.prediction_pictures import data_of, networks, picture, prediction_pictures
from search_spaces.papers.translation.tokens import TEMPERATURES, column_at
from sweeper.core.cells import Row, float_of, float_or_none, grouped, int_of, measured_or_none, measured_values, text_of
from sweeper.reporting.figures.base import Figure, Json, Panel, colour, curves, diagonal, mark, paint, points, quantity
from sweeper.results import Results
from trainables.metrics.base import softmax64
from trainables.training import prediction

#: Data set of Fig. 8, with two inputs and two classes.
LINEAR = "mukhoti_linear"

#: Bins of Fig. 8a's histogram of confidences, from one half to 1.
WRONG_BINS = 10

#: Most test points drawn in Fig. 8b and c.
MOST_POINTS = 400

Line = Sequence[tuple[float, float | None]]


def trained_pictures(results: Results) -> list[Figure]:
    """Return the pictures for which a sweep's tables have the rows. Raises QueryError."""
    figures = [
        *_reliability_by_epoch(results),
        *temperature_curves(results),
        *gradient_norms(results),
        *errors_by_gamma(results),
        *curvature_bounds(results),
        *prediction_pictures(results),
    ]
    if results.specification.get("dataset", {}).get("name") == LINEAR:
        figures += _linear_networks(results)
    return figures


def trajectories(results: Results) -> list[Figure]:
    """Return a figure for each trajectory column of a sweep, with a line for each loss. Raises QueryError."""
    trajectory = results.specification.get("evaluation", {}).get("trajectory")
    if not trajectory:
        return []
    # Columns depend on the search space; a sweep without some of them still has the other figures.
    there = set(results.columns("epochs"))
    wanted = [
        f"{split}_{name}"
        for split in trajectory["splits"]
        for name in (*prediction.TRAJECTORY_METRICS, *prediction.TRAJECTORY_NORMS)
    ]
    columns = [name for name in (*wanted, prediction.WEIGHT_NORM) if name in there]
    means = ", ".join(f"avg({name}) AS {name}" for name in columns)
    rows = results.rows(
        f"SELECT {_loss_sql(results)} AS loss, epoch, {means} "
        "FROM epochs JOIN trials USING (trial, replicate) WHERE status = 'completed' GROUP BY ALL ORDER BY loss, epoch"
    )
    by_loss = grouped(rows, lambda row: text_of(row, "loss"))
    figures = []
    for column in columns:
        lines = {
            loss: [(int_of(row, "epoch"), measured_or_none(row, column)) for row in held]
            for loss, held in by_loss.items()
        }
        figures += _curves(results.name, column, lines, "epoch")
    return figures


def temperature_curves(results: Results) -> list[Figure]:
    """Return Fig. 5, test BLEU and validation ECE against temperature; only for translation."""
    if "best_bleu" not in results.columns("evaluations"):
        return []
    curves = []
    for metric, split in (("bleu", "test"), ("ece", "val")):
        columns = {at: column_at(metric, at) for at in TEMPERATURES}
        means = ", ".join(f"avg({name}) AS {name}" for name in columns.values())
        rows = results.rows(
            f"SELECT config_loss_name AS loss, {means} FROM final WHERE status = 'completed' AND split = '{split}' "
            "GROUP BY ALL ORDER BY loss"
        )
        lines = {
            text_of(row, "loss"): [(at, float_or_none(row, column)) for at, column in columns.items()] for row in rows
        }
        curves += _curves(results.name, f"{split} {metric}", lines, "temperature")
    return curves


def gradient_norms(results: Results) -> list[Figure]:
    """Return mukhoti Fig. 4b–d: histograms of training samples' gradient norms, a panel for each counted epoch."""
    counts = prediction.GRADIENT_COUNTS
    if counts not in results.columns("epochs"):
        return []
    counted = results.sql(
        f"SELECT {_loss_sql(results)} AS loss, epoch, {counts} AS counts FROM epochs JOIN trials "
        f"USING (trial, replicate) WHERE status = 'completed' AND {counts} IS NOT NULL ORDER BY epoch, loss"
    ).to_pylist()
    # Counts add up over replicates before they become shares.
    shares: dict[int, dict[str, NDArray[np.float64]]] = {}
    for row in counted:
        of_epoch = shares.setdefault(row["epoch"], {})
        of_epoch[row["loss"]] = of_epoch.get(row["loss"], 0.0) + np.array(row["counts"], float)
    # The outer bins are open: they are drawn at their inner edge, the others at their geometric middle.
    inner = prediction.GRADIENT_NORM_EDGES[1:-1]
    middles = [float(inner[0]), *np.sqrt(inner[:-1] * inner[1:]).tolist(), float(inner[-1])]
    losses = sorted({row["loss"] for row in counted})
    axes = quantity("x", "norm of the last layer's gradient", log=True), quantity("y", "share of samples")
    panels = []
    for epoch, of_epoch in shares.items():
        lines = {
            loss: [*zip(middles, (held / max(1.0, held.sum())).tolist(), strict=True)]
            for loss, held in of_epoch.items()
        }
        panels.append(Panel(f"after epoch {epoch}", curves(lines, losses), *axes))
    words = "training samples by the norm of the last layer's gradient"
    return picture(results, "Gradient norms", words, panels, losses)


#: ECE without and with the focal map.
MAPPED = {"raw": "ece", "Ψ": "posthoc_focal_map_ece"}


def errors_by_gamma(results: Results) -> list[Figure]:
    """Return posterior Figs. 5 and 6: box plots of test ECE by γ, with and without the focal map, for each network.

    A box spans the quartiles with a bar at the median, and its line reaches the extremes. Networks with label smoothing
    have their own panels.
    """
    if results.specification.get("header", {}).get("paper") != "posterior":
        return []
    there = set(results.columns("final"))
    smoothed = "coalesce(config_loss_smoothing, 0) > 0" if "config_loss_smoothing" in there else "false"
    rows = results.rows(
        f"SELECT config_architecture_name || CASE WHEN config_loss_name = 'label_smoothing' OR {smoothed} THEN ', LS' "
        "ELSE '' END AS network, coalesce(config_loss_gamma, 0) AS gamma, * FROM final "
        "WHERE status = 'completed' AND split = 'test' ORDER BY network, gamma"
    )
    panels = []
    for network, of_it in grouped(rows, lambda row: text_of(row, "network")).items():
        boxes: list[Json] = [
            {"gamma": gamma + 0.24 * (at - 0.5), "ece": error, "by": label}
            for at, (label, column) in enumerate(MAPPED.items())
            for gamma, held in grouped(of_it, lambda row: float_of(row, "gamma")).items()
            for error in measured_values(held, column)
        ]
        # Boxes of one γ stand side by side, 0.24 apart; the paper's γ are 1 apart.
        drawn = mark("boxplot", boxes, look={"extent": "min-max", "size": 9}, color=colour("by", [*MAPPED]))
        panels.append(Panel(network, [drawn], quantity("gamma", "γ"), quantity("ece", "test ECE")))
    words = "ECE of the replicates by γ, raw and after the focal map: median, quartiles and extremes"
    return picture(results, "ECE by γ", words, panels, [*MAPPED])


def _loss_sql(results: Results) -> str:
    """Return the SQL expression for a trial's loss with its γ."""
    gamma = "config_loss_gamma" if "config_loss_gamma" in results.columns("trials") else "NULL"
    return f"config_loss_name || coalesce(' γ ' || format('{{:g}}', {gamma}::DOUBLE), '')"


def _curves(sweep: str, column: str, lines: Mapping[str, Line], against: str) -> list[Figure]:
    """Return a figure with a line for each loss that has values, as a list; an empty list if none has."""
    legend = [name for name, line in lines.items() if any(y is not None for _, y in line)]
    drawn = curves({name: lines[name] for name in legend}, legend)
    panel = Panel("", drawn, quantity("x", against), quantity("y", column))
    figure = Figure(column, f"{column}, {sweep}", [], [panel], [], legend=legend)
    return [figure] if legend else []


def _reliability_by_epoch(results: Results) -> list[Figure]:
    """Return Fig. 1: training-data reliability at each evaluation of the first finished cross-entropy network."""
    rows = results.rows(
        "SELECT trial, epoch, bin, sum(n)::BIGINT AS n, sum(n * accuracy) / nullif(sum(n), 0) AS accuracy "
        "FROM reliability WHERE split = 'train' AND trial = (SELECT min(trial) FROM trials "
        "WHERE config_loss_name = 'cross_entropy' AND status = 'completed') GROUP BY ALL ORDER BY epoch, bin"
    )
    panels = [_diagram(held, f"epoch {epoch}") for epoch, held in grouped(rows, itemgetter("epoch")).items()]
    if len(panels) < 2:
        return []
    said = f"{results.name}, {rows[0]['trial']}: accuracy by confidence, training data, cross-entropy"
    return [Figure("Reliability by epoch", said, [], panels, [], legend=SHOWN)]


SHOWN = ("accuracy", "share of samples")


def _diagram(rows: Sequence[Row], title: str) -> Panel:
    """Return a reliability diagram with the share of samples in each bin."""
    total = max(1, sum(int_of(row, "n") for row in rows))
    bins: list[Json] = [
        {"x": at / len(rows), "end": (at + 1) / len(rows), "y": float_or_none(row, "accuracy") or 0.0,
         "by": "accuracy"}
        for at, row in enumerate(rows)
    ]  # fmt: skip
    shares = [((at + 0.5) / len(rows), int_of(row, "n") / total) for at, row in enumerate(rows)]
    by = colour("by", SHOWN)
    accuracy = mark("rect", bins, x2={"field": "end"}, y2={"datum": 0}, color=by)
    x, y = (
        quantity(at, words, limits=(0, 1), step=0.2) for at, words in (("x", "confidence"), ("y", "accuracy, share"))
    )
    heading = f"{title}, up to {max(share for _, share in shares):.0%} a bin"
    return Panel(heading, [accuracy, diagonal(), *curves({SHOWN[1]: shares}, SHOWN)], x, y)


def _linear_networks(results: Results) -> list[Figure]:
    """Return Fig. 8: a histogram of confidences in mistakes, and decision boundaries."""
    logits: dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
    for row, member in networks(results):
        logits.setdefault(text_of(row, "config_loss_name"), (member.logits["test"], member.targets["test"]))
    if not logits:
        return []
    confidences = {
        loss: softmax64(values)[values.argmax(1) != targets].max(1) for loss, (values, targets) in logits.items()
    }
    figures = [_histogram(results.name, confidences)]
    test = data_of(results).test
    inputs, targets = test.inputs.double().flatten(1).numpy(), test.targets.numpy()
    panels, directions = [], []
    for loss, (values, held) in logits.items():
        if len(held) != len(inputs) or not np.array_equal(held, targets):
            return figures  # the data on this machine are not those that the sweep was trained on
        # Weights are not stored: the logits of a linear network without bias determine them.
        solved, *_ = np.linalg.lstsq(inputs, values[:, 1] - values[:, 0], rcond=None)
        weights = np.asarray(solved, np.float64)
        directions.append(weights / np.linalg.norm(weights))
        panels.append(_boundary(inputs, targets, weights, loss, [*logits]))
    first, *others = directions
    # Rounding can bring a cosine above 1.
    angles = [f"{np.degrees(np.arccos(np.clip(first @ other, -1, 1))):.2f}°" for other in others]
    words = f"test points by class and decision boundary; boundaries {', '.join(angles)} apart" if angles else ""
    return [*figures, Figure("Decision boundaries", f"{results.name}: {words}", [], panels, [])]


def _histogram(sweep: str, confidences: Mapping[str, NDArray[np.float64]]) -> Figure:
    """Return the shares of mistakes by confidence, with the losses' bars side by side."""
    edges = np.linspace(0.5, 1, WRONG_BINS + 1)
    # A tenth of each bin stays empty, so that neighbouring bins can be told apart.
    wide = 0.9 * (edges[1] - edges[0]) / len(confidences)
    bars: list[Json] = []
    legend = []
    for at, (loss, values) in enumerate(confidences.items()):
        counts, _ = np.histogram(values, edges)
        above = float((values > 0.9).mean()) if len(values) else 0.0
        legend.append(f"{loss}, n = {len(values)}, above .9: {above:.0%}")
        for left, count in zip((edges[:-1] + wide * (at + 0.1)).tolist(), counts.tolist(), strict=True):
            bars.append({"x": left, "end": left + wide, "y": count / max(1, len(values)), "by": legend[-1]})
    drawn = mark("rect", bars, x2={"field": "end"}, y2={"datum": 0}, color=colour("by", legend))
    x, y = quantity("x", "confidence", limits=(0.5, 1)), quantity("y", "share of misclassified test points", zero=True)
    panel = Panel("", [drawn], x, y)
    said = f"{sweep}: share of misclassified test points by confidence"
    return Figure("Confidence in mistakes", said, [], [panel], [], legend=legend)


def _boundary(
    inputs: NDArray[np.float64],
    targets: NDArray[np.int64],
    weights: NDArray[np.float64],
    loss: str,
    losses: Sequence[str],
) -> Panel:
    """Return points of both classes, and the decision boundary of a network without bias."""
    reach = float(np.abs(inputs).max())
    drawn = [*zip(inputs[:MOST_POINTS].tolist(), targets[:MOST_POINTS].tolist(), strict=True)]
    classes = [
        points([{"x": x, "y": y} for (x, y), of in drawn if of == target], size=12, color=paint(shade))
        for target, shade in enumerate(("axis", "ink"))
    ]
    x, y = (np.array([-weights[1], weights[0]]) / np.linalg.norm(weights) * reach).tolist()
    line = curves({loss: [(-x, -y), (x, y)]}, losses)
    first, second = (
        quantity(at, f"{words} input", limits=(-reach, reach)) for at, words in (("x", "first"), ("y", "second"))
    )
    return Panel(f"{loss}: |w| {np.linalg.norm(weights):.2f}", [*classes, *line], first, second)
