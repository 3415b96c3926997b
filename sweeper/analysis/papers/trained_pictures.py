"""Pictures of mukhoti's Figs. 1, 5 and 8, each from one sweep's tables: SVG in HTML, without a script.

Fig. 1: reliability on training data epoch by epoch; Fig. 5: BLEU and calibration error against temperature; Fig. 8:
confidence in mistakes, and the decision boundaries of linear networks. A sweep without their rows has no picture.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.results import Results
from sweeper.text.cells import Row, float_or_none, int_of, text_of
from trainables.metrics.bleu import TEMPERATURES, column_at
from trainables.metrics.probabilities import softmax64
from trainables.training.trajectory import TRAJECTORY_METRICS, TRAJECTORY_NORMS, WEIGHT_NORM

SIZE, MARGIN = 150, 22

LINEAR = "mukhoti_linear"
"""The data set of Fig. 8: two inputs, two classes."""

WRONG_BINS = 10
"""Bins of Fig. 8a's histogram of confidences, from one half to 1."""

MOST_POINTS = 400
"""Test points drawn in Fig. 8b and c."""


def trained_pictures(results: Results) -> list[str]:
    """Return the pictures that a sweep's tables hold, as HTML figures. Raises QueryError."""
    found = [*_reliability_by_epoch(results), *map(drawn, temperature_curves(results))]
    if results.specification.get("dataset", {}).get("name") == LINEAR:
        found += _linear_networks(results)
    return found


def temperature_curves(results: Results) -> list[Curves]:
    """Return BLEU on test data and ECE on validation data against temperature (Fig. 5); only translations have them."""
    if "best_bleu" not in results.columns("evaluations"):
        return []
    curves = []
    for metric, split in (("bleu", "test"), ("ece", "val")):
        columns = [column_at(metric, each) for each in TEMPERATURES]
        means = ", ".join(f"avg({name}) AS {name}" for name in columns)
        rows = results.rows(
            f"SELECT config_loss_name AS loss, {means} FROM final WHERE status = 'completed' AND split = '{split}' "
            "GROUP BY ALL ORDER BY loss"
        )
        lines = {text_of(row, "loss"): _line(row, columns) for row in rows}
        held = {name: line for name, line in lines.items() if line}
        if held:
            curves.append(Curves(results.name, f"{split} {metric}", held, "temperature"))
    return curves


def _line(row: Row, columns: Sequence[str]) -> list[tuple[float, float]]:
    values = [float_or_none(row, name) for name in columns]
    return [(at, value) for at, value in zip(TEMPERATURES, values, strict=True) if value is not None]


def _reliability_by_epoch(results: Results) -> Iterator[str]:
    """Yield Fig. 1: of the first finished cross-entropy network, a diagram of training data for each evaluation."""
    rows = results.rows(
        "SELECT trial, epoch, bin, sum(n)::BIGINT AS n, sum(n * accuracy) / nullif(sum(n), 0) AS accuracy "
        "FROM reliability WHERE split = 'train' AND trial = (SELECT min(trial) FROM trials "
        "WHERE config_loss_name = 'cross_entropy' AND status = 'completed') GROUP BY ALL ORDER BY epoch, bin"
    )
    epochs = list(dict.fromkeys(int_of(row, "epoch") for row in rows))
    if len(epochs) < 2:
        return
    panels = [_diagram([row for row in rows if row["epoch"] == epoch], f"epoch {epoch}") for epoch in epochs]
    words = "accuracy (bars) and share of samples (line below) by confidence, training data, cross-entropy"
    yield _figure("".join(panels), f"{results.name}, {rows[0]['trial']}: {words}")


def _diagram(rows: Sequence[Row], title: str) -> str:
    """Return one reliability diagram with the share of samples in each bin below it."""
    bins, total = len(rows), max(1, sum(int_of(row, "n") for row in rows))
    wide = SIZE / bins
    parts = [f"<path d='M0,{SIZE} L{SIZE},0' stroke='#9a9aa2' stroke-dasharray='3'/>"]
    for place, row in enumerate(rows):
        accuracy, share = float_or_none(row, "accuracy"), int_of(row, "n") / total
        left, inside = place * wide + 0.5, wide - 1
        if accuracy is not None:
            parts.append(_bar(left, SIZE, inside, SIZE * accuracy, COLOURS[0]))
        parts.append(_bar(left, SIZE + MARGIN + SIZE / 2, inside, SIZE / 2 * share, COLOURS[5]))
    most = max(int_of(row, "n") for row in rows) / total
    height = SIZE + MARGIN + SIZE // 2 + MARGIN
    label = f"<text x='0' y='{height - 4}'>{html.escape(title)}, up to {most:.0%} a bin</text>"
    return _svg(SIZE + 8, height, "".join(parts) + label)


