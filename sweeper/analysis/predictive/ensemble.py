"""Ensembles of a sweep's networks: the winner's replicates, and greedy ensembles across configurations.

An ensemble's probabilities are the mean of its members'. Greedy selection adds, with replacement, the network that
lowers the ensemble's validation NLL most (Caruana, Niculescu-Mizil, Crew & Ksikes 2004, Ensemble selection from
libraries of models). An ensemble of calibrated networks is underconfident, so where its temperature is fitted matters:
before averaging, one for each member, or after, one for the ensemble (Rahaman & Thiery 2021, Uncertainty quantification
and deep ensembles, arXiv:2007.08792).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.analysis.recalibration.predictions import FITTED_ON, MEASURED_ON, Member, finished_members
from sweeper.core.errors import SweeperError, writing_to
from sweeper.results import Results
from sweeper.text.labels import label, plural
from trainables.metrics import SMALLEST_PROBABILITY, evaluate_probabilities
from trainables.metrics.base import Floats, Integers, softmax64
from trainables.posthoc import fit
from trainables.posthoc.base import Calibrator, PosthocUnavailable

NONE, BEFORE, AFTER = "none", "before", "after"
TEMPERATURES = (NONE, BEFORE, AFTER)
"""Where a temperature is fitted: nowhere, on each member, on the mean."""

SHOWN = ("accuracy", "nll", "brier", "ece")

SINGLE, REPLICATES, GREEDY = "best single network", "replicates of the best", "greedy"


@dataclass(frozen=True)
class EnsembleRow:
    """One ensemble's test measurements.

    Attributes:
        ensemble: SINGLE, REPLICATES or GREEDY.
        members: how many networks, each counted as often as it was chosen.
        configurations: how many different configurations are among them.
        temperature: of TEMPERATURES.
        metrics: on test data, by name.
        validation_nll: what was selected by.
    """

    ensemble: str
    members: int
    configurations: int
    temperature: str
    metrics: dict[str, float]
    validation_nll: float


def greedy_members(of_target: Floats, size: int) -> list[int]:
    """Return which of M networks to average, in the order chosen, with replacement.

    Each step adds the network that leaves the smallest mean NLL. All `size` are returned, even where a step raises it.

    Args:
        of_target: [M, N] each network's validation probability of the target.
        size: how many to choose.
    """
    chosen: list[int] = []
    total = np.zeros(of_target.shape[1])
    for step in range(1, size + 1):
        losses = -np.log(np.maximum((total + of_target) / step, SMALLEST_PROBABILITY)).mean(axis=1)
        best = int(losses.argmin())
        chosen.append(best)
        total = total + of_target[best]
    return chosen


def ensembles(results: Results, *, size: int = 10, candidates: int = 50) -> list[EnsembleRow]:
    """Return the single best network, the ensemble of its configuration's replicates, and greedy ensembles of 1 … size.

    Args:
        results: of the sweep.
        size: members of the largest greedy ensemble.
        candidates: configurations to choose from; of more, the best by the sweep's objective.

    Raises:
        SweeperError: as `finished_members`, or a network's logits take no temperature.
    """
    members = finished_members(results, candidates)
    targets = members[0].targets
    plain = [_probabilities(member, scaled=False) for member in members]
    scaled = [_probabilities(member, scaled=True) for member in members]
    loss = [_nll(each[FITTED_ON], targets[FITTED_ON]) for each in plain]
    best = int(np.argmin(loss))
    same = [at for at, member in enumerate(members) if member.trial == members[0].trial]
    rows = _measured(SINGLE, [best], members, plain, scaled)
    rows += _measured(REPLICATES, same, members, plain, scaled) if len(same) > 1 else []
    every = np.arange(len(targets[FITTED_ON]))
    orders = {
        where: greedy_members(np.stack([part[FITTED_ON][every, targets[FITTED_ON]] for part in parts]), size)
        for where, parts in ((NONE, plain), (BEFORE, scaled))
    }
    for count in range(1, size + 1):
        for where in TEMPERATURES:
            order = orders[BEFORE if where == BEFORE else NONE]
            rows += _measured(GREEDY, order[:count], members, plain, scaled, (where,))
    return rows


def _probabilities(member: Member, scaled: bool) -> dict[str, Floats]:
    """Return a member's probabilities by split, with its own temperature where `scaled`.

    Raises SweeperError where none can be fitted: an ensemble that is called calibrated must not hold others in silence.
    """
    if not scaled:
        return {split: softmax64(logits) for split, logits in member.logits.items()}
    calibrator = _temperature(member.logits[FITTED_ON], member.targets[FITTED_ON], member.trial)
    return {split: calibrator(logits) for split, logits in member.logits.items()}


def _temperature(logits: Floats | NDArray[np.float32], targets: Integers, whose: str) -> Calibrator:
    try:
        return fit("temperature", logits, targets)
    except PosthocUnavailable as error:
        raise SweeperError(
            f"no temperature can be fitted to {whose}: {error}", "choose from fewer with --candidates"
        ) from error


def _measured(
    name: str,
    chosen: Sequence[int],
    members: Sequence[Member],
    plain: Sequence[dict[str, Floats]],
    scaled: Sequence[dict[str, Floats]],
    wheres: Sequence[str] = TEMPERATURES,
) -> list[EnsembleRow]:
    targets, rows = members[0].targets, []
    for where in wheres:
        parts = scaled if where == BEFORE else plain
        mean = {split: np.mean([parts[at][split] for at in chosen], axis=0) for split in (FITTED_ON, MEASURED_ON)}
        if where == AFTER:
            logits = {split: np.log(np.maximum(each, SMALLEST_PROBABILITY)) for split, each in mean.items()}
            calibrator = _temperature(logits[FITTED_ON], targets[FITTED_ON], f"the ensemble {name!r}")
            mean = {split: calibrator(each) for split, each in logits.items()}
        bins = min(15, len(targets[MEASURED_ON]))
        measured = evaluate_probabilities(mean[MEASURED_ON], targets[MEASURED_ON], bins)
        configurations = len({members[at].trial for at in chosen})
        shown = {metric: measured[metric] for metric in SHOWN}
        validation = _nll(mean[FITTED_ON], targets[FITTED_ON])
        rows.append(EnsembleRow(name, len(chosen), configurations, where, shown, validation))
    return rows


def _nll(probabilities: Floats, targets: Integers) -> float:
    of_target = probabilities[np.arange(len(targets)), targets]
    return float(-np.log(np.maximum(of_target, SMALLEST_PROBABILITY)).mean())


def view(rows: Sequence[EnsembleRow]) -> RenderableType:
    """Return the ensembles as a table for a terminal."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("ensemble", "members", "configurations", "temperature", *map(label, SHOWN)):
        table.add_column(heading, justify="left" if heading in ("ensemble", "temperature") else "right", no_wrap=True)
    for row in rows:
        numbers = (f"{row.metrics[name]:.4g}" for name in SHOWN)
        table.add_row(row.ensemble, str(row.members), str(row.configurations), row.temperature, *numbers)
    chosen = min((row for row in rows if row.ensemble == GREEDY), key=lambda row: row.validation_nll)
    note = (
        f"Among the greedy ensembles, validation data select {plural(chosen.members, 'member')} with temperature "
        f"{chosen.temperature}: test NLL {chosen.metrics['nll']:.4g}, ECE {chosen.metrics['ece']:.4g}. Members are "
        "selected and temperatures fitted on validation data; all metrics are measured on test data. A network may be "
        "selected more than once."
    )
    return Group(table, Text(), Text(note))


def write_picture(rows: Sequence[EnsembleRow], path: Path, metric: str = "nll") -> None:
    """Draw a test metric against the members of the greedy ensembles into one HTML file that opens offline.

    Raises SweeperError where it cannot be written.
    """
    import plotly.graph_objects as go

    drawn = go.Figure()
    for where in TEMPERATURES:
        line = [row for row in rows if row.ensemble == GREEDY and row.temperature == where]
        drawn.add_scatter(
            x=[row.members for row in line],
            y=[row.metrics[metric] for row in line],
            name=f"greedy, temperature {where}",
        )
    for row in rows:
        if row.ensemble != GREEDY and row.temperature == AFTER:
            drawn.add_hline(row.metrics[metric], line_dash="dot", annotation_text=row.ensemble)
    drawn.update_layout(
        template="plotly_white", xaxis_title="members", yaxis_title=f"test {label(metric)}", xaxis_dtick=1
    )
    with writing_to(path, "give --picture another path"):
        path.write_text(drawn.to_html(include_plotlyjs=True), encoding="utf-8")
