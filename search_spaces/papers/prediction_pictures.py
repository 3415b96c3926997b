"""Pictures from stored predictions: posterior's Figs. 3c-i and 4, mukhoti's Fig. 9 and selective's App. Fig. 3.

Post-hoc methods are fitted again on the stored validation predictions of the drawn networks, the first replicate of
each trial. A sweep without these predictions has no such picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from search_spaces.papers.claims.posthoc import plain_gamma, smoothed_gamma
from search_spaces.papers.computed_figures import gradients_by_true_class
from sweeper.core.cells import Row, float_of, grouped, int_of, text_of
from sweeper.core.errors import SweeperError
from sweeper.reporting.figures import coverage_nu_map
from sweeper.reporting.figures.base import (
    Figure,
    Json,
    Panel,
    colour,
    curves,
    diagonal,
    full_where,
    names,
    points,
    quantity,
)
from sweeper.results import Results
from sweeper.results.predictions import MEASURED_ON, StoredPredictions, members_of
from trainables.datasets import load_dataset
from trainables.datasets.base import DataSet
from trainables.metrics import evaluate_probabilities, reliability_bins
from trainables.metrics.base import log_softmax64
from trainables.posthoc.base import PosthocUnavailable
from trainables.registry import HyperparameterValue

#: Most points of a line or a cloud; if there are more, evenly chosen ones are drawn.
MOST_POINTS = 400

#: Samples that all networks classify correctly, and samples that none classifies correctly: mukhoti Fig. 9 shows four
#: of each.
IMAGES = 4

#: Most training samples of selective App. Fig. 3.
STAGE_SAMPLES = 20_000

#: Loss → its name in mukhoti Fig. 9.
FOUR = {"cross_entropy": "cross-entropy", "brier": "Brier", "mmce": "MMCE", "focal_sample_dependent": "FLSD-53"}

Options = Mapping[str, HyperparameterValue]


def networks(results: Results, condition: str = "true") -> list[tuple[Row, StoredPredictions]]:
    """Return the first replicates of finished trials that meet an SQL condition, with their last predictions."""
    rows = results.rows(
        f"SELECT * FROM final WHERE status = 'completed' AND split = 'test' AND replicate = 0 AND ({condition}) "
        "ORDER BY trial"
    )
    trials = [text_of(row, "trial") for row in rows]
    try:
        members = {member.trial: member for member in members_of(results, trials) if member.replicate == 0}
    except SweeperError:  # the sweep stores no logits
        return []
    return [(row, members[trial]) for row, trial in zip(rows, trials, strict=True) if trial in members]


def data_of(results: Results) -> DataSet:
    """Load a sweep's data set again."""
    options = {key: value for key, value in results.specification["dataset"].items() if key != "name"}
    return load_dataset(results.specification["dataset"]["name"], **options)


def picture(
    results: Results, title: str, words: str, panels: Sequence[Panel], legend: Sequence[str] = ()
) -> list[Figure]:
    """Return a sweep's figure with the caption `words`, as a list; an empty list without panels."""
    return [Figure(title, f"{results.name}: {words}", [], panels, [], legend=legend)] if panels else []


def _fills(results: Results, table: str) -> bool:
    return table in (results.specification.get("header", {}).get("tables") or ())


def posterior_scores(results: Results) -> list[Figure]:
    """Return posterior Fig. 3c-i: each class's score over the input, raw, after temperature scaling and after Ψ.

    The true probabilities are dashed.
    """
    if results.specification["dataset"]["name"] != "known_posterior_1d":
        return []
    data = data_of(results)
    held = [(gamma, member) for row, member in networks(results) if (gamma := plain_gamma(row)) is not None]
    # Lines need sorted inputs, and at most MOST_POINTS of them keep the page small.
    x, truth = data.test.inputs.double().numpy().ravel(), np.asarray(data.posterior)
    order = np.argsort(x)[np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).astype(int)]
    panels = []
    for words, method in (("raw", None), ("temperature by NLL", "temperature"), ("Ψ", "focal_map")):
        for gamma, member in held:
            # Data that differ from the sweep's cannot be drawn; for γ = 0 the map is the identity.
            if len(member.targets[MEASURED_ON]) != len(x) or (method and not gamma):
                continue
            q = member.probabilities(MEASURED_ON, method, **({"gamma": gamma} if method == "focal_map" else {}))
            metrics = evaluate_probabilities(q, member.targets[MEASURED_ON], 10, ("accuracy", "ece"))
            away = float((truth * np.log(truth / q)).sum(1).mean())
            classes = [f"class {place}" for place in range(q.shape[1])]
            layers = []
            for values, dashed in ((q, False), (truth, True)):
                lines = {
                    name: [*zip(x[order].tolist(), values[order, at].tolist(), strict=True)]
                    for at, name in enumerate(classes)
                }
                layers += curves(lines, classes, dashed=dashed)
            said = f"γ {gamma:g}, {words}: ERR {1 - metrics['accuracy']:.3f}, KLD {away:.4f}, ECE {metrics['ece']:.3f}"
            panels.append(Panel(said, layers, quantity("x", "x"), quantity("y", "score", limits=(0, 1))))
    words = "scores of three classes by the input, true probabilities dashed"
    return picture(results, "Scores", words, panels)


