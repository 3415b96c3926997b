"""How far metrics, post-hoc methods and corruptions are from independent packages: oracle, n, worst difference.

`python -m tests.benchmarks.bench_oracles [--cases 20]` prints a table in Markdown, and which packages are missing. Of
these, relplot, mapie, torchcp, uncertainty-calibration and imagecorruptions are not among the project's extras, and
install apart: `pip install --no-deps --target DIR relplot deprecation mapie torchcp uncertainty-calibration` and, for
imagecorruptions, as tests/trainables/datasets/corruptions/test_imagecorruptions.py says; then PYTHONPATH=$PWD:DIR.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch

from tests.trainables.metrics import test_kernel
from tests.trainables.posthoc.test_temperatures_at_once import by_brent
from tests.trainables.predictions import drawn_predictions
from tests.trainables.reference_metrics import random_case
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.debiased import debiased_squared_error
from trainables.metrics.further import METRICS
from trainables.metrics.isotonic import decomposition
from trainables.metrics.kernel import squared_kernel_calibration_error
from trainables.metrics.out_of_distribution import aupr, detection_auroc, false_positive_rate
from trainables.metrics.refinement import FOLDS, folds_of, refinement
from trainables.metrics.smooth import smooth_ece
from trainables.models.torchvision_compat import register_missing_operators
from trainables.posthoc import fit
from trainables.posthoc.conformal import scores

Rows = Iterator[tuple[str, str, float]]
"""(measure, oracle, difference) of one case."""


def package(name: str) -> object:
    """Import an oracle; some of them want torchvision's operators."""
    register_missing_operators()
    return importlib.import_module(name)


def of_relplot(seed: int) -> Rows:
    """Its bisection is as coarse as 2^−10."""
    relplot = package("relplot")
    probabilities, targets = random_case(seed, samples=1000)
    confidence, correct = probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)
    yield "smooth ECE", "relplot", smooth_ece(probabilities, targets) - float(relplot.smECE(confidence, correct))


def of_uncertainty_calibration(seed: int) -> Rows:
    """Compare on a grid of confidences, where the bins of both are one each."""
    utils = package("calibration.utils")
    rng = np.random.default_rng(seed)
    confidence = rng.choice(np.linspace(0.05, 0.95, 10), 500)
    outcome = (rng.random(500) < confidence**1.3).astype(float)
    binned = utils.bin(list(zip(confidence, outcome, strict=True)), utils.get_discrete_bins(confidence))
    ours = debiased_squared_error(confidence, outcome, 10, "equal_width")
    yield "debiased squared L2 error", "uncertainty-calibration", ours - float(utils.unbiased_square_ce(binned))


def of_loops(seed: int) -> Rows:
    """Compare with plain loops where no package computes it."""
    probabilities, targets = random_case(seed)
    found = squared_kernel_calibration_error(probabilities, targets)
    yield "SKCE", "a double loop", found - test_kernel.naive(probabilities, targets)


def of_scikit_learn(seed: int) -> Rows:
    """Areas, isotonic regression, and matrix and Dirichlet scaling as logistic regression."""
    from sklearn.isotonic import IsotonicRegression
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import average_precision_score, roc_auc_score

    probabilities, targets = random_case(seed, samples=300)
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == targets
    if 0 < correct.sum() < len(correct):
        found = METRICS.build("confidence_auroc", probabilities, targets)
        yield "AUROC of confidence", "scikit-learn", found - roc_auc_score(correct, confidence)
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(1, 1, 120), rng.normal(0, 1, 80)
    labels, score = np.repeat([0, 1], [120, 80]), -np.concatenate([inside, outside])
    yield "AUROC of detection", "scikit-learn", detection_auroc(inside, outside) - roc_auc_score(labels, score)
    yield "AUPR of detection", "scikit-learn", aupr(inside, outside) - average_precision_score(labels, score)
    fitted = IsotonicRegression().fit(confidence, correct).predict(confidence)
    parts = decomposition(confidence, correct.astype(float))
    yield "CORP, score − MCB", "scikit-learn", parts.score - parts.miscalibration - ((fitted - correct) ** 2).mean()
    logits, targets = drawn_predictions(seed, 2000, 3, 2)
    regression = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(logits.astype(np.float64), targets)
    calibrator = fit("matrix", logits, targets, off_diagonal=0.0, intercept=0.0, max_iterations=500)
    wanted = regression.predict_proba(logits.astype(np.float64))
    yield "matrix scaling, probabilities", "scikit-learn", np.abs(calibrator(logits) - wanted).max()


