"""Plain definitions of every metric, one sample at a time: what the fast ones must agree with."""

import math

import numpy as np


def random_case(seed, samples=None, classes=None, scale=2.0):
    """Softmax outputs that are right more often than chance, in float64, and their targets."""
    random = np.random.default_rng(seed)
    samples = samples or int(random.integers(15, 90))
    classes = classes or int(random.integers(2, 12))
    targets = random.integers(0, classes, samples)
    logits = random.normal(size=(samples, classes)) * scale
    logits[np.arange(samples), targets] += 1.5
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True), targets


def right_closed_bin(value, bins):
    edges = [b / bins for b in range(bins + 1)]
    return next((b for b in range(bins) if value <= edges[b + 1]), bins - 1)


def width_error(confidence, outcome, bins, reduce="mean"):
    members = [[] for _ in range(bins)]
    for c, r in zip(confidence, outcome, strict=True):
        members[right_closed_bin(c, bins)].append((c, r))
    gaps = [(len(m), abs(sum(c for c, _ in m) / len(m) - sum(r for _, r in m) / len(m))) for m in members if m]
    if reduce == "maximum":
        return max(gap for _, gap in gaps)
    return sum(n * gap for n, gap in gaps) / len(confidence)


def mass_error(confidence, outcome, bins):
    total = 0.0
    for group in np.array_split(np.argsort(confidence), bins):
        if len(group):
            total += abs(sum(confidence[i] - mean_of_tied(confidence, outcome, i) for i in group))
    return total / len(confidence)


def mean_of_tied(confidence, outcome, i):
    """The mean outcome of the samples with the confidence of sample i."""
    return mean([y for c, y in zip(confidence, outcome, strict=True) if c == confidence[i]])


def risk_coverage_area(confidence, loss):
    """Mean risk over the coverages 1/n … 1; the loss of tied samples enters as their mean."""
    order = sorted(range(len(confidence)), key=lambda i: -confidence[i])
    ordered = []
    for i in order:
        tied = [loss[j] for j in order if confidence[j] == confidence[i]]
        ordered.append(sum(tied) / len(tied))
    return sum(sum(ordered[: k + 1]) / (k + 1) for k in range(len(ordered))) / len(ordered)


def mean(values):
    return sum(values) / len(values) if values else math.nan


def evaluate(probabilities, targets, bins=15):
    rows = [list(map(float, row)) for row in probabilities]
    samples, classes = len(rows), len(rows[0])
    prediction = [row.index(max(row)) for row in rows]
    confidence = [max(row) for row in rows]
    correct = [float(p == y) for p, y in zip(prediction, targets, strict=True)]
    nll = [-math.log(row[y]) for row, y in zip(rows, targets, strict=True)]
    entropy = [-sum(p * math.log(p) for p in row if p > 0) for row in rows]
    columns = [([row[k] for row in rows], [float(y == k) for y in targets]) for k in range(classes)]
    pairs = list(zip(rows, targets, strict=True))
    five = [y in sorted(range(classes), key=lambda k, row=row: -row[k])[:5] for row, y in pairs]
    aurc = risk_coverage_area(confidence, [1 - r for r in correct])
    best = risk_coverage_area(list(range(samples, 0, -1)), sorted(1 - r for r in correct))

    def among(values, wanted):
        return mean([v for v, r in zip(values, correct, strict=True) if r == wanted])

    return {
        "accuracy": mean(correct),
        "top5": mean([float(f) for f in five]),
        "nll": mean(nll),
        "nll_correct": among(nll, 1.0),
        "nll_wrong": among(nll, 0.0),
        "brier": mean([sum((p - (k == y)) ** 2 for k, p in enumerate(row)) for row, y in pairs]),
        "ece": width_error(confidence, correct, bins),
        "ada_ece": mass_error(confidence, correct, bins),
        "mce": width_error(confidence, correct, bins, "maximum"),
        "cw_ece": mean([width_error(p, o, bins) for p, o in columns]),
        "cw_ada_ece": mean([mass_error(p, o, bins) for p, o in columns]),
        "aurc": aurc,
        "e_aurc": aurc - best,
        "s99": mean([float(c > 0.99) for c in confidence]),
        "s99_accuracy": mean([r for c, r in zip(confidence, correct, strict=True) if c > 0.99]),
        "confidence": mean(confidence),
        "confidence_wrong": among(confidence, 0.0),
        "entropy_correct": among(entropy, 1.0),
        "entropy_wrong": among(entropy, 0.0),
        "balanced_accuracy": mean(
            [mean([r for r, y in zip(correct, targets, strict=True) if y == k]) for k in set(targets)]
        ),
        "majority_share": max(sum(y == k for y in targets) for k in range(classes)) / samples,
    }
