"""Post-hoc methods beside those of the package probmetrics at equal names: T, test NLL and processor time.

`python -m tests.benchmarks.bench_probmetrics [--splits 5]` prints a table in Markdown. Classifiers of scikit-learn are
trained on a third of the samples, methods are fitted on a third and measured on the last. Both packages get logarithms
of probabilities. Options are the defaults, except where a row says "unpenalised" or "unmixed". T is the first split's.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import tests.release.members.probmetrics  # noqa: F401  # registers the method
from tests.benchmarks.oracles.posthoc import EXACT, nll
from trainables.metrics.base import log_softmax64
from trainables.posthoc import fit

Parts = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Logits and targets of validation, and of test."""

RARE = {"n_samples": 6000, "n_features": 20, "n_informative": 8, "n_classes": 5, "class_sep": 0.8}
SETS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "digits, MLP": (
        lambda: load_digits(return_X_y=True),
        lambda seed: MLPClassifier((64,), max_iter=100, random_state=seed),
    ),
    "breast cancer, logistic regression": (
        lambda: load_breast_cancer(return_X_y=True),
        lambda seed: LogisticRegression(C=100, max_iter=1000),
    ),
    "rare classes, random forest": (
        lambda: make_classification(**RARE, weights=[0.6, 0.25, 0.1, 0.03], random_state=0),
        lambda seed: RandomForestClassifier(100, random_state=seed),
    ),
}
"""How each set is loaded, and the classifier of a seed."""

PAIRS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("temperature", "temperature", {}, "temp-scaling"),
    ("vector", "vector", {}, "VectorScalingCalibrator"),
    ("matrix", "matrix", {}, "MatrixScalingCalibrator"),
    ("matrix, unpenalised", "matrix", EXACT, "MatrixScalingCalibrator"),
    ("structured matrix", "structured_matrix", {}, "sms"),
    ("isotonic", "isotonic", {}, "isotonic"),
    ("isotonic, unmixed", "isotonic", {"mix": False}, "isotonic"),
    ("ensemble temperature", "ensemble_temperature", {}, "ETSCalibrator"),
    ("histogram binning", "histogram_binning", {}, "BinaryHistogramBinningCalibrator"),
    (
        "histogram binning, unmixed, 10 bins",
        "histogram_binning",
        {"mix": False, "bins": 10},
        "BinaryHistogramBinningCalibrator",
    ),
)
"""Words, our method with its options, and theirs; the last for two classes only."""


def split_logits(name: str, seed: int) -> Parts:
    """Return logits and targets of a classifier of `seed`, for validation and test."""
    load, classifier = SETS[name]
    inputs, targets = load()
    train, rest, known, others = train_test_split(
        inputs, targets, train_size=1 / 3, stratify=targets, random_state=seed
    )
    fitted = make_pipeline(StandardScaler(), classifier(seed)).fit(train, known)
    # A forest's probabilities are shares of its 100 trees and can be 0.
    logits = log_softmax64(np.log(np.maximum(fitted.predict_proba(rest), 1e-3 if "forest" in name else 1e-300)))
    val, test, of_val, of_test = train_test_split(logits, others, test_size=0.5, stratify=others, random_state=seed)
    return (val, of_val), (test, of_test)


def measured(parts: Parts, method: str, options: dict[str, Any]) -> tuple[float, float, float]:
    """Return test NLL, milliseconds of the fit, and T, which is NaN for a method without one."""
    (logits, targets), (unseen, wanted) = parts
    began = time.process_time()
    fitted = fit(method, logits, targets, **options)
    spent = 1000 * (time.process_time() - began)
    inverse = getattr(getattr(fitted, "fitted", None), "invtemp_", np.nan)  # probmetrics'
    return nll(fitted(unseen), wanted), spent, fitted.parameters.get("temperature", 1 / inverse)


def rows(name: str, splits: int) -> Iterator[str]:
    """Yield a line of the table for each pair of methods."""
    cases = [split_logits(name, seed) for seed in range(splits)]
    before = fmean(nll(np.exp(logits), targets) for _, (logits, targets) in cases)
    yield f"| {name} | none | | {before:.4f} | | | | |"
    for words, method, options, theirs in PAIRS:
        if method == "histogram_binning" and cases[0][0][0].shape[1] > 2:
            continue
        found = []
        for given, chosen in ((method, options), ("probmetrics", {"method": theirs})):
            measured(cases[0], given, chosen)  # not counted: imports, and compilation by numba
            found.append(np.array([measured(parts, given, chosen) for parts in cases]))
        (ours, other), apart = found, np.abs(found[0] - found[1]).max(axis=0)
        scale = "" if method != "temperature" else f", T {ours[0, 2]:.5f}, {other[0, 2]:.5f}"
        losses = f"{fmean(ours[:, 0]):.4f} | {fmean(other[:, 0]):.4f} | {apart[0]:.1g}"
        times = f"{median(ours[:, 1]):.1f} | {median(other[:, 1]):.1f}"
        yield f"| {name} | {words}{scale} | `{theirs}` | {losses} | {times} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5)
    splits = parser.parse_args().splits
    torch.set_num_threads(1)
    threadpool_limits(1)
    warnings.simplefilter("ignore")  # scikit-learn's about convergence, for example
    print(f"Mean test NLL over n = {splits} splits; median processor milliseconds of a fit.\n")
    print("| classifier | method | theirs | NLL, ours | theirs | largest difference | ms, ours | theirs |")
    print("|---|---|---|---|---|---|---|---|")
    for name in SETS:
        for line in rows(name, splits):
            print(line, flush=True)


if __name__ == "__main__":
    main()
