"""`sweeper.Calibrator` beside scikit-learn's own rules, its classifiers and its temperature scaling."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import sweeper
from sweeper import Calibrator, SweeperError
from tests.trainables.posthoc.test_base import OPTIONS
from trainables.metrics import softmax64
from trainables.posthoc import POSTHOC, fit

#: Checks that train on features instead of a classifier's outputs: their columns are no classes.
FEATURES = "its X has other columns than classes: a calibrator takes a classifier's outputs, not features"
NOT_APPLICABLE = dict.fromkeys(
    (
        "check_estimators_overwrite_params",
        "check_estimators_fit_returns_self",
        "check_readonly_memmap_input",
        "check_classifiers_classes",
        "check_classifiers_train",
    ),
    FEATURES,
)


@parametrize_with_checks([Calibrator()], expected_failed_checks=lambda estimator: NOT_APPLICABLE)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def outputs():
    """Return overconfident logits of three classes, labels by name, and the labels' columns."""
    random = np.random.default_rng(3)
    truth = random.normal(size=(600, 3)) * 1.5
    columns = np.array([random.choice(3, p=p) for p in softmax64(truth)])
    return 3 * truth, np.array(["ant", "bee", "cat"])[columns], columns


@pytest.mark.parametrize("name", sorted(method.name for method in POSTHOC.built_in()))
def test_every_method_gives_what_it_gives_alone(name, outputs, tmp_path):
    logits, labels, columns = outputs
    options = OPTIONS.get(name, {})
    calibrator = Calibrator(name, **options).fit(logits, labels)
    expected = fit(name, logits, columns, **options)(logits)
    np.testing.assert_array_equal(calibrator.predict_proba(logits), expected)
    assert calibrator.predict(logits).tolist() == np.array(["ant", "bee", "cat"])[expected.argmax(1)].tolist()
    read = Calibrator.load(calibrator.save(tmp_path / "calibrator.npz"))
    np.testing.assert_array_equal(read.predict_proba(logits), expected)
    assert read.get_params() == calibrator.get_params() and read.classes_.tolist() == ["ant", "bee", "cat"]


def test_probabilities_are_taken_as_such(outputs):
    logits, labels, _ = outputs
    of_logits, given = Calibrator().fit(logits, labels), softmax64(logits)
    of_probabilities = Calibrator().fit(given, labels)
    assert (of_logits.inputs_, of_probabilities.inputs_) == ("logits", "probabilities")
    np.testing.assert_allclose(of_probabilities.predict_proba(given), of_logits.predict_proba(logits), atol=1e-7)
    for wrong in (logits, given * 2):
        with pytest.raises(ValueError, match="sum to 1"):
            of_probabilities.predict_proba(wrong)
    with pytest.raises(ValueError, match="inputs"):
        Calibrator(inputs="probability").fit(given, labels)
    with pytest.raises(ValueError, match="probabilities"):
        Calibrator(inputs="probabilities").fit(logits, labels)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_two_classes_may_have_one_column(kind, shape):
    random = np.random.default_rng(5)
    scores = random.normal(size=500) * 4
    labels = random.random(500) < 1 / (1 + np.exp(-scores / 2))
    given = (scores if kind == "logits" else 1 / (1 + np.exp(-scores))).reshape(shape)
    calibrator = Calibrator("platt").fit(given, labels)
    assert calibrator.inputs_ == kind and calibrator.classes_.tolist() == [False, True]
    both = Calibrator("platt").fit(np.stack([0 * scores, scores], axis=1), labels)
    expected = both.predict_proba(np.stack([0 * scores, scores], axis=1))
    np.testing.assert_allclose(calibrator.predict_proba(given), expected, atol=1e-7)


def test_labels_that_do_not_occur_keep_their_column():
    logits = np.random.default_rng(0).normal(size=(90, 4))
    calibrator = Calibrator().fit(logits, np.arange(90) % 3)
    assert calibrator.classes_.tolist() == [0, 1, 2, 3] and calibrator.predict_proba(logits).shape == (90, 4)
    with pytest.raises(ValueError, match="4 columns"):
        Calibrator().fit(logits, np.array(["a", "b", "c"])[np.arange(90) % 3])


