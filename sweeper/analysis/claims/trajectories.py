"""Claims about what happens while networks train: weight norms that change places, and losses that rise alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log

from sweeper.analysis.claims.base import Claim, Verdict
from sweeper.analysis.claims.networks import by_network, verdict_of
from sweeper.analysis.claims.numbers import number, paired_mean, trained_to_the_end
from sweeper.analysis.statistics.basics import spearman
from sweeper.text.cells import Row, Rows, int_of

NORM = "last_layer_weight_norm"


def judge_reversal(rows: Rows) -> Verdict:
    """Judge that cross-entropy's last layer has the smallest weights early in training and the largest at the end.

    Rule: on each network and replicate, ln of cross-entropy's norm over the largest focal loss's at the last epoch, and
    ln of the smallest focal loss's over cross-entropy's while the learning rate is the first (mean over those epochs,
    all but the first tenth); the smaller of the two, with Student's interval over replicates. Holds where every
    network's 95 % interval lies above 0, does not hold where one lies below, else undecided.
    """
    found = {}
    for network, held in by_network(trained_to_the_end(rows)).items():
        reversals = []
        for losses in _by_replicate(held).values():
            plain = losses.pop("cross_entropy", None)
            if plain is None or not losses:
                continue
            norms = [(_early(other), _last(other)) for other in losses.values()]
            early, last = _early(plain), _last(plain)
            if early and last and all(first and final for first, final in norms):
                before = log(min(first or 0.0 for first, _ in norms) / early)
                reversals.append(min(before, log(last / max(final or 0.0 for _, final in norms))))
        if reversals:
            found[network] = paired_mean([reversals])
    missing = f"cross-entropy and a focal loss with {NORM} after every epoch are needed on one network"
    what = "the smaller of the two log ratios of norms"
    return verdict_of("weight_norm_order_reverses", found, what, "replicates", missing=missing, form=".3f")


def judge_wrong_samples(rows: Rows) -> Verdict:
    """Judge that cross-entropy's test NLL rises, once the learning rate has dropped, through wrong samples alone.

    Rule: on each network and replicate of cross-entropy, after the learning rate's first drop, ρ(epoch, NLL of wrongly
    classified test samples) and −ρ(epoch, NLL of correctly classified ones); the smaller of the two, with Student's
    interval over replicates. Holds where every network's 95 % interval lies above 0, does not hold where one lies
    below, else undecided.
    """
    plain = [row for row in trained_to_the_end(rows) if row["config_loss_name"] == "cross_entropy"]
    found = {}
    for network, held in by_network(plain).items():
        signs = []
        for losses in _by_replicate(held).values():
            late = _after_drop(losses["cross_entropy"])
            epochs = [int_of(row, "epoch") for row in late]
            curves = [[number(row, f"test_nll_{kind}") for row in late] for kind in ("wrong", "correct")]
            if len(late) > 2 and all(value is not None for curve in curves for value in curve):
                wrong, correct = (spearman(epochs, [value or 0.0 for value in curve]) for curve in curves)
                signs.append(min(wrong, -correct))
        if signs:
            found[network] = paired_mean([signs])
    missing = "cross-entropy with a trajectory on test data and a learning rate that drops is needed"
    what = "the smaller of ρ(epoch, NLL of wrong samples) and −ρ(epoch, NLL of correct ones)"
    return verdict_of("nll_rises_through_wrong_samples_only", found, what, "replicates", missing=missing, form=".2f")


def _by_replicate(rows: Rows) -> dict[object, dict[str, list[Row]]]:
    """Return rows in the order of epochs by replicate and loss; focal losses are told apart by γ."""
    found: dict[object, dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: int_of(row, "epoch")):
        name = str(row["config_loss_name"])
        if name == "focal":
            name += f" {row.get('config_loss_gamma')}"
        if name == "cross_entropy" or name.startswith("focal"):
            found.setdefault(row["replicate"], {}).setdefault(name, []).append(row)
    return found


def _drop(rows: Sequence[Row]) -> int:
    """Return the place of the first row with a lower learning rate than the one before; the last where none drops."""
    rates = [number(row, "lr") or 0.0 for row in rows]
    return next((place for place, (a, b) in enumerate(pairwise(rates), start=1) if b < 0.99 * a), len(rows))


def _after_drop(rows: Sequence[Row]) -> Sequence[Row]:
    return rows[_drop(rows) :]


def _early(rows: Sequence[Row]) -> float | None:
    """Return the mean norm while the learning rate is the first, without the first tenth of training."""
    measured = [number(row, NORM) for row in rows[len(rows) // 10 : _drop(rows)]]
    known = [value for value in measured if value is not None]
    return sum(known) / len(known) if known else None


def _last(rows: Sequence[Row]) -> float | None:
    return number(rows[-1], NORM)


def epoch_rows(epochs: Rows, trials: Mapping[tuple[object, object], Row]) -> list[Row]:
    """Return rows of `epochs` with the configuration of their trial and, as `stage`, whether it ran to the end."""
    joined: list[Row] = []
    for row in epochs:
        trial = trials.get((row["trial"], row["replicate"]))
        if trial is not None:
            stage = {"stage": "end" if trial["status"] == "completed" else "rung", "split": ""}
            joined.append({**{k: v for k, v in trial.items() if k.startswith("config_")}, **row, **stage})
    return joined


CLAIMS = (
    Claim(
        "weight_norm_order_reverses",
        "mukhoti",
        "Cross-entropy's last layer has the smallest weights early in training, and the largest at the end.",
        judge_reversal,
        table="epochs",
    ),
    Claim(
        "nll_rises_through_wrong_samples_only",
        "mukhoti",
        "Late in training, cross-entropy's test NLL rises through wrongly classified samples only.",
        judge_wrong_samples,
        table="epochs",
    ),
)
