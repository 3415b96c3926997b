"""Claims that one loss calibrates better than others on the same network: FLSD-53, and the AU loss with its scores."""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.analysis.claims.base import Claim, Verdict
from sweeper.analysis.claims.networks import Ours, by_network, differences, is_loss, losses, verdict_of
from sweeper.analysis.claims.numbers import Estimate, number, of_split, trained_to_the_end, tuned_difference
from sweeper.text.cells import Row, Rows

LOST_BLEU = "lost_bleu"
"""BLEU with its sign changed, so that less is better as with calibration errors."""

AFTER = "posthoc_temperature_ece"
"""ECE after temperature scaling, as mukhoti's Table 1 prints it beside the plain one."""


def judge_flsd(rows: Rows) -> Verdict:
    """Judge that FLSD-53 calibrates better than the baselines of mukhoti's Table 1, before and after temperature.

    Rule: on each network, test ECE of cross-entropy, Brier, MMCE and label smoothing (α .05) minus FLSD-53's, before
    and after temperature scaling, over the settings that both have, or over each loss's configurations; at least three
    (of one configuration each at one setting, over their replicates). Holds where every 95 % interval lies above 0,
    does not hold where one lies below even at 95 % for all together (Bonferroni), else undecided.
    """
    baselines: dict[str, Ours] = {
        **losses(("cross_entropy", "brier", "mmce")),
        "label_smoothing": lambda row: (
            row["config_loss_name"] == "label_smoothing" and row.get("config_loss_alpha") in (None, 0.05)
        ),
    }
    test = of_split(trained_to_the_end(rows), "test")
    found = differences(test, "ece", _flsd_53, baselines, {"after temperature": AFTER})
    missing = "focal_sample_dependent (flsd_53) and a baseline are needed on one network"
    what = "test ECE minus FLSD-53's"
    return verdict_of("flsd_beats_baselines", found, what, missing=missing, form=".4f")


def judge_au(rows: Rows) -> Verdict:
    """Judge that the AU loss calibrates better than every baseline, on each network.

    Rule: on each network, test ECE of each other loss minus selective_risk's, each with the configuration that has the
    smallest mean validation NLL, as the paper selects it (App. E): chosen anew at every setting (learning rate …) that
    both have, or else in each of several searches among which the configurations are dealt out; at least three (of one
    configuration each at one setting, over their replicates). Holds where every 95 % interval lies above 0, does not
    hold where one lies below even at 95 % for all together (Bonferroni), else undecided.
    """
    held = trained_to_the_end(rows)
    names = sorted({str(row["config_loss_name"]) for row in held} - {"selective_risk"})
    found = _tuned(held, is_loss("selective_risk"), losses(names))
    missing = "selective_risk and another loss are needed on one network"
    what = "test ECE minus the AU loss's, hyperparameters chosen on validation data"
    return verdict_of("au_beats_every_baseline", found, what, missing=missing, form=".4f")


def judge_scores(rows: Rows) -> Verdict:
    """Judge that the margin is the AU loss's best confidence score, on each network.

    Rule: as for au_beats_every_baseline, between selective_risk with each other score and with the margin. Holds where
    every 95 % interval lies above 0, does not hold where one lies below even at 95 % for all together (Bonferroni),
    else undecided. The paper excepts PreResNet-56 on CIFAR-100 and Swin-Tiny on Tiny-ImageNet, which the details tell
    apart.
    """
    held = [row for row in trained_to_the_end(rows) if row["config_loss_name"] == "selective_risk"]
    scores = sorted({str(row.get("config_loss_score")) for row in held} - {"margin"})
    found = _tuned(held, _of_score("margin"), {score: _of_score(score) for score in scores})
    missing = "selective_risk with the margin and with another score is needed on one network"
    what = "test ECE minus the margin's"
    return verdict_of("margin_is_the_best_score", found, what, missing=missing, form=".4f")


def judge_translation(rows: Rows) -> Verdict:
    """Judge that focal loss has the smallest ECE and the highest BLEU in translation (mukhoti section 5.2).

    Rule: on each network, test ECE of cross-entropy and of label smoothing minus focal loss's, and focal loss's test
    BLEU minus theirs, over the settings that both have, or over each loss's configurations; at least three (of one
    configuration each at one setting, over their replicates). Holds where every 95 % interval lies above 0, does not
    hold where one lies below even at 95 % for all together (Bonferroni), else undecided.
    """
    test = of_split(trained_to_the_end(rows), "test")
    errors = [{**row, LOST_BLEU: -bleu} for row in test if (bleu := number(row, "bleu")) is not None]
    others = losses(("cross_entropy", "label_smoothing"))
    found = differences(errors, "ece", is_loss("focal"), others, {"BLEU": LOST_BLEU})
    missing = "focal and cross_entropy or label_smoothing are needed on one network, with BLEU"
    what = "test ECE minus focal loss's, and its BLEU minus theirs"
    return verdict_of("focal_translates_best", found, what, missing=missing, form=".4g")


def _flsd_53(row: Row) -> bool:
    named = row["config_loss_name"] == "focal_sample_dependent"
    return named and row.get("config_loss_variant") in (None, "flsd_53")


def _of_score(score: str) -> Ours:
    return lambda row: row.get("config_loss_score") == score


def _tuned(rows: Rows, ours: Ours, others: Mapping[str, Ours]) -> dict[str, Estimate]:
    """Return each other loss's test ECE minus ours by network, both tuned by validation NLL."""
    found = {}
    for network, held in by_network(rows).items():
        mine = [row for row in held if ours(row)]
        for name, is_other in others.items():
            theirs = [row for row in held if is_other(row)]
            if mine and theirs:
                found[f"{network}, {name}"] = tuned_difference(theirs, mine, "nll", "ece")
    return found


CLAIMS = (
    Claim(
        "flsd_beats_baselines",
        "mukhoti",
        "FLSD-53 has a smaller ECE than cross-entropy, label smoothing, Brier and MMCE, before and after temperature "
        "scaling.",
        judge_flsd,
    ),
    Claim(
        "au_beats_every_baseline",
        "selective",
        "The AU loss has a smaller ECE than every other loss, on each network.",
        judge_au,
    ),
    Claim(
        "focal_translates_best",
        "mukhoti",
        "In translation, focal loss has a smaller ECE and a higher BLEU than cross-entropy and label smoothing.",
        judge_translation,
    ),
    Claim(
        "margin_is_the_best_score",
        "selective",
        "The softmax margin is the AU loss's best confidence score.",
        judge_scores,
    ),
)
