"""What holds for every post-hoc method, and that a cross-fitted one never sees the samples that it calibrates."""

import pickle

import numpy as np
import pytest

from tests.trainables.predictions import drawn_predictions
from tests.trainables.registered import register
from trainables.metrics import METRIC_NAMES, evaluate_probabilities, softmax64
from trainables.metrics.refinement import FOLDS, folds_of
from trainables.posthoc import POSTHOC, Calibrator, PosthocMethod, PosthocUnavailable, fit
from trainables.posthoc.base import cross_fitted, parameter_names

OPTIONS = {"focal_map": {"gamma": 2.0}, "metacal_acc": {"accuracy": 0.7}}
ORDER_KEEPING = ("temperature", "focal_map", "focal_temperature", "ensemble_temperature")


def logits_and_targets(samples=400):
    random = np.random.default_rng(0)
    targets = random.integers(0, 4, samples)
    logits = random.normal(size=(samples, 4)) * 2
    logits[np.arange(samples), targets] += 3.0
    return logits, targets


@pytest.fixture(scope="module", params=sorted(POSTHOC))
def fitted(request):
    return fit(request.param, *logits_and_targets(), **OPTIONS.get(request.param, {}))


def test_parameters_are_plain_numbers_under_announced_names(fitted):
    assert tuple(fitted.parameters) == parameter_names(fitted.name)
    assert all(type(value) is float and np.isfinite(value) for value in fitted.parameters.values())
    assert not set(fitted.parameters) & set(METRIC_NAMES)
    assert fitted.name in repr(fitted)


def test_probabilities_are_float64_on_the_simplex_also_in_parts(fitted):
    logits, _ = logits_and_targets()
    whole = fitted(logits)
    assert whole.dtype == np.float64
    np.testing.assert_allclose(whole.sum(1), 1.0, rtol=1e-12)
    parts = np.concatenate([fitted(logits[:1]), fitted(logits[1:150]), fitted(logits[150:])])
    np.testing.assert_allclose(parts, whole, rtol=1e-12)


def test_calibrators_travel_between_processes(fitted):
    logits, _ = logits_and_targets()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted))(logits), fitted(logits))


@pytest.mark.parametrize("name", ORDER_KEEPING)
def test_accuracy_preserving_methods_keep_the_prediction(name):
    logits, targets = logits_and_targets()
    found = fit(name, logits, targets, **OPTIONS.get(name, {}))(logits)
    np.testing.assert_array_equal(found.argmax(1), logits.argmax(1))


def test_only_underflowed_probabilities_need_their_logits(fitted):
    logits, _ = logits_and_targets()
    assert fitted.underflowed(logits, fitted(logits)) is None
    probabilities = fitted(1e4 * logits)
    found = fitted.underflowed(1e4 * logits, probabilities)
    if found is not None:
        np.testing.assert_array_equal(softmax64(found), probabilities)
    assert (found is None) == (type(fitted).underflowed is Calibrator.underflowed)


@pytest.mark.parametrize("name", sorted(POSTHOC))
@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda z, y: (np.where(np.arange(4) == 1, np.nan, z), y), r"logits hold nan \(sample 0, class 1"),
        (lambda z, y: (np.where(np.arange(4) == 1, np.inf, z), y), "must be finite; the network diverged"),
        (lambda z, y: (z, y + 4), r"outside \[0, 4\): number the classes from 0"),
        (lambda z, y: (z, y - 9), r"outside \[0, 4\)"),
        (lambda z, y: (z, y * 0 + 3), "all 400 validation samples are of class 3: .* stratified split"),
        (lambda z, y: (z[:, :1], y * 0), "at least two classes"),
        (lambda z, y: (z[:0], y[:0]), "at least one sample"),
        (lambda z, y: (z, y[:-1]), "one class index for each of 400 samples"),
    ],
)
def test_unusable_validation_data_name_value_and_remedy(name, spoil, sentence):
    logits, targets = spoil(*logits_and_targets())
    with pytest.raises(PosthocUnavailable, match=sentence):
        fit(name, logits, targets, **OPTIONS.get(name, {}))


