"""Metrics and refinement beside torchmetrics, netcal, scikit-learn, torch-uncertainty, relplot and others."""

import numpy as np
import torch

from tests.benchmarks.oracles import Rows, package
from tests.trainables import reference_metrics
from tests.trainables.metrics import test_debiased, test_kernel
from tests.trainables.predictions import drawn_predictions
from tests.trainables.reference_metrics import random_case
from trainables.metrics import evaluate_probabilities
from trainables.metrics.base import METRICS
from trainables.metrics.binning import calibration_error
from trainables.metrics.debiased import debiased_squared_error, t_cal_statistic
from trainables.metrics.isotonic import decomposition
from trainables.metrics.kernel import smooth_ece, squared_kernel_calibration_error
from trainables.metrics.out_of_distribution import aupr, detection_auroc, false_positive_rate
from trainables.metrics.refinement import FOLDS, folds_of, refinement
from trainables.metrics.variational import dual_gain


def detection(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of samples from inside and outside the distribution."""
    rng = np.random.default_rng(seed)
    return rng.normal(1, 1, 120), rng.normal(0, 1, 80)


def of_loops(seed: int) -> Rows:
    """Compare with plain loops where no package computes it, or not by our convention."""
    probabilities, targets = random_case(seed)
    found = evaluate_probabilities(probabilities, targets, 15)
    for name, wanted in reference_metrics.evaluate(probabilities, targets, 15).items():
        if not np.isnan(wanted):
            yield f"`{name}`", found[name] - wanted
    confidence, correct = probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)
    wanted = np.sqrt(max(0.0, test_debiased.naive(confidence, correct, 15)))
    yield "`debiased_l2`", METRICS.build("debiased_l2", probabilities, targets) - wanted
    classes = range(probabilities.shape[1])
    each = [test_debiased.naive(probabilities[:, k], (targets == k).astype(float), 15) for k in classes]
    found_of_classes = METRICS.build("cw_debiased_l2", probabilities, targets)
    yield "`cw_debiased_l2`", found_of_classes - np.sqrt(max(0.0, float(np.mean(each))))
    if seed < 3:
        rng = np.random.default_rng(seed + 1000)
        drawn = [calibration_error(confidence, (rng.random(len(confidence)) < confidence) * 1.0) for _ in range(5000)]
        bias = METRICS.build("ece_bias", probabilities, targets, repetitions=5000)
        yield "`ece_bias`, relative (both simulate 5,000 times)", bias / np.mean(drawn) - 1
    yield (
        "`cutoff_error`",
        METRICS.build("cutoff_error", probabilities, targets) - test_debiased.cutoff(confidence, correct),
    )
    order = np.argsort(confidence, kind="stable")
    found_t_cal = t_cal_statistic(confidence[order])(correct[order][None])[0]
    yield "T-Cal's statistic", found_t_cal - test_debiased.t_cal(confidence, correct)
    yield "SKCE", squared_kernel_calibration_error(probabilities, targets) - test_kernel.naive(probabilities, targets)


def of_scipy(seed: int) -> Rows:
    """p of the kernel test, by scipy's distances and t-test."""
    from scipy.spatial.distance import cdist, pdist
    from scipy.stats import ttest_1samp

    probabilities, targets = random_case(seed, samples=205, classes=4)
    width, residual = np.median(pdist(probabilities)), np.eye(4)[targets] - probabilities
    estimates = []
    for block in np.random.default_rng(0).permutation(205)[:200].reshape(20, 10):
        kernel = np.exp(-cdist(probabilities[block], probabilities[block]) / width)
        terms = kernel * (residual[block] @ residual[block].T)
        estimates.append(terms.sum() - np.trace(terms))
    wanted = ttest_1samp(estimates, 0.0, alternative="greater").pvalue
    yield "`skce_p`", METRICS.build("skce_p", probabilities, targets) - float(wanted)


def of_torchmetrics(seed: int) -> Rows:
    """Binned errors under three norms; it computes in float32."""
    functional = package("torchmetrics.functional.classification")
    probabilities, targets = random_case(seed, samples=200)
    confidence, correct = probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)
    given = (torch.as_tensor(probabilities), torch.as_tensor(targets), probabilities.shape[1], 15)
    for measure, norm, ours in (("ECE", "l1", "mean"), ("MCE", "max", "maximum"), ("RMSCE", "l2", "root_mean_square")):
        wanted = float(functional.multiclass_calibration_error(*given, norm))
        yield measure, calibration_error(confidence, correct, 15, norm=ours) - wanted


