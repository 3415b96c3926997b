"""A training loop of a user's own: what is asked of it, what is measured of it, and what is said where it is wrong."""

from __future__ import annotations

import copy
import math
import random
import sys

import numpy as np
import pytest
import torch
from torch import nn

from trainables.curvature import CurvatureSettings
from trainables.extensions.targets import look_in
from trainables.metrics import evaluate_probabilities
from trainables.registry import ExtensionError
from trainables.training import own_loop
from trainables.training.evaluation import EvaluationSettings
from trainables.training.own_loop import LOOPS, LoopError, LoopReplicate, build_loop, own_data, takes_all

LOOPED = """
import random
import numpy, torch
from torch import nn
import sweeper

class Loop(sweeper.TrainingLoop):
    def __init__(self, configuration, *, seed):
        self.given, self.closed = dict(configuration, seed=seed), False
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=configuration["lr"], momentum=0.9)
        self.inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        self.targets = torch.arange(60) % 3
    def train_epoch(self):
        rows = torch.randperm(60)[:20]
        loss = nn.functional.cross_entropy(self.model(self.inputs[rows]), self.targets[rows])
        self.optimizer.zero_grad(); loss.backward(); self.optimizer.step()
        return {"train_loss": loss.item(), "drawn": random.random() + numpy.random.rand()}
    def predict(self, split):
        return self.model(self.inputs), self.targets
    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"]); self.optimizer.load_state_dict(state["optimizer"])
    def close(self):
        self.closed = True

class Shown(Loop):
    def network(self): return self.model
    def batches(self, split): return zip(self.inputs.split(32), self.targets.split(32))

class Bad(Loop):
    how = None
    def __init__(self, configuration, *, seed):
        super().__init__(configuration, seed=seed)
        self.how = configuration["how"]
    def train_epoch(self):
        if self.how == "raises": raise KeyError("no such thing")
        if self.how == "leaves": raise SystemExit(3)
        if self.how == "list": return [1.0]
        if self.how == "text": return {"train_loss": "high"}
        if self.how == "prints":
            for number in range(1_000_000): print(number)
        return {"other": 1.0} if self.how == "other" else {"train_loss": 1.0}
    def predict(self, split):
        logits, targets = super().predict(split)
        return {
            "flat": (logits[:, 0], targets), "short": (logits, targets[1:]), "none": None,
            "empty": (logits[:0], targets[:0]),
            "halves": (logits[:, :1], targets / 2), "deep": (logits[..., None], targets),
            "far": (logits, targets + 1), "floats": (logits, targets.float()), "nan": (logits * float("nan"), targets),
            "two": (logits[:, :3 if split == "val" else 2], targets % 2),
        }.get(self.how, (logits, targets))

class Forest(Loop):
    predicts = "probabilities"
    def __init__(self, configuration, *, seed):
        super().__init__(configuration, seed=seed)
        self.predicts = configuration["predicts"]
    def predict(self, split):
        logits, targets = super().predict(split)
        votes = torch.softmax(logits, 1) * (torch.arange(3) != (targets[:, None] + 1) % 3)
        return votes / votes.sum(1, keepdim=True), targets

class Measuring(Loop):
    measures = ("f1", "draw")
    def measure(self, split, stage):
        return {"f1": len(split) + len(stage) / 10, "draw": random.random() + torch.rand(()).item()}

class Alone(sweeper.TrainingLoop):
    measures = ("nll", "ece", "bleu")
    def __init__(self, configuration, *, evaluation):
        self.how, self.epochs, self.bins = configuration.get("how"), 0, evaluation.bins
    def train_epoch(self):
        self.epochs += 1
        return {}
    def measure(self, split, stage):
        return {
            "text": {"nll": "low"}, "other": {"nll": 1.0, "wer": 2.0}, "none": {"ece": 0.1}, "list": [1.0],
        }.get(self.how, {"nll": 1 / self.epochs, "bleu": float(self.bins)} | ({"ece": 0.1} if split == "val" else {}))
    def state_dict(self):
        return {"epochs": self.epochs}
    def load_state_dict(self, state):
        self.epochs = state["epochs"]

class Cancer(sweeper.TrainingLoop):
    def __init__(self, configuration, *, seed):
        from sklearn.datasets import load_breast_cancer
        inputs, targets = map(torch.tensor, load_breast_cancer(return_X_y=True))
        self.inputs, self.targets = ((inputs - inputs.mean(0)) / inputs.std(0)).float(), targets[:, None].float()
        self.rows = {"train": slice(None, None, 3), "val": slice(1, None, 3), "test": slice(2, None, 3)}
        self.model, self.loss, self.predicts = nn.Linear(30, 1), nn.BCEWithLogitsLoss(), configuration["predicts"]
        self.form = configuration.get("form", lambda z: z)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
    def train_epoch(self):
        for _ in range(60):
            self.optimizer.zero_grad()
            loss = self.loss(self.model(self.inputs[self.rows["train"]]), self.targets[self.rows["train"]])
            loss.backward(); self.optimizer.step()
        return {"train_loss": loss.item()}
    def predict(self, split):
        return self.form(self.model(self.inputs[self.rows[split]])), self.targets[self.rows[split]]
    def state_dict(self): return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"]); self.optimizer.load_state_dict(state["optimizer"])
    def network(self): return self.model
    def batches(self, split): return [(self.inputs[self.rows[split]], self.targets[self.rows[split]])]

class Named(Loop):
    def __init__(self, *, lr: float, rank: int = 8, seed, max_epochs):
        super().__init__({"lr": lr, "rank": rank, "epochs": max_epochs}, seed=seed)

def function(): ...
"""

