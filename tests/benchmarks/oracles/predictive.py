"""Conformal sets, ensembles and corruptions beside torchcp, MAPIE, torch-uncertainty, scikit-learn and others."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from sweeper.results import Results
from sweeper.results.predictions import finished_members
from sweeper.results.predictive import AFTER, BEFORE, GREEDY, NONE, REPLICATES, ensembles
from tests.benchmarks.oracles import Rows, package, part_of
from tests.benchmarks.oracles.posthoc import by_brent
from tests.sweeper.results.test_predictive import greedy_by_hand
from tests.sweeper.synthetic_sweep import write_sweep
from tests.trainables.posthoc.test_conformal import sets_of_mapie
from tests.trainables.reference_metrics import random_case
from trainables.posthoc.conformal import fit_split, scores

RAPS = {"penalty": 0.2, "free_ranks": 2}
SETS = "share of classes that differ"


def of_torch_uncertainty(seed: int) -> Rows:
    """Scores of every class; RAPS in float32."""
    conformal = package("torch_uncertainty.post_processing.conformal")
    probabilities, _ = random_case(seed, samples=40)
    given, none = torch.from_numpy(probabilities), np.zeros(40)
    plain = {"alpha": 0.1, "model": None, "randomized": False}
    aps = conformal.ConformalClsAPS(**plain, enable_ts=False)
    raps = conformal.ConformalClsRAPS(**plain, penalty=RAPS["penalty"], regularization_rank=RAPS["free_ranks"])
    for name, oracle, options in (("aps", aps, {}), ("raps", raps, RAPS)):
        wanted = oracle._calculate_all_labels(given).numpy()
        yield f"{name.upper()}: scores", np.abs(scores(name, probabilities, none, **options) - wanted).max()


def of_torchcp(seed: int) -> Rows:
    """Scores, and sets of unseen samples by one threshold and by one for each class.

    Scores within 1e-6 of a threshold are left out: torchcp's thresholds per class are of float32.
    """
    above = ("torchcp", "torchcp.classification")
    score, predictor = (part_of(f"torchcp.classification.{name}", *above) for name in ("score", "predictor"))
    probabilities, targets = random_case(seed, samples=300, classes=5)
    unseen, _ = random_case(seed + 50, samples=200, classes=5)
    plain = {"randomized": False, "score_type": "identity"}
    for name, oracle, options in (
        ("thr", score.LAC(score_type="identity"), {}),
        ("aps", score.APS(**plain), {}),
        ("raps", score.RAPS(**plain, penalty=RAPS["penalty"], kreg=RAPS["free_ranks"]), RAPS),
    ):
        found = scores(name, unseen, np.zeros(len(unseen)), **options)
        yield f"{name.upper()}: scores", np.abs(found - oracle(torch.from_numpy(unseen)).numpy()).max()
        if name != "thr":  # sets of the others are random
            continue
        fitted = fit_split(None, np.log(probabilities), targets)
        for by_class, kind in ((False, "SplitPredictor"), (True, "ClassConditionalPredictor")):
            sets = fitted.sets(name, np.log(unseen), by_class=by_class)
            theirs = getattr(predictor, kind)(oracle, alpha=0.1)
            theirs.calculate_threshold(torch.from_numpy(probabilities), torch.from_numpy(targets))
            wanted = theirs.predict_with_logits(torch.from_numpy(unseen)).numpy().astype(bool)
            each, apart = " per class" if by_class else "", np.abs(found - np.asarray(theirs.q_hat)) > 1e-6
            yield f"{name.upper()}: sets{each}, {SETS}", float(np.mean((sets != wanted)[apart]))


def of_mapie(seed: int) -> Rows:
    """Sets of THR, and of APS given the same u; its RAPS chooses λ and k_reg itself, on a part of the samples."""
    package("mapie.classification")
    for name in ("thr", "aps"):
        found, wanted = sets_of_mapie(name, seed)
        yield f"{name.upper()}: sets, {SETS}", float(np.mean(found != wanted))


def of_scipy(seed: int) -> Rows:
    """Compare test NLLs of ensembles with averages of scipy's softmax and temperatures by its root finder."""
    from scipy.special import log_softmax, softmax

    if seed >= 5:
        return
    with tempfile.TemporaryDirectory() as folder:
        root = write_sweep(Path(folder) / "s", configurations=6, replicates=3, space="gamma", failures=0, seed=seed)
        results = Results(root)
        members = [(each.trial, each.logits, each.targets) for each in finished_members(results, 50)]
        rows = {(row.ensemble, row.members, row.temperature): row.metrics["nll"] for row in ensembles(results, size=4)}
    targets = members[0][2]
    logits = {split: np.stack([each[1][split] for each in members]).astype(np.float64) for split in ("val", "test")}
    at = {NONE: np.ones(len(members)), BEFORE: np.array([by_brent(each, targets["val"]) for each in logits["val"]])}
    parts = {
        where: {split: softmax(each / scale[:, None, None], axis=2) for split, each in logits.items()}
        for where, scale in at.items()
    }
    every = np.arange(len(targets["val"]))
    orders = {where: greedy_by_hand(each["val"][:, every, targets["val"]], 4) for where, each in parts.items()}
    replicates = [index for index, each in enumerate(members) if each[0] == members[0][0]]
    for name, count in ((REPLICATES, len(replicates)), (GREEDY, 4)):
        for where in (NONE, BEFORE, AFTER):
            source = BEFORE if where == BEFORE else NONE
            chosen = replicates if name == REPLICATES else orders[source]
            mean = {split: parts[source][split][chosen].mean(axis=0) for split in ("val", "test")}
            if where == AFTER:
                scale = by_brent(np.log(mean["val"]), targets["val"])
                mean["test"] = np.exp(log_softmax(np.log(mean["test"]) / scale, axis=1))
            of_target = mean["test"][np.arange(len(targets["test"])), targets["test"]]
            wanted = -np.log(np.maximum(of_target, np.finfo(np.float64).tiny)).mean()
            label = {NONE: "no temperature", BEFORE: "temperature before", AFTER: "temperature after"}[where]
            yield f"ensemble, {name}, {label}: NLL", rows[name, count, where] - wanted


def of_imagecorruptions(seed: int) -> Rows:
    """Every kind at every severity, in levels of 255."""
    from tests.trainables.datasets.corruptions.test_imagecorruptions import differences, loaded

    if seed < 3:
        with loaded() as oracle:
            for kind, worst in differences(oracle, seed):
                yield f"{kind.replace('_', ' ')}, levels of 255", float(worst)