def of_netcal(seed: int) -> Rows:
    """ECE and MCE."""
    metrics = package("netcal.metrics")
    probabilities, targets = random_case(seed, samples=200, classes=5)
    found = evaluate_probabilities(probabilities, targets, 15)
    yield "ECE", found["ece"] - metrics.ECE(15).measure(probabilities, targets)
    yield "MCE", found["mce"] - metrics.MCE(15).measure(probabilities, targets)


def of_scikit_learn(seed: int) -> Rows:
    """Scores, areas and isotonic regression."""
    from sklearn.isotonic import IsotonicRegression
    from sklearn.metrics import average_precision_score, balanced_accuracy_score, log_loss, roc_auc_score

    probabilities, targets = random_case(seed, samples=300, classes=8)
    found = evaluate_probabilities(probabilities, targets)
    yield "NLL", found["nll"] - log_loss(targets, probabilities, labels=range(8))
    balanced = balanced_accuracy_score(targets, probabilities.argmax(1))
    yield "balanced accuracy", found["balanced_accuracy"] - balanced
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == targets
    auroc = METRICS.build("confidence_auroc", probabilities, targets)
    yield "AUROC of confidence", auroc - roc_auc_score(correct, confidence)
    fitted = IsotonicRegression().fit(confidence, correct).predict(confidence)
    parts = decomposition(confidence, correct.astype(float))
    yield "CORP, score − MCB", parts.score - parts.miscalibration - ((fitted - correct) ** 2).mean()
    inside, outside = detection(seed)
    labels, score = np.repeat([0, 1], [120, 80]), -np.concatenate([inside, outside])
    yield "AUROC of detection", detection_auroc(inside, outside) - roc_auc_score(labels, score)
    yield "AUPR of detection", aupr(inside, outside) - average_precision_score(labels, score)


def of_torch_uncertainty(seed: int) -> Rows:
    """Brier score, equal-mass error, AURC, AUGRC and FPR95; areas in float32.

    It integrates by trapezoids from coverage 1/n on and divides by what that leaves of [0, 1]: AUGRC's first trapezoid
    is put back, and for AURC, a mean over coverages as its authors define it, its risks are averaged.
    """
    metrics = package("torch_uncertainty.metrics.classification")
    adaptive = package("torch_uncertainty.metrics.classification.calibration.adaptive_calibration_error")
    samples = 200
    probabilities, targets = random_case(seed, samples=samples, classes=5)
    given, labels = torch.as_tensor(probabilities), torch.as_tensor(targets)
    found = evaluate_probabilities(probabilities, targets, 15)
    brier, area, generalised = metrics.BrierScore(5), metrics.AURC(), metrics.AUGRC()
    for oracle in (brier, area, generalised):
        oracle.update(given, labels)
    yield "Brier score", found["brier"] - float(brier.compute())
    correct = (probabilities.argmax(1) == targets).astype(float)
    mass = adaptive._ace_compute(torch.as_tensor(probabilities.max(1)), torch.as_tensor(correct), 15)
    yield "AdaECE", found["ada_ece"] - float(mass)
    yield "AURC", found["aurc"] - float(area.partial_compute().mean())
    first = float(generalised.partial_compute()[0]) / samples**2 / 2
    whole = float(generalised.compute()) * (1 - 1 / samples) + first
    yield "AUGRC", METRICS.build("augrc", probabilities, targets) - whole
    risk = metrics.RiskAtxCov(0.8)
    risk.update(given, labels)
    yield "risk at coverage .8", METRICS.build("risk_at_coverage", probabilities, targets) - float(risk.compute())
    inside, outside = detection(seed)
    fpr = metrics.FPR95(pos_label=1)
    fpr.update(torch.from_numpy(-np.concatenate([inside, outside])), torch.tensor([0] * 120 + [1] * 80))
    yield "FPR95 of detection", false_positive_rate(inside, outside) - float(fpr.compute())


