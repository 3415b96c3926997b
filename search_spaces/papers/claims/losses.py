"""Claims that compare one training loss with others on the same network: selective risk, FLSD-53, focal loss.

The last two are about training itself: weight norms whose order reverses, and an NLL that rises through wrong samples
only. They reduce the epochs of each replicate to one row, which is then judged like a row of `final`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import log
from operator import itemgetter

from search_spaces.papers.claims.base import Detailed, claim
from search_spaces.papers.claims.numbers import (
    Estimates,
    Ours,
    by_network,
    clusters,
    difference,
    differences,
    is_loss,
    losses,
    mean_correlation,
    mean_over,
    number,
    of_split,
    points_of,
    readings,
    trial_mean,
    tuned_difference,
)
from sweeper.core.cells import Row, Rows, by_trial, grouped, int_of
from sweeper.core.statistics.basics import spearman

#: Columns that may differ between selective-risk configurations of one stratum.
SELECTIVE = ("config_loss_coverage", "config_loss_nu", "config_optimizer_lr")


@claim("selective", form=".4f")
def coverage_and_nu_calibrate(rows: Rows) -> Detailed:
    """With coverage and ν chosen on validation data, the selective-risk loss calibrates better than cross-entropy.

    Rule: on each network, cross-entropy's test ECE minus selective_risk's, each with the configuration that has the
    smallest mean validation ECE. It is chosen anew at every setting (learning rate …) that both losses have. If
    settings differ, the configurations are dealt out to several searches, and each search chooses its own. At least
    three settings or searches are needed. Holds where every network's 95 % interval lies above 0, does not hold where
    one lies below even for all together (Bonferroni), else undecided. The rank correlations of test ECE with coverage
    and with ν over all configurations, in the details, say which of the two matters.

    Estimated: test ECE of cross-entropy minus that of selective risk, tuned on validation data

    Missing: configurations of both cross_entropy and selective_risk are needed
    """
    risk = is_loss("selective_risk")
    test = [row for row in of_split(rows, "test") if risk(row)]
    rho = {
        f"rho_{key}": mean_correlation(points_of(test, f"config_loss_{key}", "ece", SELECTIVE), pool=True).value
        for key in ("coverage", "nu")
    }
    return _tuned(rows, risk, losses(["cross_entropy"]), "ece"), rho


@claim("mukhoti", "test", form=".3f")
def cross_entropy_overconfident_on_mistakes(test: Rows) -> Detailed:
    """Cross-entropy is over-confident in its mistakes, and FLSD-53 less so.

    Rule: on each network, mean confidence on wrongly classified test samples, cross-entropy minus FLSD-53 (focal losses
    where there is none), over the settings that both have, or over each loss's configurations; at least three (or
    replicates, with one configuration each at one setting). Holds where every network's 95 % interval lies above 0,
    does not hold where one lies below even for all together (Bonferroni), else undecided. Meant for sweeps in which a
    share of the training labels is flipped and test labels are right.

    Estimated: mean confidence on mistakes, cross-entropy minus focal loss

    Missing: cross_entropy and focal_sample_dependent (flsd_53) or focal are needed on one network
    """
    # Smaller sweeps have only focal loss: it stands in for FLSD-53.
    others = [row for row in test if _flsd_53(row)] or [row for row in test if is_loss("focal")(row)]
    plain = by_network([row for row in test if row["config_loss_name"] == "cross_entropy"])
    estimates, means, errors = {}, {}, {}
    for network, focal in by_network(others).items():
        groups = (plain.get(network, []), focal)
        before, after = (clusters(held, "confidence_wrong") for held in groups)
        if before and after:
            estimates[network] = difference(before, after)
            means[network] = [trial_mean(held, "confidence_wrong") for held in groups]
            errors[network] = [1 - (trial_mean(held, "accuracy") or 0.0) for held in groups]
    return estimates, {"error": errors, "confidence": means}


#: BLEU with its sign changed: `differences` expects that less is better, as with calibration errors.
LOST_BLEU = "lost_bleu"

#: ECE after temperature scaling, which mukhoti's Table 1 prints next to the plain one.
AFTER = "posthoc_temperature_ece"


@claim("mukhoti", "test", form=".4f")
def flsd_beats_baselines(test: Rows) -> Estimates:
    """FLSD-53 has a smaller ECE than cross-entropy, label smoothing, Brier and MMCE, before and after temperature
    scaling.

    Rule: on each network, test ECE of cross-entropy, Brier, MMCE and label smoothing (α .05) minus FLSD-53's, before
    and after temperature scaling, over the settings that both have, or over each loss's configurations; at least three
    (or replicates, with one configuration each at one setting). Holds where every 95 % interval lies above 0, does not
    hold where one lies below even at 95 % for all together (Bonferroni), else undecided.

    Estimated: test ECE minus FLSD-53's

    Missing: focal_sample_dependent (flsd_53) and a baseline are needed on one network
    """
    baselines: dict[str, Ours] = {
        **losses(("cross_entropy", "brier", "mmce")),
        "label_smoothing": lambda row: (
            # The paper's α; a sweep without that column has it at its default.
            row["config_loss_name"] == "label_smoothing" and row.get("config_loss_alpha") in (None, 0.05)
        ),
    }
    return differences(test, "ece", _flsd_53, baselines, {"after temperature": AFTER})


@claim("selective", form=".4f")
def au_beats_every_baseline(rows: Rows) -> Estimates:
    """The AU loss has a smaller ECE than every other loss, on each network.

    Rule: on each network, test ECE of each other loss minus selective_risk's, each with the configuration that has the
    smallest mean validation NLL, as the paper selects it (App. E). It is chosen anew at every setting (learning rate …)
    that both losses have. If settings differ, the configurations are dealt out to several searches, and each search
    chooses its own. At least three settings or searches are needed (or replicates, with one configuration each at one
    setting). Holds where every 95 % interval lies above 0, does not hold where one lies below even at 95 % for all
    together (Bonferroni), else undecided.

    Estimated: test ECE minus the AU loss's, hyperparameters chosen on validation data

    Missing: selective_risk and another loss are needed on one network
    """
    # Sorted: tables have no order, and the sentence lists losses in this one.
    names = sorted({str(row["config_loss_name"]) for row in rows} - {"selective_risk"})
    return _tuned(rows, is_loss("selective_risk"), losses(names), "nll")


@claim("selective", form=".4f")
def margin_is_the_best_score(rows: Rows) -> Estimates:
    """The softmax margin is the AU loss's best confidence score.

    Rule: as for au_beats_every_baseline, between selective_risk with each other score and with the margin. Holds where
    every 95 % interval lies above 0, does not hold where one lies below even at 95 % for all together (Bonferroni),
    else undecided. The paper excepts PreResNet-56 on CIFAR-100 and Swin-Tiny on Tiny-ImageNet, which the details list
    separately.

    Estimated: test ECE minus the margin's

    Missing: selective_risk with the margin and with another score is needed on one network
    """
    held = [row for row in rows if row["config_loss_name"] == "selective_risk"]
    scores = sorted({str(row.get("config_loss_score")) for row in held} - {"margin"})
    return _tuned(held, _of_score("margin"), {score: _of_score(score) for score in scores}, "nll")


@claim("mukhoti", "test", form=".4g")
def focal_translates_best(test: Rows) -> Estimates:
    """In translation, focal loss has a smaller ECE and a higher BLEU than cross-entropy and label smoothing.

    Rule: on each network, test ECE of cross-entropy and of label smoothing minus focal loss's, and focal loss's test
    BLEU minus theirs, over the settings that both have, or over each loss's configurations; at least three (or
    replicates, with one configuration each at one setting). Holds where every 95 % interval lies above 0, does not hold
    where one lies below even at 95 % for all together (Bonferroni), else undecided.

    Estimated: test ECE minus focal loss's, and its BLEU minus theirs

    Missing: focal and cross_entropy or label_smoothing are needed on one network, with BLEU
    """
    errors = [{**row, LOST_BLEU: -bleu} for row in test if (bleu := number(row, "bleu")) is not None]
    others = losses(("cross_entropy", "label_smoothing"))
    return differences(errors, "ece", is_loss("focal"), others, {"BLEU": LOST_BLEU})


@claim("two-stage training", "test", form=".4f")
def focal_in_stage_one_helps(test: Rows) -> Estimates:
    """Focal loss in the first half of training, then cross-entropy, calibrates better than cross-entropy throughout.

    Rule: on each network, test ECE of cross-entropy minus two_stage's, and its test NLL after temperature scaling minus
    two_stage's, over the settings that both have, or over each loss's configurations; at least three (or replicates,
    with one configuration each at one setting). Holds where every 95 % interval lies above 0, does not hold where one
    lies below even at 95 % for all together (Bonferroni), else undecided. ECE shows whether the network needs less
    recalibration, and the NLL after a temperature whether it is better once recalibrated.

    Estimated: test ECE minus that of two stages

    Missing: two_stage and cross_entropy are needed on one network
    """
    after = {"NLL after temperature": "posthoc_temperature_nll"}
    return differences(test, "ece", is_loss("two_stage"), losses(["cross_entropy"]), after)


NORM = "last_layer_weight_norm"

#: Columns of a replicate's row: ln of its norms.
EARLY, LAST = "early_norm", "last_norm"


@claim("mukhoti", form=".3f", table="epochs")
def weight_norm_order_reverses(rows: Rows) -> Estimates:
    """Cross-entropy's last layer has the smallest weights early in training, and the largest at the end.

    Rule: on each network and against each focal loss, ln of the focal loss's norm over cross-entropy's while the
    learning rate has its first value (mean over these epochs without the first tenth of all), and ln of cross-entropy's
    over the focal loss's at the last epoch; over the settings that both have, or over each loss's configurations, at
    least three (or replicates, with one configuration each at one setting). Holds where every 95 % interval lies above
    0, does not hold where one lies below even at 95 % for all together (Bonferroni), else undecided.

    Estimated: ln of the ratio of norms, focal loss's over cross-entropy's early and the reverse at the end

    Missing: cross-entropy and a focal loss with last_layer_weight_norm after every epoch are needed on one network
    """
    estimates = {}
    for network, held in by_network(_by_replicate(rows, _norms)).items():
        norms = {
            loss: [clusters(of_it, column) for column in (EARLY, LAST)] for loss, of_it in grouped(held, _loss).items()
        }
        # Both signs are such that a positive difference supports the claim.
        plain_early, plain_last = norms.pop("cross_entropy", [{}, {}])
        for loss, (early, last) in norms.items():
            if loss and early and plain_early:
                estimates[f"{network}, {loss} early"] = difference(early, plain_early)
                estimates[f"{network}, {loss} at the end"] = difference(plain_last, last)
    return estimates


@claim("mukhoti", form=".2f", table="epochs")
def nll_rises_through_wrong_samples_only(rows: Rows) -> Estimates:
    """Late in training, cross-entropy's test NLL rises through wrongly classified samples only.

    Rule: on each network, for each replicate of cross-entropy after the learning rate's first drop, ρ(epoch, NLL of
    wrongly classified test samples) and −ρ(epoch, NLL of correctly classified ones); the mean of each over
    configurations, of which at least three are needed (if there is only one, over its replicates). Holds where every
    95 % interval lies above 0, does not hold where one lies below even at 95 % for all together (Bonferroni), else
    undecided.

    Estimated: ρ(epoch, NLL of wrong samples) and −ρ(epoch, NLL of correct ones)

    Missing: cross-entropy with a trajectory on test data and a learning rate that drops is needed
    """
    plain = [row for row in rows if row["config_loss_name"] == "cross_entropy"]
    estimates = {}
    for network, held in by_network(_by_replicate(plain, _trends)).items():
        for kind in TRENDS:
            groups = [readings(of_it, kind) for of_it in by_trial(held).values()]
            if any(groups):
                estimates[f"{network}, {kind} samples"] = mean_over(groups)
    return estimates


def _by_replicate(rows: Rows, read: Callable[[Rows], Row]) -> list[Row]:
    """Return one row per replicate: its last row, with the columns that `read` computes from its epochs in order."""
    # Tables have no order, and both trends and drops depend on it.
    in_order = sorted(rows, key=lambda row: int_of(row, "epoch"))
    replicates = grouped(in_order, itemgetter("trial", "replicate")).values()
    return [{**epochs[-1], **read(epochs)} for epochs in replicates]


def _loss(row: Row) -> str:
    """Return the loss in words, focal loss with its γ; empty for losses that are not compared."""
    if row["config_loss_name"] == "focal":
        return f"focal {row.get('config_loss_gamma')}"
    return "cross_entropy" if row["config_loss_name"] == "cross_entropy" else ""


def _norms(epochs: Rows) -> Row:
    """Return ln of the mean norm before the first drop of the learning rate, and ln of the last norm."""
    # Without the first tenth of the epochs: in it, norms still grow from their initial values under every loss.
    early, last = trial_mean(epochs[len(epochs) // 10 : _drop(epochs)], NORM), number(epochs[-1], NORM)
    return {EARLY: log(early), LAST: log(last)} if early and last else {}


#: Kind of samples → the sign of their NLL's trend if the claim is true.
TRENDS = {"wrong": 1, "correct": -1}


def _trends(epochs: Rows) -> Row:
    """Return signed ρ(epoch, NLL) after the learning rate's first drop, for kinds measured at every epoch."""
    late, trends = epochs[_drop(epochs) :], {}
    for kind, sign in TRENDS.items():
        values = readings(late, f"test_nll_{kind}")
        if len(values) == len(late) >= 3:
            trends[kind] = sign * spearman([int_of(row, "epoch") for row in late], values)
    return trends


def _drop(rows: Rows) -> int:
    """Return the index of the first row with a lower learning rate than its predecessor; the length if none drops."""
    rates = [number(row, "lr") or 0.0 for row in rows]
    # 1 % of tolerance: a rounded or slowly decaying rate is no step of the schedule.
    return next((place for place, (a, b) in enumerate(pairwise(rates), start=1) if b < 0.99 * a), len(rows))


def _flsd_53(row: Row) -> bool:
    named = row["config_loss_name"] == "focal_sample_dependent"
    return named and row.get("config_loss_variant") in (None, "flsd_53")


def _of_score(score: str) -> Ours:
    return lambda row: row.get("config_loss_score") == score


def _tuned(rows: Rows, ours: Ours, others: Mapping[str, Ours], objective: str) -> Estimates:
    """Return by network each other loss's test ECE minus ours, both tuned by an objective on validation data."""
    estimates = {}
    for network, held in by_network(rows).items():
        mine = [row for row in held if ours(row)]
        for name, is_other in others.items():
            theirs = [row for row in held if is_other(row)]
            if mine and theirs:
                estimates[f"{network}, {name}"] = tuned_difference(theirs, mine, objective, "ece")
    return estimates