def _linear_networks(results: Results) -> list[str]:
    """Return Fig. 8: a histogram of confidences in mistakes, and the decision boundaries."""
    logits = _test_logits(results)
    if not logits:
        return []
    confidences = {}
    for loss, (values, targets) in logits.items():
        probabilities = softmax64(values)
        wrong = probabilities.argmax(1) != targets
        confidences[loss] = probabilities.max(1)[wrong]
    found = [_histogram(results.name, confidences)]
    inputs, targets = _test_inputs(results)
    panels, directions = [], {}
    for place, (loss, (values, held)) in enumerate(logits.items()):
        if len(held) != len(inputs) or not np.array_equal(held, targets):
            return found  # other data lie here now than the sweep was trained on
        solved, *_ = np.linalg.lstsq(inputs, values[:, 1] - values[:, 0], rcond=None)
        weights = np.asarray(solved, np.float64)
        directions[loss] = weights
        panels.append(_boundary(inputs, targets, weights, f"{loss}: |w| {np.linalg.norm(weights):.2f}", COLOURS[place]))
    first, *others = directions.values()
    angles = [f"{np.degrees(np.arccos(np.clip(_cosine(first, other), -1, 1))):.2f}°" for other in others]
    words = f"test points by class and decision boundary; boundaries {', '.join(angles)} apart" if angles else ""
    return [*found, _figure("".join(panels), f"{results.name}: {words}")]


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def _test_logits(results: Results) -> dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Return by loss the last test logits [N, 2] and classes [N] of its first finished trial and replicate."""
    found = {}
    trials = results.rows(
        "SELECT config_loss_name AS loss, min(trial) AS trial FROM trials WHERE status = 'completed' "
        "GROUP BY loss ORDER BY loss"
    )
    for row in trials:
        table = results.sql(
            f"SELECT target, logits FROM predictions WHERE trial = '{row['trial']}' AND split = 'test' AND "
            f"replicate = 0 AND epoch = (SELECT max(epoch) FROM predictions WHERE trial = '{row['trial']}') "
            "ORDER BY sample"
        )
        if table.num_rows:
            logits = np.stack(table["logits"].to_numpy()).astype(np.float64)
            found[text_of(row, "loss")] = (logits, table["target"].to_numpy())
    return found


def _test_inputs(results: Results) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the test split's inputs [N, 2] and classes [N]: the data are drawn from their seed."""
    from trainables.datasets import load_dataset

    options = {key: value for key, value in results.specification["dataset"].items() if key != "name"}
    test = load_dataset(LINEAR, **options).test
    return test.inputs.double().flatten(1).numpy(), test.targets.numpy()


def _histogram(sweep: str, confidences: dict[str, NDArray[np.float64]]) -> str:
    edges = np.linspace(0.5, 1, WRONG_BINS + 1)
    wide, parts, keys = 2 * SIZE / WRONG_BINS, [], []
    for number, (loss, values) in enumerate(confidences.items()):
        counts, _ = np.histogram(values, edges)
        shares = counts / max(1, len(values))
        inside = (wide - 4) / len(confidences)
        for place, share in enumerate(shares):
            parts.append(_bar(place * wide + 2 + number * inside, SIZE, inside, SIZE * share, COLOURS[number]))
        above = float((values > 0.9).mean()) if len(values) else 0.0
        words = html.escape(f"{loss}, n = {len(values)}, above .9: {above:.0%}")
        keys.append(f"<span style='color:{COLOURS[number]}'>{words}</span>")
    ends = ((0, "start", ".5"), (2 * SIZE, "end", "confidence 1"))
    parts += [f"<text x='{x}' y='{SIZE + 14}' text-anchor='{anchor}'>{text}</text>" for x, anchor, text in ends]
    words = f"{html.escape(sweep)}: share of misclassified test points by confidence; {' '.join(keys)}"
    drawing = _svg(2 * SIZE + 4, SIZE + MARGIN, "".join(parts))
    return f"<figure>{drawing}<figcaption>{words}</figcaption></figure>"


def _boundary(
    inputs: NDArray[np.float64], targets: NDArray[np.int64], weights: NDArray[np.float64], title: str, colour: str
) -> str:
    """Return points of both classes, and the line on which a network without bias is undecided."""
    reach = float(np.abs(inputs).max())
    middle = SIZE

    def place(point: NDArray[np.float64]) -> tuple[float, float]:
        return middle + middle * point[0] / reach, middle - middle * point[1] / reach

    shades = ("#9a9aa2", "#1b1b1f")
    dots = []
    for point, target in zip(inputs[:MOST_POINTS], targets[:MOST_POINTS], strict=True):
        x, y = place(point)
        dots.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='1.6' fill='{shades[int(target)]}'/>")
    along = np.array([-weights[1], weights[0]]) / np.linalg.norm(weights) * reach
    (x1, y1), (x2, y2) = place(along), place(-along)
    line = f"<path d='M{x1:.1f},{y1:.1f} L{x2:.1f},{y2:.1f}' stroke='{colour}' stroke-width='2'/>"
    label = f"<text x='0' y='{2 * SIZE + 14}'>{html.escape(title)}</text>"
    return _svg(2 * SIZE, 2 * SIZE + MARGIN, "".join(dots) + line + label)


