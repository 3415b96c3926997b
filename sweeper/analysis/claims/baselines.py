"""Claims that one loss calibrates better than others on the same network: FLSD-53, and the AU loss with its scores."""

from __future__ import annotations

from sweeper.analysis.claims.base import Claim, Verdict
from sweeper.analysis.claims.networks import Ours, by_network, differences, losses, verdict_of
from sweeper.analysis.claims.numbers import number, of_split, trained_to_the_end, trial_mean
from sweeper.text.cells import Row, Rows, by_trial

LOST_BLEU = "lost_bleu"
"""BLEU with its sign changed, so that less is better as with calibration errors."""

AFTER = "posthoc_temperature_ece"
"""ECE after temperature scaling, as mukhoti's Table 1 prints it beside the plain one."""


def judge_flsd(rows: Rows) -> Verdict:
    """Judge that FLSD-53 calibrates better than the baselines of mukhoti's Table 1, before and after temperature.

    Rule: on each network, test ECE of cross-entropy, Brier, MMCE and label smoothing (α .05) minus FLSD-53's, before
    and after temperature scaling; Welch's intervals over replicates at 95 % for all of them together (Bonferroni).
    Holds where every interval lies above 0, does not hold where one lies below, else undecided.
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
    return verdict_of("flsd_beats_baselines", found, what, "networks", missing=missing, form=".4f")


def judge_au(rows: Rows) -> Verdict:
    """Judge that the AU loss calibrates better than every baseline, on each network.

    Rule: on each network, of selective_risk the configuration with the smallest mean validation NLL, as the paper
    selects it (App. E), and likewise of each other loss; test ECE of each of these minus selective_risk's, Welch's
    intervals over replicates at 95 % for all of them together (Bonferroni). Holds where every interval lies above 0,
    does not hold where one lies below, else undecided.
    """
    held = trained_to_the_end(rows)
    chosen = {trial for trial, _ in _selected(of_split(held, "val")).values()}
    test = [row for row in of_split(held, "test") if row["trial"] in chosen]
    names = sorted({str(row["config_loss_name"]) for row in test} - {"selective_risk"})
    found = differences(test, "ece", losses(("selective_risk",))["selective_risk"], losses(names))
    missing = "selective_risk and another loss are needed on one network"
    what = "test ECE minus the AU loss's, hyperparameters chosen on validation data"
    return verdict_of("au_beats_every_baseline", found, what, "networks", missing=missing, form=".4f")


def judge_scores(rows: Rows) -> Verdict:
    """Judge that the margin is the AU loss's best confidence score, on each network.

    Rule: on each network, of every score the configuration with the smallest mean validation NLL; test ECE of each
    other score minus the margin's, Welch's intervals over replicates at 95 % for all of them together (Bonferroni).
    Holds where every interval lies above 0, does not hold where one lies below, else undecided. The paper excepts
    PreResNet-56 on CIFAR-100 and Swin-Tiny on Tiny-ImageNet, which the details tell apart.
    """
    held = [row for row in trained_to_the_end(rows) if row["config_loss_name"] == "selective_risk"]
    chosen = {trial for trial, _ in _selected(of_split(held, "val"), "config_loss_score").values()}
    test = [row for row in of_split(held, "test") if row["trial"] in chosen]
    scores = sorted({str(row.get("config_loss_score")) for row in test} - {"margin"})
    found = differences(test, "ece", _of_score("margin"), {score: _of_score(score) for score in scores})
    missing = "selective_risk with the margin and with another score is needed on one network"
    what = "test ECE minus the margin's"
    return verdict_of("margin_is_the_best_score", found, what, "networks", missing=missing, form=".4f")


def judge_translation(rows: Rows) -> Verdict:
    """Judge that focal loss has the smallest ECE and the highest BLEU in translation (mukhoti section 5.2).

    Rule: on each network, test ECE of cross-entropy and of label smoothing minus focal loss's, and focal loss's test
    BLEU minus theirs; Welch's intervals over replicates at 95 % for all of them together (Bonferroni). Holds where
    every interval lies above 0, does not hold where one lies below, else undecided, as with one replicate each.
    """
    test = of_split(trained_to_the_end(rows), "test")
    errors = [{**row, LOST_BLEU: -bleu} for row in test if (bleu := number(row, "bleu")) is not None]
    others = losses(("cross_entropy", "label_smoothing"))
    found = differences(errors, "ece", losses(("focal",))["focal"], others, {"BLEU": LOST_BLEU})
    missing = "focal and cross_entropy or label_smoothing are needed on one network, with BLEU"
    what = "test ECE minus focal loss's, and its BLEU minus theirs"
    return verdict_of("focal_translates_best", found, what, "networks", missing=missing, form=".4g")


def _flsd_53(row: Row) -> bool:
    named = row["config_loss_name"] == "focal_sample_dependent"
    return named and row.get("config_loss_variant") in (None, "flsd_53")


def _of_score(score: str) -> Ours:
    return lambda row: row.get("config_loss_score") == score


def _selected(val: Rows, column: str = "config_loss_name") -> dict[tuple[str, object], tuple[str, float]]:
    """Return by network and value of a column the trial with the smallest mean validation NLL, and that."""
    found: dict[tuple[str, object], tuple[str, float]] = {}
    for network, held in by_network(val).items():
        for trial, rows in by_trial(held).items():
            key, nll = (network, rows[0].get(column)), trial_mean(rows, "nll")
            if nll is not None and nll < found.get(key, ("", float("inf")))[1]:
                found[key] = (trial, nll)
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
