import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from trainables.datasets import load_dataset, synthetic


@pytest.mark.parametrize("seed", range(3))
def test_the_posterior_is_bayes_rule(seed):
    random = np.random.RandomState(seed)
    points, means = random.normal(size=(50, 2)), random.normal(size=(3, 2))
    factors = random.uniform(-1, 1, (3, 2, 2))
    densities = np.stack([multivariate_normal(m, f.T @ f).pdf(points) for m, f in zip(means, factors, strict=True)], 1)
    expected = densities / densities.sum(1, keepdims=True)
    np.testing.assert_allclose(synthetic.gaussian_posterior(points, means, factors), expected, atol=1e-8)


def test_the_line_problem_has_its_population_error():
    data = load_dataset("known_posterior_1d", test_samples=100_000)
    densities = np.stack([norm(mean).pdf(data.test.inputs[:, 0].double().numpy()) for mean in (-2, 0, 2)], 1)
    np.testing.assert_allclose(data.posterior, densities / densities.sum(1, keepdims=True), atol=1e-5)
    wrong = (data.posterior.argmax(1) != data.test.targets).double().mean()
    assert float(wrong) == pytest.approx(0.2115, abs=0.005)
    assert float(1 - data.posterior.amax(1).mean()) == pytest.approx(0.2115, abs=0.003)


@pytest.mark.parametrize("flipped", [0.0, 0.1])
def test_the_plane_problem_flips_its_share(flipped):
    data = load_dataset("mukhoti_linear", test_samples=50_000, flipped=flipped)
    assert (len(data.train), len(data.val), data.classes, data.input_shape) == (4000, 1000, 2, (2,))
    assert data.posterior.amin() >= flipped - 1e-9
    torch.testing.assert_close(data.posterior.sum(1), torch.ones(50_000, dtype=torch.float64))
    wrong = (data.posterior.argmax(1) != data.test.targets).double()
    assert float(wrong.mean()) == pytest.approx(float(1 - data.posterior.amax(1).mean()), abs=0.006)
    by_position = (data.test.inputs[:, 0] > 0).long()  # adjacent clusters, so a straight line separates the classes
    assert float((by_position != data.test.targets).double().mean()) < flipped + 0.03


def test_a_linear_classifier_without_bias_reaches_the_bayes_error():
    from trainables.models import build_model

    data = load_dataset("mukhoti_linear")
    torch.manual_seed(0)
    model = build_model("mlp", data.input_shape, 2, depth=0, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=50)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data.train.inputs), data.train.targets)
        loss.backward()
        return loss

    optimizer.step(closure)
    error = (model(data.test.inputs).argmax(1) != data.test.targets).double().mean()
    assert float(error) == pytest.approx(0.1, abs=0.03)