def _bar(left: float, bottom: float, width: float, height: float, colour: str) -> str:
    place = f"x='{left:.1f}' y='{bottom - height:.1f}' width='{width:.1f}' height='{height:.1f}'"
    return f"<rect {place} fill='{colour}'/>"


def _svg(width: int, height: int, inside: str) -> str:
    box = f"width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
    return f"<svg {box} font-size='11' role='img' style='margin-right:12px'>{inside}</svg>"


def _figure(inside: str, caption: str) -> str:
    return f"<figure>{inside}<figcaption>{html.escape(caption)}</figcaption></figure>"


WIDTH, HEIGHT, LEFT, BOTTOM = 340, 200, 46, 24

COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0a7ea4")


@dataclass(frozen=True)
class Curves:
    """One column against the epoch, or against what `axis` names.

    Attributes:
        sweep: where it comes from.
        column: of the table `epochs`.
        lines: loss → (epoch, mean over replicates).
        axis: what the values are drawn against.
    """

    sweep: str
    column: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    axis: str = "epoch"


def trajectories(results: Results) -> list[Curves]:
    """Return the trajectory columns of a sweep, a line for each loss; nothing where it has none. Raises QueryError."""
    trajectory = results.specification.get("evaluation", {}).get("trajectory")
    if not trajectory:
        return []
    there = set(results.columns("epochs"))
    wanted = [f"{split}_{name}" for split in trajectory["splits"] for name in (*TRAJECTORY_METRICS, *TRAJECTORY_NORMS)]
    columns = [name for name in (*wanted, WEIGHT_NORM) if name in there]
    means = ", ".join(f"avg({name}) AS {name}" for name in columns)
    gamma = "config_loss_gamma" if "config_loss_gamma" in results.columns("trials") else "NULL"
    rows = results.rows(
        f"SELECT config_loss_name || coalesce(' γ ' || format('{{:g}}', {gamma}::DOUBLE), '') AS loss, epoch, {means} "
        "FROM epochs JOIN trials USING (trial, replicate) WHERE status = 'completed' GROUP BY ALL ORDER BY loss, epoch"
    )
    found = []
    for column in columns:
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            epoch, value = row["epoch"], row[column]
            if isinstance(epoch, int) and isinstance(value, float) and value == value:
                lines.setdefault(str(row["loss"]), []).append((float(epoch), value))
        if lines:
            found.append(Curves(results.name, column, lines))
    return found


def drawn(curves: Curves) -> str:
    """Return curves as an HTML figure that needs no script."""
    points = [point for line in curves.lines.values() for point in line]
    (left, right), (low, high) = (_range([point[axis] for point in points]) for axis in (0, 1))

    def place(point: tuple[float, float]) -> str:
        x = LEFT + (WIDTH - LEFT - 6) * (point[0] - left) / (right - left)
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 8) * (point[1] - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    colours = dict(zip(curves.lines, COLOURS * len(curves.lines), strict=False))
    lines = [
        f"<polyline fill='none' stroke='{colours[name]}' stroke-width='1.5' points='{' '.join(map(place, line))}'/>"
        for name, line in curves.lines.items()
    ]
    keys = " ".join(f"<span style='color:{colour}'>{html.escape(name)}</span>" for name, colour in colours.items())
    axis = f"<path fill='none' stroke='#9a9aa2' d='M{LEFT},4 V{HEIGHT - BOTTOM} H{WIDTH - 4}'/>"
    marks = (
        f"<text x='{LEFT - 4}' y='14' text-anchor='end'>{high:.3g}</text>"
        f"<text x='{LEFT - 4}' y='{HEIGHT - BOTTOM}' text-anchor='end'>{low:.3g}</text>"
        f"<text x='{WIDTH - 6}' y='{HEIGHT - 8}' text-anchor='end'>{html.escape(curves.axis)} {right:g}</text>"
    )
    svg = (
        f"<svg width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}' font-size='11' role='img'>"
        f"{axis}{marks}{''.join(lines)}</svg>"
    )
    title = f"{html.escape(curves.column)}, {html.escape(curves.sweep)}: {keys}"
    return f"<figure>{svg}<figcaption>{title}</figcaption></figure>"


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