def reliability_with_map(results: Results) -> list[Figure]:
    """Return posterior Fig. 4: accuracy by confidence without and with Ψ, a panel for each γ of three paradigms.

    The network is the last configuration's, which is the paper's ResNet-110.
    """
    if not _fills(results, "posterior-fig4"):
        return []
    # A grid over networks ends with the largest one, which is the figure's.
    last = "config_architecture_name = (SELECT config_architecture_name FROM trials ORDER BY trial DESC LIMIT 1)"
    held = [(plain_gamma(row), smoothed_gamma(row), member) for row, member in networks(results, last)]
    bins, legend, panels = results.specification["evaluation"]["bins"], ["raw", "with Ψ"], []
    for words, smoothed in (("Standard", False), ("TS_FL", False), ("LS", True)):
        for plain, smooth, member in held:
            gamma = smooth if smoothed else plain
            if not gamma:
                continue
            fitted: Options = {"objective": "focal", "gamma": gamma}
            ways: list[tuple[str | None, Options]] = [(None, {}), ("focal_map", {"gamma": gamma})]
            if words == "TS_FL":
                ways = [("temperature", fitted), ("temperature", {**fitted, "apply_focal_map": True})]
            lines, errors = {}, []
            for at, (method, options) in enumerate(ways):
                q, targets = member.probabilities(MEASURED_ON, method, **options), member.targets[MEASURED_ON]
                filled = [row for row in reliability_bins(q, targets, bins) if row["n"]]
                lines[legend[at]] = [(row["confidence"], row["accuracy"]) for row in filled]
                errors.append(evaluate_probabilities(q, targets, bins, ("ece",))["ece"])
            said = f"{words}, γ {gamma:g}: ECE {errors[0]:.3f} raw, {errors[1]:.3f} with Ψ"
            axes = quantity("x", "confidence", limits=(0, 1)), quantity("y", "accuracy", limits=(0, 1))
            panels.append(Panel(said, [diagonal(), *curves(lines, legend)], *axes))
    words = f"test accuracy by confidence, {bins} bins, without and with the focal map"
    return picture(results, "Reliability", words, panels, legend)


def confidences_of_images(results: Results) -> list[Figure]:
    """Return mukhoti Fig. 9: confidences of four networks for samples that all or none of them classify correctly.

    The paper does not say which eight images it shows; these are the first ones of the test split.
    """
    if not _fills(results, "mukhoti-fig9"):
        return []
    losses = ", ".join(f"'{name}'" for name in FOUR)
    by_loss: dict[str, StoredPredictions] = {}
    for row, member in networks(results, f"config_loss_name IN ({losses})"):
        by_loss.setdefault(FOUR[text_of(row, "config_loss_name")], member)
    if len(by_loss) < len(FOUR):
        return []
    raw = {loss: member.probabilities(MEASURED_ON) for loss, member in by_loss.items()}
    targets = next(iter(by_loss.values())).targets[MEASURED_ON]
    # Correct under all networks, or wrong under all: otherwise confidences of different outcomes are compared.
    right = np.array([q.argmax(1) == targets for q in raw.values()])
    kinds = {"right": np.flatnonzero(right.all(0))[:IMAGES], "wrong": np.flatnonzero(~right.any(0))[:IMAGES]}
    panels = []
    for words, places in kinds.items():
        rows: list[Json] = []
        for loss, member in by_loss.items():
            scaled = member.probabilities(MEASURED_ON, "temperature", objective="ece", grid="mukhoti")
            for q in (raw[loss], scaled):
                held = {"loss": loss, "scaled": q is scaled}
                rows += [{**held, "sample": f"{at} ({targets[at]})", "confidence": float(q[at].max())} for at in places]
        if rows:
            by = colour("loss", [*by_loss])
            axes = names("sample", "test sample (class)"), quantity("confidence", "confidence", limits=(0, 1.03))
            panels.append(Panel(f"{words} by all", [points(rows, color=by, shape=full_where("!datum.scaled"))], *axes))
    words = "confidence before (full) and after temperature scaling (open); the samples are ours"
    return picture(results, "Confidences", words, panels, [*by_loss])