def of_probmetrics(seed: int) -> Rows:
    """Refinement, and structured matrix scaling, which it computes in float32."""
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
    yield "refinement NLL", "probmetrics", found.nll - measured["nll"]
    yield "refinement Brier score", "probmetrics", found.brier - measured["brier"]
    sms = calibrators.get_calibrator("sms")
    sms.fit(softmax64(logits), targets)
    ours = evaluate_probabilities(fit("structured_matrix", logits, targets)(logits), targets)["nll"]
    theirs = evaluate_probabilities(sms.predict_proba(softmax64(logits)).astype(np.float64), targets)["nll"]
    yield "structured matrix scaling, NLL", "probmetrics", ours - theirs


def of_scipy(seed: int) -> Rows:
    """Temperature by Brent's method, vector scaling by BFGS."""
    from scipy.optimize import minimize

    logits, targets = drawn_predictions(seed, 300, 4, 3)
    found = fit("temperature", logits, targets).parameters["temperature"]
    yield "temperature, relative", "scipy", found / by_brent(logits.astype(np.float64), targets) - 1

    def loss(flat: np.ndarray) -> float:
        return evaluate_probabilities(softmax64(logits * flat[:4] + flat[4:]), targets)["nll"]

    best = minimize(loss, np.r_[np.ones(4), np.zeros(4)], method="BFGS", options={"gtol": 1e-6})
    ours = evaluate_probabilities(fit("vector", logits, targets)(logits), targets)["nll"]
    yield "vector scaling, NLL", "scipy", ours - best.fun


def of_netcal(seed: int) -> Rows:
    """Isotonic regression and histogram binning of each class."""
    binning = package("netcal.binning")
    logits, targets = drawn_predictions(seed, 2000, 3, 1)
    for method, oracle, options in (
        ("isotonic", binning.IsotonicRegression(), {}),
        ("histogram_binning", binning.HistogramBinning(10), {"bins": 10}),
    ):
        oracle.fit(softmax64(logits), targets)
        found = fit(method, logits, targets, mix=False, **options)(logits)
        yield method.replace("_", " "), "netcal", np.abs(found - oracle.transform(softmax64(logits))).max()


def of_torch_uncertainty(seed: int) -> Rows:
    """FPR95, Dirichlet calibration and conformal scores."""
    fpr = package("torch_uncertainty.metrics.classification.fpr")
    post = package("torch_uncertainty.post_processing.calibration.dirichlet_scaler")
    conformal = package("torch_uncertainty.post_processing.conformal")
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(1, 1, 120), rng.normal(0, 1, 80)
    metric = fpr.FPR95(pos_label=1)
    metric.update(torch.from_numpy(-np.concatenate([inside, outside])), torch.tensor([0] * 120 + [1] * 80))
    yield "FPR95 of detection", "torch-uncertainty", false_positive_rate(inside, outside) - float(metric.compute())
    probabilities, _ = random_case(seed, samples=40)
    given, none = torch.from_numpy(probabilities), np.zeros(40)
    aps = conformal.ConformalClsAPS(alpha=0.1, model=None, randomized=False, enable_ts=False)
    raps = conformal.ConformalClsRAPS(alpha=0.1, model=None, randomized=False, penalty=0.2, regularization_rank=2)
    for name, oracle, options in (("aps", aps, {}), ("raps", raps, {"penalty": 0.2, "free_ranks": 2})):
        wanted = oracle._calculate_all_labels(given).numpy()
        yield (
            f"{name.upper()} scores",
            "torch-uncertainty",
            np.abs(scores(name, probabilities, none, **options) - wanted).max(),
        )
    if seed < 3:
        logits, targets = drawn_predictions(seed, 600, 4, 2)
        data = torch.utils.data.TensorDataset(torch.from_numpy(logits), torch.from_numpy(targets))
        scaler = post.DirichletScaler(
            num_classes=4, model=torch.nn.Identity(), lambda_reg=0.5, mu_reg=0.2, max_iter=2000
        )
        scaler.fit(torch.utils.data.DataLoader(data, batch_size=600), progress=False)
        wanted = scaler._scale(torch.from_numpy(logits)).softmax(1).detach().numpy()
        found = fit("dirichlet", logits, targets, off_diagonal=0.5, intercept=0.2, max_iterations=500)(logits)
        yield "Dirichlet calibration, probabilities", "torch-uncertainty", np.abs(found - wanted).max()


