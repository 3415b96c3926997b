"""Post-hoc methods beside scipy, scikit-learn, netcal, torch-uncertainty and probmetrics.

Methods without a closed form are compared by the NLL that they reach and by their probabilities: at the minimum an
error in these is about the root of that in the NLL.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
from scipy.optimize import brentq

from tests.benchmarks.oracles import Rows, package
from tests.trainables.posthoc import reference_grid, test_metacal
from tests.trainables.predictions import drawn_predictions
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.base import log_softmax64
from trainables.posthoc import fit
from trainables.posthoc.focal_temperature import focal_grid
from trainables.posthoc.one_vs_rest import levels_of
from trainables.posthoc.temperature import BOUND_RATIO, logit_scale

EXACT = {"off_diagonal": 0.0, "intercept": 0.0, "max_iterations": 500}
ODIR = {"off_diagonal": 0.5, "intercept": 0.2, "max_iterations": 500}


def nll(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean NLL."""
    rows = probabilities.astype(np.float64)
    return evaluate_probabilities(rows / rows.sum(1, keepdims=True), targets)["nll"]


def by_brent(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the T at which the derivative of the NLL by 1/T is 0, or the bound on its side, by Brent's method."""
    scale = logit_scale(logits)
    low, high = math.log(scale / BOUND_RATIO), math.log(scale * BOUND_RATIO)
    margins = logits - logits[np.arange(len(targets)), targets][:, None]

    def slope(log_t: float) -> float:
        return float((softmax64(margins / math.exp(log_t)) * margins).sum(1).mean()) / scale

    if slope(low) <= 0:
        return math.exp(low)
    return math.exp(high) if slope(high) >= 0 else math.exp(brentq(slope, low, high, xtol=1e-13, rtol=1e-13))


def differences(
    measure: str, found: np.ndarray, wanted: np.ndarray, targets: np.ndarray
) -> Iterable[tuple[str, float]]:
    """Compare two sets of probabilities."""
    yield f"{measure}: NLL", nll(found, targets) - nll(wanted, targets)
    yield f"{measure}: probabilities", float(np.abs(found - wanted).max())


def of_loops(seed: int) -> Rows:
    """Focal map, its grid with a temperature, and MetaCal's rules, by plain loops."""
    logits, targets = drawn_predictions(seed, 200, 5, 2)
    for gamma in (0.5, 3.0):
        found = fit("focal_map", logits, targets, gamma=gamma)(logits)
        yield "focal map: probabilities", float(np.abs(found - reference_grid.map_cell(logits, gamma, 1.0)).max())
    gammas, temperatures = np.array([0.0, 1.0, 5.0]), np.linspace(0.5, 5.0, 90)
    grid = focal_grid(logits, targets, gammas, temperatures)
    ece, loss = reference_grid.double_loop(logits, targets, gammas, temperatures)
    yield "focal temperature, grid of 270 cells: ECE", float(np.abs(grid.ada_ece - ece).max())
    yield "focal temperature, grid of 270 cells: NLL", float(np.abs(grid.nll - loss).max())
    logits, targets = test_metacal.logits_and_targets(seed)
    threshold, temperature = test_metacal.mis_by_definition(logits, targets, seed)
    found = fit("metacal_mis", logits, targets, alpha=0.1, seed=seed).parameters
    yield "MetaCal, miscoverage: threshold", found["threshold"] - threshold
    yield "MetaCal, miscoverage: temperature", found["temperature"] - temperature
    ours, wanted = test_metacal.accuracy_threshold_by_definition(*test_metacal.logits_and_targets(seed, samples=407))
    yield "MetaCal, accuracy: threshold", ours - wanted


def of_scipy(seed: int) -> Rows:
    """Temperature by Brent's method, vector scaling by BFGS, ensemble temperature by SLSQP over the simplex."""
    from scipy.optimize import minimize

    logits, targets = drawn_predictions(seed, 300, 4, 3)
    found = fit("temperature", logits, targets).parameters["temperature"]
    yield "temperature, relative", found / by_brent(logits.astype(np.float64), targets) - 1

    def scaled(flat: np.ndarray) -> np.ndarray:
        return softmax64(logits * flat[:4] + flat[4:])

    start = np.r_[np.ones(4), np.zeros(4)]
    best = minimize(lambda flat: nll(scaled(flat), targets), start, method="BFGS", options={"gtol": 1e-6})
    yield from differences("vector scaling", fit("vector", logits, targets)(logits), scaled(best.x), targets)


def of_scikit_learn(seed: int) -> Rows:
    """Matrix and Dirichlet scaling without penalties are logistic regression."""
    from sklearn.linear_model import LogisticRegression

    logits, targets = drawn_predictions(seed, 2000, 3, 2)
    for method, features in (("matrix", logits.astype(np.float64)), ("dirichlet", log_softmax64(logits))):
        regression = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(features, targets)
        found = fit(method, logits, targets, **EXACT)(logits)
        yield from differences(f"{method} scaling", found, regression.predict_proba(features), targets)


def of_netcal(seed: int) -> Rows:
    """Isotonic regression and histogram binning of each class, temperature and vector scaling.

    It is given probabilities and scales their logarithms, so these are the logits of ours.
    """
    binning, scaling = package("netcal.binning"), package("netcal.scaling")
    logits, targets = drawn_predictions(seed, 2000, 3, 1)
    probabilities, given = softmax64(logits), log_softmax64(logits)
    for method, oracle, options in (
        ("isotonic", binning.IsotonicRegression(), {"mix": False}),
        ("histogram_binning", binning.HistogramBinning(10), {"mix": False, "bins": 10}),
    ):
        oracle.fit(probabilities, targets)
        found = fit(method, logits, targets, **options)(logits)
        yield f"{method.replace('_', ' ')}: probabilities", np.abs(found - oracle.transform(probabilities)).max()
    if seed < 5:
        for method, oracle in (
            ("temperature", scaling.TemperatureScaling()),
            ("vector", scaling.LogisticCalibration()),
        ):
            oracle.fit(probabilities, targets, random_state=seed)
            found = fit(method, given, targets)(given)
            yield from differences(f"{method} scaling", found, oracle.transform(probabilities), targets)


def of_torch_uncertainty(seed: int) -> Rows:
    """Temperature, matrix and Dirichlet scaling, in float32; its vector scaling has no intercept."""
    if seed >= 5:
        return
    calibration = package("torch_uncertainty.post_processing.calibration")
    logits, targets = drawn_predictions(seed, 600, 4, 2)
    given, labels = torch.from_numpy(logits), torch.from_numpy(targets)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(given, labels), batch_size=600)
    model = torch.nn.Identity()
    penalties = {"lambda_reg": ODIR["off_diagonal"], "mu_reg": ODIR["intercept"]}
    for method, scaler, options in (
        ("temperature", calibration.TemperatureScaler(model=model, max_iter=2000), {}),
        ("matrix", calibration.MatrixScaler(num_classes=4, model=model, max_iter=2000), EXACT),
        ("dirichlet", calibration.DirichletScaler(num_classes=4, model=model, max_iter=2000, **penalties), ODIR),
    ):
        scaler.fit(loader, progress=False)
        wanted = scaler._scale(given).softmax(1).detach().numpy()
        yield from differences(f"{method} scaling", fit(method, logits, targets, **options)(logits), wanted, targets)