def test_application_checks_its_logits(fitted):
    with pytest.raises(PosthocUnavailable, match="nan"):
        fitted(np.full((2, 4), np.nan))
    with pytest.raises(PosthocUnavailable, match="fitted on 4 classes"):
        fitted(np.zeros((2, 5)))


def test_unknown_names_and_options_come_with_the_nearest():
    logits, targets = logits_and_targets()
    with pytest.raises(ValueError, match="did you mean 'temperature'"):
        fit("temprature", logits, targets)
    with pytest.raises(ValueError, match="did you mean 'metacal_acc'"):
        parameter_names("metacal_ac")
    with pytest.raises(ValueError, match="did you mean 'objective'"):
        fit("temperature", logits, targets, objectiv="nll")
    with pytest.raises(ValueError, match="must be one of nll, nll_on_grid, ece, focal"):
        fit("temperature", logits, targets, objective="brier")


@pytest.mark.parametrize(("method", "options"), [("temperature", {}), ("temperature", {"objective": "ece"})])
def test_each_fold_is_calibrated_by_a_fit_on_the_others(method, options):
    logits, targets = drawn_predictions(1, 200, 4, 4)
    (found, _), fold = cross_fitted(method, logits, targets, options), folds_of(targets)
    for each in range(FOLDS):
        expected = fit(method, logits[fold != each], targets[fold != each], **options)(logits[fold == each])
        assert (found[fold == each] == expected).all()


def test_fewer_samples_than_folds_are_refused():
    with pytest.raises(PosthocUnavailable, match="needs at least 5"):
        cross_fitted("temperature", np.zeros((4, 2)), [0, 1, 0, 1], {})


def with_zeros(logits, targets):
    """Return log-probabilities with zeros: a masked class, and a sample whose own class has probability 0."""
    masked = np.where(np.arange(4) == (targets[:, None] + 1) % 4, -np.inf, logits)
    masked[0, targets[0]] = -np.inf
    return np.log(softmax64(masked), where=masked != -np.inf, out=np.full_like(masked, -np.inf))


@pytest.mark.parametrize("name", sorted(POSTHOC))
def test_a_logit_of_minus_infinity_is_a_probability_of_zero(name):
    logits, targets = logits_and_targets()
    found = fit(name, with_zeros(logits, targets), targets, **OPTIONS.get(name, {}))
    assert all(np.isfinite(value) for value in found.parameters.values())
    probabilities = found(with_zeros(logits, targets))
    assert np.isfinite(probabilities).all() and np.allclose(probabilities.sum(1), 1.0)
    found.underflowed(with_zeros(logits, targets), probabilities)
    (values, _) = cross_fitted(name, with_zeros(logits, targets), targets, OPTIONS.get(name, {}))
    assert np.isfinite(values).all()


def hostile_cases():
    """Return logits [N, 4] and targets as no network should give them, by name."""
    logits, targets = logits_and_targets(96)
    rows, top = np.arange(96), logits.argmax(1)
    with np.errstate(divide="ignore"):
        half = np.log(softmax64(6 * logits).astype(np.float16).astype(np.float32))
    near_zero = np.where(np.arange(4) == top[:, None], 0.0, -700 - np.abs(logits) * 4)
    one_hot = np.where(np.arange(4) == top[:, None], 0.0, -np.inf)
    return {
        "half precision": (half, targets),
        "minus infinity": (np.where((logits < -1) & (logits < logits.max(1, keepdims=True)), -np.inf, logits), targets),
        "subnormal": (near_zero, targets),
        "one hot": (one_hot, targets),
        "one hot and wrong": (one_hot, (top + 1) % 4),
        "times 400": (400 * logits, targets),
        "huge": (1e300 * logits, targets),
        "overflowing": (np.where(logits > 2, 1.7e308, -1.7e308), targets),
        "tiny": (1e-300 * logits, targets),
        "far from 0": (logits + 1e17, targets),
        "tied": (logits.round(), targets),
        "constant": (0 * logits, targets),
        "equal rows": (np.repeat(logits[:1], 96, axis=0), targets),
        "absent class": (logits, np.where(targets == 2, 1, targets)),
        "all right": (logits, top),
        "all wrong": (logits, logits.argmin(1)),
        "two samples": (logits[:2], np.array([0, 3])),
        "fewer samples than classes": (np.tile(logits[:5], (1, 3)), rows[:5]),
    }