def gradients_in_training(results: Results) -> list[Figure]:
    """Return selective App. Fig. 3: each loss's derivative by p_y for one network's training data, by epoch."""
    header = results.specification.get("header", {})
    if header.get("paper") != "selective" or "logits" not in results.columns("predictions"):
        return []
    # The lowest trial number, so that the same sweep always shows the same network.
    where = (
        "split = 'train' AND replicate = 0 AND trial = (SELECT min(trial) FROM trials WHERE status = 'completed' AND "
        "config_loss_name = 'cross_entropy')"
    )
    epochs = results.rows(f"SELECT DISTINCT epoch FROM predictions WHERE {where} ORDER BY epoch")
    panels: list[Panel] = []
    legend: Sequence[str] = ()
    for epoch in [int_of(row, "epoch") for row in epochs]:
        table = results.sql(
            f"SELECT target, logits FROM predictions WHERE {where} AND epoch = {epoch} ORDER BY sample "
            f"LIMIT {STAGE_SAMPLES}"
        )
        logs = log_softmax64(np.stack(table["logits"].to_numpy()))
        p, gradients = gradients_by_true_class(logs, table["target"].to_numpy(), (2,))
        some = np.argsort(p)[np.linspace(0, len(p) - 1, min(len(p), MOST_POINTS)).astype(int)]
        legend = [*gradients]
        rows: list[Json] = [
            {"x": x, "y": y, "loss": loss}
            for loss, values in gradients.items()
            for x, y in zip(p[some].tolist(), np.clip(values[some], -12, 2).tolist(), strict=True)
        ]
        drawn = points(rows, size=6, color=colour("loss", legend), opacity={"value": 0.7})
        axes = quantity("x", "p_y", limits=(0, 1)), quantity("y", "derivative of the loss")
        panels.append(Panel(f"epoch {epoch}", [drawn], *axes))
    words = f"derivative of each loss by p_y, at {MOST_POINTS} training samples, within −12 and 2"
    return picture(results, "Gradients", words, panels if len(panels) > 1 else [], legend)


def gamma_selection(results: Results) -> list[Figure]:
    """Return selective App. Fig. 4 (validation NLL of inverse and dual focal loss by γ) and Fig. 6 (report's map)."""
    if not _fills(results, "selective-a2"):
        return []
    rows = results.rows(
        "SELECT config_loss_name AS loss, config_architecture_name AS network, config_loss_gamma AS gamma, "
        "avg(nll) AS nll FROM final WHERE status = 'completed' AND split = 'val' AND config_loss_name IN "
        "('inverse_focal', 'dual_focal') GROUP BY ALL ORDER BY loss DESC, network, gamma"
    )
    legend = sorted({text_of(row, "network") for row in rows})
    panels = []
    for loss, of_it in grouped(rows, lambda row: text_of(row, "loss")).items():
        lines = {
            network: [(float_of(row, "gamma"), float_of(row, "nll")) for row in mine]
            for network, mine in grouped(of_it, lambda row: text_of(row, "network")).items()
        }
        panels.append(Panel(loss, curves(lines, legend), quantity("x", "γ"), quantity("y", "validation NLL")))
    figures = picture(results, "Selection of γ", "what selects γ, by γ", panels, legend)
    return [*figures, *filter(None, [coverage_nu_map.draw(results)])]


def prediction_pictures(results: Results) -> list[Figure]:
    """Return the pictures for which a sweep's tables have the rows. Raises QueryError."""
    figures: list[Figure] = []
    for draw in (posterior_scores, reliability_with_map, confidences_of_images, gradients_in_training, gamma_selection):
        try:
            figures += draw(results)
        except PosthocUnavailable:  # e.g. a rehearsal's validation data have only one class
            continue
    return figures