def of_probmetrics(seed: int) -> Rows:
    """Temperature, vector, matrix, structured matrix and ensemble temperature scaling.

    The first and the last in float64, the others in float32. Ensemble temperature scaling fits its T by the objective
    of the weights, ours by the NLL: equal for the NLL. Logarithms of probabilities are scaled, as in `of_netcal`.
    """
    if seed >= 5:
        return
    calibrators = package("probmetrics.calibrators")
    logits, targets = drawn_predictions(seed, 600, 4, 2)
    probabilities, given = softmax64(logits), log_softmax64(logits)
    for method, oracle, options in (
        ("temperature", calibrators.get_calibrator("temp-scaling"), {}),
        ("vector", calibrators.VectorScalingCalibrator(), {}),
        ("matrix", calibrators.MatrixScalingCalibrator(), EXACT),
        ("structured_matrix", calibrators.get_calibrator("sms", sms_print_init_info=False), {}),
        ("ensemble_temperature", calibrators.ETSCalibrator(loss="ce"), {}),
    ):
        oracle.fit(probabilities, targets)
        wanted, found = oracle.predict_proba(probabilities), fit(method, given, targets, **options)(given)
        name = method.replace("_", " ").removesuffix(" temperature")
        name = "ensemble temperature" if method == "ensemble_temperature" else name
        yield from differences(f"{name} scaling", found, wanted, targets)


def of_venn_abers(seed: int) -> Rows:
    """Both brackets of two classes at unseen samples, given the same grid of scores."""
    oracle = package("venn_abers.venn_abers")
    logits, targets = drawn_predictions(seed, 300, 2, 2)
    unseen, _ = drawn_predictions(seed + 50, 200, 2, 2)
    score, new = (1 / (1 + np.exp(-0.05 * levels_of(softmax64(each)[:, 1], 0.05))) for each in (logits, unseen))
    p0, p1, known = oracle.calc_p0p1(np.c_[1 - score, score], (targets == 1).astype(float))
    _, wanted = oracle.calc_probs(p0, p1, known, np.c_[1 - new, new])
    found = np.stack([each[:, 1] for each in fit("venn_abers", logits, targets).brackets(softmax64(unseen))], axis=1)
    yield "Venn–Abers: p⁰ and p¹", float(np.abs(found - wanted).max())