def test_it_agrees_with_scikit_learns_temperature_scaling():
    inputs, labels = make_classification(900, n_informative=6, n_classes=3, random_state=0)
    network = LogisticRegression(C=100).fit(inputs[:300], labels[:300])
    logits = 4 * network.decision_function(inputs)
    ours = Calibrator().fit(logits[300:600], labels[300:600]).predict_proba(logits[600:])

    class Scaled(LogisticRegression):
        def decision_function(self, X):
            return 4 * super().decision_function(X)

    scaled = Scaled(C=100).fit(inputs[:300], labels[:300])
    theirs = CalibratedClassifierCV(FrozenEstimator(scaled), method="temperature").fit(inputs[300:600], labels[300:600])
    np.testing.assert_allclose(ours, theirs.predict_proba(inputs[600:]), atol=1e-4)


def test_clone_pipelines_grids_and_frames(outputs):
    logits, labels, _ = outputs
    calibrator = Calibrator("temperature", objective="ece", bins=10)
    assert clone(calibrator).get_params() == {"method": "temperature", "inputs": "auto", "objective": "ece", "bins": 10}
    pipeline = make_pipeline(FunctionTransformer(softmax64), clone(calibrator)).fit(logits, labels)
    assert pipeline.predict_proba(logits).shape == (600, 3)
    grid = GridSearchCV(Calibrator(), {"method": ["temperature", "vector"]}, scoring="neg_log_loss", cv=3)
    assert grid.fit(logits, labels).best_params_["method"] in ("temperature", "vector")
    frame = pd.DataFrame(logits, columns=["ant", "bee", "cat"])
    fitted = Calibrator().fit(frame, labels)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict_proba(frame[["cat", "bee", "ant"]])


def test_all_faults_of_options_are_named_at_once(outputs):
    with pytest.raises(ValueError) as refused:
        Calibrator("temperature", objective="nul", binz=3).fit(*outputs[:2])
    assert "nul" in str(refused.value) and "binz" in str(refused.value)


@pytest.mark.parametrize("kind", ["logits", "probabilities", "one column"])
def test_the_module_computes_the_same(kind, outputs, tmp_path):
    logits, labels, _ = outputs
    given = {"logits": logits, "probabilities": softmax64(logits), "one column": logits[:, 1]}[kind]
    labels = labels if kind != "one column" else labels == "bee"
    calibrator = Calibrator().fit(given, labels)
    computed = calibrator.module(torch.from_numpy(given).reshape(len(given), -1))
    np.testing.assert_allclose(computed.numpy(), calibrator.predict_proba(given), rtol=1e-12)


@pytest.mark.integration
def test_an_onnx_file_computes_the_same(outputs, tmp_path):
    import onnxruntime

    logits, labels, _ = outputs
    calibrator = Calibrator("vector").fit(logits, labels)
    calibrator.to_onnx(tmp_path / "calibrator.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "calibrator.onnx"))
    (found,) = session.run(None, {"inputs": logits.astype(np.float32)})
    np.testing.assert_allclose(found, calibrator.predict_proba(logits), atol=1e-5)


def test_what_torch_or_a_file_cannot_hold_is_said(outputs, tmp_path):
    logits, labels, _ = outputs
    with pytest.raises(SweeperError, match="isotonic"):
        Calibrator("isotonic").fit(logits, labels).module  # noqa: B018
    (tmp_path / "no.npz").write_bytes(b"no archive")
    for path in (tmp_path / "no.npz", tmp_path / "missing.npz", tmp_path):
        with pytest.raises(SweeperError, match="cannot be read"):
            Calibrator.load(path)
    with pytest.raises(SweeperError):
        Calibrator().fit(logits, labels).save(tmp_path / "none" / "such" / "file.npz")


def test_the_names_are_public():
    assert {"Calibrator", "calibration_report"} <= set(sweeper.__all__)