def of_relplot(seed: int) -> Rows:
    """Its bisection is as coarse as 2^−10."""
    relplot = package("relplot")
    probabilities, targets = random_case(seed, samples=1000)
    confidence, correct = probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)
    yield "smooth ECE", smooth_ece(probabilities, targets) - float(relplot.smECE(confidence, correct))
    each = [relplot.smECE(column, (targets == k) * 1.0) for k, column in enumerate(probabilities.T)]
    yield "smooth ECE of classes", METRICS.build("cw_smooth_ece", probabilities, targets) - float(np.mean(each))


def of_uncertainty_calibration(seed: int) -> Rows:
    """Compare on a grid of confidences, where the bins of both are one each."""
    utils = package("calibration.utils")
    rng = np.random.default_rng(seed)
    confidence = rng.choice(np.linspace(0.05, 0.95, 10), 500)
    outcome = (rng.random(500) < confidence**1.3).astype(float)
    binned = utils.bin(list(zip(confidence, outcome, strict=True)), utils.get_discrete_bins(confidence))
    ours = debiased_squared_error(confidence, outcome, 10, "equal_width")
    yield "debiased squared L2 error", ours - float(utils.unbiased_square_ce(binned))


def of_probmetrics(seed: int) -> Rows:
    """Refinement."""
    calibrators, distributions = package("probmetrics.calibrators"), package("probmetrics.distributions")
    logits, targets = drawn_predictions(seed, 500, 10, 3)
    fold, mixed = folds_of(targets), np.empty(logits.shape)
    given, labels = torch.from_numpy(logits.astype(np.float64)), torch.from_numpy(targets)
    for each in range(FOLDS):
        calibrator = calibrators.get_calibrator("ts-mix")
        calibrator.fit_torch(distributions.CategoricalLogits(given[fold != each]), labels[fold != each])
        predicted = calibrator.predict_proba_torch(distributions.CategoricalLogits(given[fold == each]))
        mixed[fold == each] = predicted.get_probs().numpy()
    measured, found = evaluate_probabilities(mixed, targets), refinement(logits, targets)
    yield "refinement NLL", found.nll - measured["nll"]
    yield "refinement Brier score", found.brier - measured["brier"]
    yield from variational(seed)


def variational(seed: int) -> Rows:
    """Variational errors by probmetrics' losses, of the same folds' isotonic regressions (scikit-learn's).

    Its over- and underconfidence are ours where the top confidence is above 1/2, as with two classes. Of these it takes
    both columns, which doubles the loss: with one (its default) release 1.3.0 subtracts predictions of two columns.
    """
    from sklearn.isotonic import IsotonicRegression

    losses, distributions = package("probmetrics.metrics"), package("probmetrics.distributions")
    probabilities, targets = random_case(seed, samples=400, classes=2)
    confidence, correct = probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)
    fold, fitted = np.arange(400) % FOLDS, np.empty(400)
    for each in range(FOLDS):
        isotonic = IsotonicRegression(out_of_bounds="clip").fit(confidence[fold != each], correct[fold != each])
        fitted[fold == each] = isotonic.predict(confidence[fold == each])
    given, moved = (distributions.CategoricalProbs(torch.from_numpy(np.c_[1 - c, c])) for c in (confidence, fitted))
    outcome, plain = (
        distributions.CategoricalDirac(torch.from_numpy(correct).long(), 2),
        losses.ProperLpLoss(1.0, binary_as_multiclass=True),
    )
    for name, loss in (
        ("variational_error", plain),
        ("overconfidence", losses.TopClassLoss(losses.OverConfidenceLoss(plain))),
        ("underconfidence", losses.TopClassLoss(losses.UnderConfidenceLoss(plain))),
    ):
        wanted = -float(loss._compute_mean(outcome, moved, f_x=given)) / 2
        yield f"`{name}`", METRICS.build(name, probabilities, targets) - wanted
    probabilities, targets = random_case(seed, samples=200, classes=5)
    recalibrated, _ = random_case(seed + 1, samples=200, classes=5)
    f, g = (distributions.CategoricalProbs(torch.from_numpy(each)) for each in (probabilities, recalibrated))
    for norm in (1.0, 2.0, 3.0):
        truth = distributions.CategoricalDirac(torch.from_numpy(targets), 5)
        wanted = -float(losses.ProperLpLoss(norm)._compute_mean(truth, g, f_x=f))
        found = dual_gain(probabilities, recalibrated, np.eye(5)[targets], norm).mean()
        yield f"L{norm:g} loss of `variational_lp`", found - wanted