HOSTILE = hostile_cases()


@pytest.mark.parametrize("name", sorted(POSTHOC))
@pytest.mark.parametrize("case", HOSTILE)
def test_a_method_gives_probabilities_or_a_reason(name, case):
    logits, targets = HOSTILE[case]
    try:
        calibrator = fit(name, logits, targets, **OPTIONS.get(name, {}))
        for applied_to in (logits, logits[::-1] / 3):
            probabilities = calibrator(applied_to)
            exact = calibrator.underflowed(applied_to, probabilities)
            measured = evaluate_probabilities(probabilities, targets, 2, ("ece", "nll", "brier"), exact)
            assert np.isfinite([*calibrator.parameters.values()]).all()
            assert not np.isnan([*measured.values()]).any()  # an NLL above 1.8e308 is infinite
    except PosthocUnavailable as error:
        assert str(error)


class Failing(Calibrator):
    """A method with a defect."""

    def __init__(self, result, parameters):
        super().__init__("failing", parameters, 4)
        self.result = result

    def _probabilities(self, logits):
        return self.result(logits)


@pytest.mark.parametrize(
    ("result", "parameters", "sentence"),
    [
        (lambda z: z / np.zeros_like(z), {}, "400 of 400 samples, the first 0, are not finite"),
        (lambda z: 1 / 0, {}, "ZeroDivisionError"),
        (lambda z: softmax64(z)[:, :2], {}, r"shape \(400, 2\): return the shape of the logits, \(400, 4\)"),
        (lambda z: 2 * softmax64(z), {}, "must lie in"),
        (softmax64, {"temperature": np.inf}, "temperature = inf"),
    ],
)
def test_what_is_not_probabilities_is_a_reason(monkeypatch, result, parameters, sentence):
    method = PosthocMethod("failing", lambda logits, targets: Failing(result, parameters), columns=(*parameters,))
    register(monkeypatch, POSTHOC, "failing", method)
    with pytest.raises(PosthocUnavailable, match=sentence):
        fit("failing", *logits_and_targets())(logits_and_targets()[0])


def test_a_fit_that_fails_is_a_reason(monkeypatch):
    def build(logits, targets):
        raise np.linalg.LinAlgError("singular")

    register(monkeypatch, POSTHOC, "failing", PosthocMethod("failing", build))
    with pytest.raises(PosthocUnavailable, match="LinAlgError: singular"):
        fit("failing", *logits_and_targets())


def test_a_sample_needs_a_logit_and_probabilities_are_not_logits():
    logits, targets = logits_and_targets()
    with pytest.raises(PosthocUnavailable, match=r"logits hold -inf \(sample 3, class 0; 1 of 400 samples"):
        fit("temperature", np.where(np.arange(400)[:, None] == 3, -np.inf, logits), targets)
    with pytest.raises(PosthocUnavailable, match="the logits are probabilities"):
        fit("temperature", softmax64(logits), targets)


def nll_of(probabilities, targets):
    return -np.log(probabilities[np.arange(len(targets)), targets]).mean()


@pytest.mark.parametrize(
    ("name", "classes", "samples"),
    [("temperature", 2, 400), ("platt", 6, 800), ("beta", 2, 400), ("spline", 6, 800), ("vector", 6, 800)],
)
def test_free_parameters_are_those_of_the_error_of_a_fit(name, classes, samples):
    """A fit to a calibrated network is better on its n samples than on new ones by k/n of NLL (Akaike 1974)."""
    rng = np.random.default_rng(0)

    def draw(count):
        logits = rng.normal(size=(count, classes)) * 2
        return logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)

    new, gaps = draw(4_000), []
    for _ in range(40):
        known = draw(samples)
        calibrator = fit(name, *known)
        gains = [nll_of(softmax64(z), y) - nll_of(calibrator(z), y) for z, y in (known, new)]
        gaps.append(samples * (gains[0] - gains[1]))
    free = POSTHOC[name].free(classes, calibrator.parameters)
    error = np.std(gaps) / 40**0.5
    assert abs(np.mean(gaps) - free) < 0.2 * free + 3 * error, (np.mean(gaps), free, error)