CONFIGURATION = {"lr": 0.1, "loss": {"name": "own"}, "architecture": {"name": "own"}, "optimizer": {"name": "own"}}
SETTINGS = EvaluationSettings(bootstrap=0)
SETTINGS_WITH_TEMPERATURE = EvaluationSettings(bootstrap=0, posthoc=({"name": "temperature"}, {"name": "vector"}))


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "looped.py").write_text(LOOPED)
    look_in([tmp_path])
    LOOPS.forget_own()
    yield
    look_in([])
    sys.modules.pop("looped", None)


def replicate(name="Loop", seed=5, columns=None, evaluation=None, **values):
    return LoopReplicate(
        f"looped:{name}", CONFIGURATION | values, seed=seed, dataset=own_data(), max_epochs=4, columns=columns,
        evaluation=evaluation,
    )  # fmt: skip


def test_a_loop_gets_the_configuration_as_the_space_wrote_it_and_what_it_asks_for():
    loop = build_loop("looped:Loop", CONFIGURATION, seed=7, device="cpu", max_epochs=3, dataset=None)
    assert loop.given == {"lr": 0.1, "seed": 7}
    named = build_loop("looped:Named", CONFIGURATION | {"rank": 2}, seed=1, device="cpu", max_epochs=3, dataset=None)
    assert named.given == {"lr": 0.1, "rank": 2, "epochs": 3, "seed": 1}


def test_a_constructor_with_names_declares_its_hyperparameters():
    component = LOOPS["looped:Named"]
    assert [(h.name, h.kind, h.required) for h in component.hyperparameters] == [
        ("lr", "number", True),
        ("rank", "integer", False),
    ]
    assert not takes_all(component.build) and takes_all(LOOPS["looped:Loop"].build)
    with pytest.raises(ExtensionError, match=r"a function; a training loop is a subclass of sweeper.TrainingLoop with"):
        LOOPS["looped:function"]


def test_an_epoch_and_an_evaluation_measure_what_the_loop_predicts():
    trained = replicate()
    row = trained.train_epoch()
    logits, targets = trained.loop.predict("val")
    assert row["epoch"] == trained.epoch == 1 and set(row) >= {"train_loss", "drawn", "val_ece", "seconds"}
    assert math.isclose(row["val_nll"], nn.functional.cross_entropy(logits, targets).item(), rel_tol=1e-5)
    found = trained.evaluate(SETTINGS, "rung")
    assert [each["split"] for each in found.rows] == ["val", "test"] and len(found.logits["test"]) == 60
    assert math.isclose(found.rows[0]["nll"], row["val_nll"], rel_tol=1e-9)
    assert trained.trajectory_row(None) == {}  # type: ignore[arg-type]


def test_what_a_loop_measures_itself_joins_its_evaluations_and_changes_no_training():
    plain, measuring = replicate(), replicate("Measuring")
    for each in (plain, measuring):
        each.train_epoch()
        found = each.evaluate(SETTINGS, "rung")
    assert [row["f1"] for row in found.rows] == [3.4, 4.4] and all("ece" in row and "draw" in row for row in found.rows)
    assert plain.train_epoch()["drawn"] == measuring.train_epoch()["drawn"]