def of_torchcp(seed: int) -> Rows:
    """Scores of THR, and of APS and RAPS without randomness."""
    package("torchcp")
    score = package("torchcp.classification.score")
    probabilities, _ = random_case(seed, samples=40)
    given, none = torch.from_numpy(probabilities), np.zeros(40)
    for name, oracle, options in (
        ("thr", score.LAC(score_type="identity"), {}),
        ("aps", score.APS(randomized=False, score_type="identity"), {}),
        (
            "raps",
            score.RAPS(randomized=False, score_type="identity", penalty=0.2, kreg=2),
            {"penalty": 0.2, "free_ranks": 2},
        ),
    ):
        wanted = oracle(given).numpy()
        yield f"{name.upper()} scores", "torchcp", np.abs(scores(name, probabilities, none, **options) - wanted).max()


def of_mapie(seed: int) -> Rows:
    """The sets of THR: the share of memberships that differ."""
    from tests.trainables.posthoc.test_conformal import thr_sets_of_both

    package("mapie.classification")
    found, wanted = thr_sets_of_both(seed)
    yield "sets of THR, share that differs", "mapie", float(np.mean(found != wanted))


def of_imagecorruptions(seed: int) -> Rows:
    """Every kind at every severity, in levels of 255."""
    from tests.trainables.datasets.corruptions.test_imagecorruptions import differences, loaded

    if seed < 3:
        with loaded() as oracle:
            for kind, worst in differences(oracle, seed):
                yield f"{kind.replace('_', ' ')}, levels of 255", "imagecorruptions", float(worst)


COMPARISONS: dict[str, Callable[[int], Rows]] = {
    "relplot": of_relplot,
    "uncertainty-calibration": of_uncertainty_calibration,
    "": of_loops,
    "scikit-learn": of_scikit_learn,
    "scipy": of_scipy,
    "probmetrics": of_probmetrics,
    "netcal": of_netcal,
    "torch-uncertainty": of_torch_uncertainty,
    "torchcp": of_torchcp,
    "mapie": of_mapie,
    "imagecorruptions": of_imagecorruptions,
}
"""The package as pip names it → its comparisons."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20)
    cases = parser.parse_args().cases
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| measure | oracle | n | worst difference |\n|---|---|---|---|")
    for name, compare in COMPARISONS.items():
        found: dict[tuple[str, str], list[float]] = {}
        try:
            for seed in range(cases):
                for measure, oracle, difference in compare(seed):
                    found.setdefault((measure, oracle), []).append(abs(float(difference)))
        except ImportError as error:
            print(f"| – | {name} | 0 | cannot be imported: {error} |", flush=True)
            continue
        try:
            release = f" {version(name)}" if name else ""
        except PackageNotFoundError:
            release = ""
        for (measure, oracle), differences in found.items():
            print(f"| {measure} | {oracle}{release} | {len(differences)} | {max(differences):.1e} |", flush=True)


if __name__ == "__main__":
    main()
