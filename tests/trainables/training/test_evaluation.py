"""An evaluation fills exactly the declared columns, and says in words what it could not measure."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sweeper.core.columns import evaluation_columns
from sweeper.core.schemas import REHEARSAL, record_batch, table_schemas
from sweeper.space.spec import Evaluation
from tests.trainables.registered import register
from tests.trainables.small_data import small_digits
from trainables.curvature.statistics.base import statistic_words
from trainables.datasets import load_dataset
from trainables.losses import build_loss
from trainables.metrics import RECALIBRATED
from trainables.metrics.base import softmax64
from trainables.metrics.known_posterior import POSTERIOR_COLUMNS
from trainables.metrics.out_of_distribution import OOD_COLUMNS
from trainables.metrics.refinement import FOLDS, folds_of
from trainables.metrics.weighted import WEIGHTED_COLUMNS
from trainables.models import build_model
from trainables.posthoc import POSTHOC, Calibrator, PosthocMethod, fit
from trainables.training.evaluation import EvaluationSettings, curvature_subset, evaluate
from trainables.training.prediction import predict
from trainables.worker.trial_tables import BLOCKS_SCHEMA

CURVATURE = {"samples": 40, "lanczos_steps": 3, "trace_probes": 2}


@pytest.fixture(scope="module")
def dataset():
    return small_digits()


@pytest.fixture(scope="module")
def model(dataset):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return build_model("mlp", dataset.input_shape, dataset.classes, width=20)


def _settings(**changes):
    return EvaluationSettings.from_mapping(
        {"posthoc": ["temperature"], "bootstrap": 5, "curvature": CURVATURE, **changes}
    )


def _rows(model, dataset, settings, loss="cross_entropy", seed=3, **hyperparameters):
    found = evaluate(model, build_loss(loss, **hyperparameters), dataset, settings, stage="rung", seed=seed)
    return {row["split"]: row for row in found.rows}


@pytest.mark.parametrize("samples", [1, 7, 40, 128, 300])
def test_the_curvature_subset_is_stratified(samples):
    split = load_dataset("digits").val
    inputs, targets, _ = curvature_subset(split, samples)
    assert len(inputs) == len(targets) == samples
    taken, whole = np.bincount(targets, minlength=10), np.bincount(split.targets, minlength=10)
    assert np.abs(taken - whole * samples / len(split)).max() <= 1


def test_the_curvature_subset_is_a_function_of_the_split(dataset):
    first = curvature_subset(dataset.val, 40)
    torch.manual_seed(1)
    second = curvature_subset(dataset.val, 40)
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    rows = {tuple(row.flatten().tolist()) for row in dataset.val.inputs}
    assert {tuple(row.flatten().tolist()) for row in first[0]} <= rows


@pytest.mark.parametrize("samples", [None, 90, 1000])
def test_the_whole_split_where_no_fewer_are_asked_for(dataset, samples):
    inputs, targets, _ = curvature_subset(dataset.val, samples)
    assert torch.equal(inputs, dataset.val.inputs) and torch.equal(targets, dataset.val.targets)


ABSENT = (*POSTERIOR_COLUMNS, *WEIGHTED_COLUMNS)


@pytest.mark.parametrize("methods", [[], ["temperature"], list(POSTHOC)])
def test_columns_are_those_of_the_table(model, dataset, methods):
    settings = _settings(posthoc=methods)
    rows = _rows(model, dataset, settings, "focal", gamma=2.0)
    schema = table_schemas({}, 10, evaluation_columns(methods))["evaluations"]
    keyed = [{"trial": "c00000", "replicate": 0, "epoch": 1, **row} for row in rows.values()]
    assert record_batch("evaluations", schema, keyed).num_rows == 2
    measured = {name for name in schema.names if not name.endswith(("_unavailable", REHEARSAL, *ABSENT))}
    assert measured - set(keyed[0]) <= {name for name in measured if "posthoc" in name}


def test_methods_that_objectives_need_are_cross_fitted_on_validation_data(model, dataset):
    rows = _rows(model, dataset, _settings(posthoc=["temperature", "focal_temperature"], cross_fitted=["temperature"]))
    held_out = {name for name in rows["val"] if name.startswith("cross_fitted_")}
    assert held_out == {f"cross_fitted_temperature_{metric}" for metric in RECALIBRATED}
    assert not any(name.startswith("cross_fitted_") for name in rows["test"])
    columns = evaluation_columns(["temperature", "focal_temperature"], cross_fitted=["temperature"])
    assert held_out < set(columns)
    assert rows["val"]["cross_fitted_temperature_nll"] >= rows["val"]["posthoc_temperature_nll"], (
        "fitted on all samples"
    )


def test_what_is_asked_for_besides_has_the_columns_of_the_tables(model, dataset):
    posthoc = [{"name": "temperature"}, {"name": "temperature", "objective": "ece", "label": "by_ece"}]
    asked = {"losses": ["cross_entropy", "tempered"], "statistics": ["gauss_newton", "sharpness", "fisher"]}
    curvature = {**CURVATURE, **asked, "blocks": True}
    settings = _settings(posthoc=posthoc, curvature=curvature)
    found = evaluate(model, build_loss("focal", gamma=2.0), dataset, settings, stage="rung", seed=3)
    (row,) = (row for row in found.rows if row["split"] == "val")
    measured = [name for name in row if name.startswith("hessian")]
    declared = [name for name in evaluation_columns(posthoc, curvature=curvature) if name.startswith("hessian")]
    never = {name for name in evaluation_columns(()) if "training" in name} | {"hessian_unavailable"}
    assert sorted(measured) == sorted({*declared} - never)
    assert statistic_words("hessian_tempered_by_ece_lambda_max") == "tempered by ece λ_max"
    assert statistic_words("hessian_cross_entropy_gauss_newton_trace") == "cross-entropy Tr(G)"
    assert statistic_words("hessian_tempered_by_ece_residual_lambda_max") == "tempered by ece λ_max of R"
    by_loss = {
        loss: [r for r in found.curvature["blocks"] if r["loss"] == loss]
        for loss in ("cross_entropy", "tempered_by_ece")
    }
    for loss, rows in by_loss.items():
        assert sum(each["trace"] for each in rows) == pytest.approx(row[f"hessian_{loss}_trace"], rel=1e-6)
    record_batch("blocks", BLOCKS_SCHEMA, [{"trial": "c00000", **each} for each in found.curvature["blocks"]])


def test_tempered_curvature_is_cross_entropys_of_divided_logits(dataset):
    torch.manual_seed(0)
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    row = _rows(linear, dataset, _settings(curvature={**CURVATURE, "losses": ["tempered"]}), "focal")["val"]
    temperature = row["posthoc_temperature_temperature"]
    with torch.no_grad():  # of a linear model, H of CE(z/T) in the weights is that of weights over T, over T²
        linear[1].weight /= temperature
        linear[1].bias /= temperature
    plain = _rows(linear, dataset, _settings())["val"]
    trace = plain["hessian_cross_entropy_trace"] / temperature**2
    assert row["hessian_tempered_temperature_trace"] == pytest.approx(trace, rel=1e-5)


def test_a_regulariser_is_measured_by_the_loss_it_surrounds(model, dataset):
    settings = _settings(posthoc=[], bootstrap=0)
    plain = _rows(model, dataset, settings)["val"]
    regularised = _rows(model, dataset, settings, "hessian_trace", weight=0.1)["val"]
    assert repr(plain) == repr(regularised)


def test_the_same_seed_gives_the_same_evaluation(model, dataset):
    settings = _settings(curvature=CURVATURE)
    first, second, other = (_rows(model, dataset, settings, seed=seed) for seed in (3, 3, 4))
    assert repr(first) == repr(second)
    assert first["val"]["hessian_training_lambda_max"] != other["val"]["hessian_training_lambda_max"]
    assert first["val"]["ece"] == other["val"]["ece"]
    assert first["val"]["ece_se"] == other["val"]["ece_se"], "all networks are measured on the same resamples"


def test_a_posthoc_method_that_refuses_its_data_leaves_its_reason(model, dataset):
    one_class = replace(dataset, val=replace(dataset.val, targets=torch.full_like(dataset.val.targets, 4)))
    rows = _rows(model, one_class, _settings(curvature=False))
    for row in rows.values():
        assert isinstance(row["posthoc_temperature_unavailable"], str)
        assert "posthoc_temperature_ece" not in row and "ece" in row


class Overflowing(Calibrator):
    def _probabilities(self, logits):
        return softmax64(logits * np.inf)


def test_a_posthoc_method_that_fails_leaves_its_reason_and_the_others_are_measured(model, dataset, monkeypatch):
    fitted = {
        "nan": lambda logits, targets: Overflowing("nan", {}, 10),
        "raises": lambda logits, targets: {}["nothing"],
    }
    for name, build in fitted.items():
        register(monkeypatch, POSTHOC, name, PosthocMethod(name, build))
    rows = _rows(model, dataset, _settings(curvature=False, posthoc=[*fitted, "temperature"], cross_fitted=["raises"]))
    for row in rows.values():
        assert all(row[f"posthoc_{name}_unavailable"] and f"posthoc_{name}_nll" not in row for name in fitted)
        assert math.isfinite(row["posthoc_temperature_nll"])
    assert "KeyError" in rows["val"]["cross_fitted_raises_unavailable"]


@pytest.fixture
def sure(model):
    """A network whose probabilities round to 0 and 1."""
    sure = deepcopy(model)
    with torch.no_grad():
        for parameter in list(sure.parameters())[-2:]:
            parameter.mul_(1e6)
    return sure


def test_the_nll_of_a_class_that_underflowed_is_not_capped(sure, dataset):
    method = {"name": "temperature", "objective": "ece"}
    rows = _rows(sure, dataset, _settings(curvature=False, posthoc=[method], cross_fitted=["temperature"]))
    scaled = predict(sure, dataset.test).double() / rows["test"]["posthoc_temperature_temperature"]
    exact = nn.functional.cross_entropy(scaled, dataset.test.targets).item()
    assert rows["test"]["posthoc_temperature_nll"] == pytest.approx(exact, rel=1e-9) and exact > 1000
    logits, targets = predict(sure, dataset.val).double().numpy(), dataset.val.targets.numpy()
    folds, values = folds_of(targets), []
    for fold in range(FOLDS):
        fitted = fit("temperature", logits[folds != fold], targets[folds != fold], objective="ece")
        scaled = torch.from_numpy(logits[folds == fold]) / fitted.parameters["temperature"]
        values += nn.functional.cross_entropy(scaled, dataset.val.targets[folds == fold], reduction="none").tolist()
    assert rows["val"]["cross_fitted_temperature_nll"] == pytest.approx(np.mean(values), rel=1e-9)
    assert np.mean(values) > 1000, "a probability of 1e-308 is 708"


def test_an_operator_without_second_derivative_leaves_its_reason(dataset):
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(context, values):
            return values * 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(context, gradient):
            return gradient * 2

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, inputs):
            return Once.apply(self.linear(inputs.flatten(1)))

    row = _rows(Network(), dataset, _settings())["val"]
    assert row["hessian_unavailable"] and math.isfinite(row["nll"])


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(dataset, training):
    torch.manual_seed(0)
    network = build_model("resnet8", dataset.input_shape, dataset.classes).train(training)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    _rows(network, dataset, _settings(posthoc=[]))
    assert network.training == training
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(m._forward_pre_hooks for m in network.modules())


def test_reliability_counts_every_sample(model, dataset):
    found = evaluate(model, build_loss("cross_entropy"), dataset, _settings(curvature=False), stage="end", seed=0)
    for split, samples in (("val", 90), ("test", 90)):
        assert sum(row["n"] for row in found.reliability if row["split"] == split) == samples
        assert found.logits[split].shape == (samples, 10) and found.logits[split].dtype == np.float32
    assert all(row["stage"] == "end" for row in found.rows)


def test_region_shares_of_a_focal_network_and_distances_from_a_known_posterior() -> None:
    known = load_dataset("known_posterior_1d", train_samples=500, validation_samples=300, test_samples=400)
    settings = EvaluationSettings(posthoc=({"name": "focal_map"}, {"name": "temperature"}), bootstrap=0)
    torch.manual_seed(0)
    model = build_model("mlp", known.input_shape, known.classes, width=8)
    focal = evaluate(model, build_loss("focal", gamma=3.0), known, settings, stage="end", seed=0)
    for row in focal.rows:
        assert row["region_over_confident"] + row["region_under_confident"] == pytest.approx(1)
        shares = row["region_below_tau_oc"], row["region_ambiguous"], row["region_above_tau_uc"]
        assert sum(shares) == pytest.approx(1)
    val, test = focal.rows
    assert "kl_to_posterior" not in val
    probabilities = softmax64(focal.logits["test"])
    assert known.posterior is not None
    eta = known.posterior.numpy()
    assert test["kl_to_posterior"] == pytest.approx((eta * np.log(eta / probabilities)).sum(1).mean())
    assert test["posthoc_focal_map_kl_to_posterior"] > 0
    assert test["posthoc_temperature_true_calibration_error"] >= 0
    plain = evaluate(model, build_loss("brier"), known, settings, stage="end", seed=0)
    assert not any(name.startswith("region_") for name in plain.rows[0])


def test_a_further_split_is_measured_where_it_is_asked_for_and_changes_no_other_row(model, dataset):
    noise = torch.randn(dataset.test.inputs.shape, generator=torch.Generator().manual_seed(0))
    wider = replace(dataset, further={"noisy": replace(dataset.test, inputs=dataset.test.inputs + noise)})
    plain, known = _settings(), _rows(model, dataset, _settings())
    assert repr(_rows(model, wider, plain)) == repr(known), "nothing is measured that was not asked for"
    rows = _rows(model, wider, replace(plain, splits=("val", "noisy", "test")))
    assert list(rows) == ["val", "noisy", "test"]
    assert repr({name: rows[name] for name in known}) == repr(known)
    assert rows["noisy"].keys() == known["test"].keys() | set(OOD_COLUMNS)
    assert rows["noisy"]["nll"] != known["test"]["nll"] and 0 < rows["noisy"]["ood_msp_auroc"] < 1
    columns = evaluation_columns(["temperature"], splits=("val", "test", "noisy"))
    assert set(OOD_COLUMNS) <= set(columns) and not set(OOD_COLUMNS) & set(evaluation_columns(["temperature"]))


def test_an_evaluation_without_validation_data_is_refused():
    with pytest.raises(ValueError, match=r"splits = \['test'\] must include val"):
        EvaluationSettings.from_mapping({"splits": ["test"]})


def test_the_defaults_are_those_of_a_search_space():
    assert EvaluationSettings.from_mapping({}) == replace(Evaluation().settings, curvature=None)


def test_one_method_twice_has_columns_by_label_and_is_fitted_on_the_split_it_names(dataset):
    """Each as it would be alone: labels and splits change nothing but names and the data that T is fitted on."""
    torch.manual_seed(1)
    model = build_model("mlp", dataset.input_shape, dataset.classes, width=20)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)

    def row(*methods):
        settings = EvaluationSettings.from_mapping({"posthoc": list(methods), "bootstrap": 0})
        return evaluate(model, build_loss("focal", gamma=2.0), dataset, settings, stage="end", seed=0).rows[1]

    by_ece = {"name": "temperature", "objective": "ece"}
    by_training = {"name": "temperature", "fitted_on": "train"}
    alone = [
        row(method) for method in ("temperature", by_ece, by_training, {"name": "temperature", "objective": "focal"})
    ]
    both = row(
        "temperature",
        {**by_ece, "label": "by_ece"},
        {**by_training, "label": "trained"},
        {"name": "temperature", "label": "ts_fl", "objective": "focal", "gamma": 2.0},
    )
    labels = ("temperature", "by_ece", "trained", "ts_fl")
    for label, single in zip(labels, alone, strict=True):
        for name in ("temperature", "ece", "nll"):
            assert both[f"posthoc_{label}_{name}"] == single[f"posthoc_temperature_{name}"], (label, name)
    assert len({both[f"posthoc_{label}_temperature"] for label in labels}) == 4
    columns = evaluation_columns(["temperature", {"name": "temperature", "label": "by_ece"}])
    assert {"posthoc_temperature_ece", "posthoc_by_ece_ece", "posthoc_by_ece_temperature"} <= set(columns)


def test_temperature_by_focal_loss_takes_each_networks_own_gamma_and_has_none_without(dataset, model):
    settings = EvaluationSettings.from_mapping(
        {"posthoc": [{"name": "temperature", "objective": "focal"}, "focal_map"], "bootstrap": 0}
    )
    gamma_zero = {
        name: evaluate(model, build_loss(name), dataset, settings, stage="end", seed=0).rows[0]
        for name in ("cross_entropy", "label_smoothing", "brier")
    }
    by_nll = EvaluationSettings.from_mapping({"posthoc": ["temperature"], "bootstrap": 0})
    plain = evaluate(model, build_loss("cross_entropy"), dataset, by_nll, stage="end", seed=0).rows[0]
    for name in ("cross_entropy", "label_smoothing"):
        found = gamma_zero[name]["posthoc_temperature_temperature"]
        assert found == pytest.approx(plain["posthoc_temperature_temperature"], rel=1e-6)
        assert gamma_zero[name]["posthoc_focal_map_gamma"] == 0.0
    assert "needs gamma" in gamma_zero["brier"]["posthoc_temperature_unavailable"]