def test_a_loop_without_predictions_measures_everything():
    trained = replicate("Alone", evaluation=EvaluationSettings(bins=7))
    row = trained.train_epoch()
    assert {key: row[key] for key in row if key != "seconds"} == {"epoch": 1, "val_nll": 1.0, "val_ece": 0.1}
    trained.train_epoch()
    found = trained.evaluate(SETTINGS, "end")
    assert found.rows == [
        {"split": "val", "stage": "end", "nll": 0.5, "bleu": 7.0, "ece": 0.1},
        {"split": "test", "stage": "end", "nll": 0.5, "bleu": 7.0},
    ]
    assert (found.reliability, [len(each) for each in found.logits.values()]) == ([], [0])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("text", "measure returns a value that is no number"),
        ("list", "measure returns a list; return a mapping of numbers"),
        ("other", r"measure\('val', 'epoch'\) returns wer; name each column in measures"),
        ("none", r"measure\('val', 'epoch'\) returns no nll"),
    ],
)
def test_what_is_wrong_with_a_measurement_is_named(how, said):
    with pytest.raises(LoopError, match=f"looped:Alone: {said}"):
        replicate("Alone", how=how).train_epoch()


def test_curvature_is_measured_of_the_network_where_the_loop_shows_one():
    settings = EvaluationSettings(bootstrap=0, curvature=CurvatureSettings(samples=30, lanczos_steps=3, trace_probes=2))
    hidden = replicate().evaluate(settings, "rung").rows[0]
    assert hidden["hessian_unavailable"] == "looped:Loop has no network() and batches()"
    shown = replicate("Shown").evaluate(settings, "rung").rows[0]
    assert shown["hessian_cross_entropy_trace"] > 0 and "hessian_training_trace" not in shown
    for batches, said in (([{"inputs": 1}], "a dict"), ([("text", 1)], "a tuple"), ([], "nothing")):
        loop = replicate("Shown")
        loop.loop.batches = lambda split, batches=batches: iter(batches)
        reason = loop.evaluate(settings, "rung").rows[0]["hessian_unavailable"]
        assert reason == f"looped:Shown: batches yields {said}; yield pairs of tensors, inputs and targets"
    named = replicate("Shown", loss={"name": "focal", "gamma": 2.0}).evaluate(settings, "rung").rows[0]
    assert named["hessian_training_trace"] > 0


def test_a_state_continues_to_the_bit_with_the_generators_of_three_libraries():
    first, second = replicate(), replicate(seed=6)
    first.train_epoch()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    outside = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    rows = [{k: v for k, v in each.train_epoch().items() if k != "seconds"} for each in (first, second)]
    assert rows[0] == rows[1] and rows[0]["epoch"] == 2
    assert random.getstate() == outside[0] and np.random.get_state()[1].tolist() == outside[1]
    assert torch.equal(torch.get_rng_state(), outside[2])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", r"Bad failed in train_epoch: .*looped.py:\d+: KeyError: 'no such thing'"),
        ("leaves", "SystemExit: 3"),
        ("list", "train_epoch returns a list; return a mapping of numbers"),
        ("text", "train_epoch returns a value that is no number"),
        ("other", "returns other in epoch 1, but not in the first"),
        ("flat", r"predict\('val'\) returns targets from 0 to 2; one logit allows 0 to 1"),
        ("halves", "returns torch.float32 and torch.float32; return float logits"),
        ("deep", r"predict\('val'\) returns shapes \[60, 3, 1\] and \[60\]"),
        ("short", r"returns shapes \[60, 3\] and \[59\]"),
        ("none", "returns a NoneType; return two tensors"),
        ("empty", "returns no samples"),
        ("far", "returns targets from 1 to 3; 3 logits allow 0 to 2"),
        ("floats", "return float logits and integer targets"),
    ],
)
def test_what_is_wrong_is_a_sentence_with_its_place(how, said):
    with pytest.raises(LoopError, match=said):
        replicate("Bad", how=how, columns=[]).train_epoch()


def test_probabilities_are_measured_as_they_are_with_zeros_and_not_taken_for_logits():
    trained = replicate("Forest", predicts="probabilities")
    row, found = trained.train_epoch(), trained.evaluate(SETTINGS_WITH_TEMPERATURE, "rung").rows[0]
    probabilities, targets = trained.loop.predict("val")
    expected = evaluate_probabilities(probabilities.detach().double(), targets, names=("nll", "ece"))
    assert (row["val_nll"], row["val_ece"]) == pytest.approx((expected["nll"], expected["ece"]), abs=1e-6)
    assert (found["nll"], found["ece"]) == pytest.approx((expected["nll"], expected["ece"]), abs=1e-6)
    assert trained.predicted("val")[0].isneginf().sum() == 60
    assert math.isfinite(found["posthoc_temperature_nll"]) and math.isfinite(found["refinement_nll"])
    with pytest.raises(LoopError, match=r"probabilities, not logits; set predicts = \"probabilities\""):
        replicate("Forest", predicts="logits").train_epoch()
    with pytest.raises(LoopError, match="predicts = 'odds' must be 'logits' or 'probabilities'"):
        replicate("Forest", predicts="odds").train_epoch()


def one_output(predicts="logits", **values):
    return replicate("Cancer", predicts=predicts, **values)


def test_one_logit_is_measured_as_torchmetrics_measures_binary_predictions():
    """Train scikit-learn's breast cancer data with a binary cross-entropy of one output."""
    classification = pytest.importorskip("torchmetrics.functional.classification")
    settings = EvaluationSettings(
        bootstrap=0, metrics=(("ece_positive", {}),), posthoc=({"name": "temperature"},),
        curvature=CurvatureSettings(samples=None, losses=("cross_entropy",)),
    )  # fmt: skip
    trained = one_output()
    trained.train_epoch()
    done = trained.evaluate(settings, "rung")
    val, test = done.rows
    z, y = (part.detach().flatten() for part in trained.loop.predict("test"))
    p = torch.sigmoid(z)
    assert done.logits["test"].shape == (189, 2) and not done.logits["test"][:, 0].any()
    theirs = classification.binary_calibration_error(p, y.long(), n_bins=15)
    assert test["ece_positive"] == pytest.approx(theirs.item(), abs=1e-6) and theirs > 0.01
    both = classification.multiclass_calibration_error(torch.stack([1 - p, p], 1), y.long(), num_classes=2, n_bins=15)
    assert test["ece"] == pytest.approx(both.item(), abs=1e-6)
    assert test["nll"] == pytest.approx(nn.functional.binary_cross_entropy_with_logits(z, y).item(), rel=1e-5)
    assert val["posthoc_temperature_nll"] <= val["nll"]
    # The Hessian of a logistic regression is (1/N) Σ p(1 − p) x xᵀ, with x_0 = 1 for the bias.
    x, q = trained.loop.inputs[1::3], torch.sigmoid(trained.loop.predict("val")[0]).flatten()
    trace = (q * (1 - q) * (1 + x.square().sum(1))).mean().item()
    assert val["hessian_cross_entropy_trace"] == pytest.approx(trace, rel=1e-4)


def test_every_form_of_one_number_is_the_same_prediction():
    first = one_output().predicted("val")
    for predicts, form in (
        ("logits", lambda z: z[:, 0]), ("probabilities", torch.sigmoid), ("probabilities", lambda z: z.sigmoid()[:, 0]),
    ):  # fmt: skip
        logits, targets = one_output(predicts, form=form).predicted("val")
        torch.testing.assert_close(torch.softmax(logits, 1), torch.softmax(first[0], 1), atol=1e-6, rtol=1e-5)
        assert torch.equal(targets, first[1]) and targets.dtype == torch.int64


def test_one_logit_in_the_unit_interval_is_a_logit_unless_it_fits_as_a_probability():
    def weak(z):  # logits of an imbalanced, hardly trained model: from .55 to .57
        return 0.56 + z.sigmoid() / 100

    assert one_output(form=weak).predicted("val")[0].max() < 0.58
    with pytest.raises(LoopError, match=r"numbers in \[0, 1\], which are probabilities, not logits; set predicts"):
        one_output(form=torch.sigmoid).train_epoch()
    with pytest.raises(LoopError, match="returns rows that are no probabilities"):
        one_output("probabilities").train_epoch()


def test_splits_agree_on_the_number_of_classes():
    trained = replicate("Bad", how="two")
    trained.train_epoch()
    with pytest.raises(LoopError, match=r"predict\('test'\) returns 2 logits per sample but 3 before"):
        trained.evaluate(SETTINGS, "rung")


def test_logits_that_are_no_numbers_are_a_trial_that_diverged():
    assert math.isnan(replicate("Bad", how="nan").train_epoch()["val_nll"])


def test_a_loop_that_prints_a_million_lines_fills_no_log(capsys):
    replicate("Bad", how="prints").train_epoch()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == own_loop.MOST_LINES + 2
    assert printed[-1] == "looped:Bad: train_epoch printed more than 10,000 lines; the rest is omitted"
