"""Posterior §5.2's problem with our parameters: one feature, three Gaussian classes; and small networks on it."""

import numpy as np
import torch

from trainables.metrics.base import softmax64
from trainables.metrics.known_posterior import posterior_metrics
from trainables.posthoc import fit

MEANS = np.array([-2.0, 0.0, 2.0])


def posterior(points):
    """Class probabilities [N, 3] of points [N]: unit variance, equal priors."""
    return softmax64(-0.5 * (points[:, None] - MEANS) ** 2)


def density_on_grid(points=20_001, reach=9.0):
    """Points over the line and their probabilities, for population values by quadrature."""
    grid = np.linspace(-2 - reach, 2 + reach, points)
    density = np.exp(-0.5 * (grid[:, None] - MEANS) ** 2).sum(1)
    return grid, density / density.sum()


def draw(samples, seed):
    random = np.random.default_rng(seed)
    targets = random.integers(0, 3, samples)
    return random.normal(size=samples) + MEANS[targets], targets


def train(points, targets, gamma, seed, epochs=30, batch_size=500):
    """Return a three-layer network trained with the focal loss by Adam, one cycle of the learning rate."""
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)]
    network = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    inputs, labels = torch.as_tensor(points[:, None] / 3, dtype=torch.float32), torch.as_tensor(targets)
    steps = epochs * (len(labels) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(batch_size)[: len(labels) // batch_size]:
            log_p = torch.log_softmax(network(inputs[batch]), 1).gather(1, labels[batch, None])[:, 0]
            loss = (-((-torch.expm1(log_p)).clamp_min(1e-12) ** gamma) * log_p).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network


def logits_of(network, points):
    with torch.no_grad():
        return network(torch.as_tensor(points[:, None] / 3, dtype=torch.float32)).double().numpy()


def measure(gamma, seed, samples=20_000, test_samples=200_000):
    """Train on `samples` points and return posterior metrics of `raw`, `temperature` and `focal_map` outputs."""
    torch.set_num_threads(1)
    network = train(*draw(samples, 1000 + seed), gamma, seed)
    validation, targets = draw(samples, 2000 + seed)
    test, truth = draw(test_samples, 3000 + seed)
    on_validation, on_test = logits_of(network, validation), logits_of(network, test)
    eta = posterior(test)
    outputs = {
        "raw": softmax64(on_test),
        "temperature": fit("temperature", on_validation, targets)(on_test),
        "focal_map": fit("focal_map", on_validation, targets, gamma=gamma)(on_test),
    }
    found = {name: posterior_metrics(eta, q) for name, q in outputs.items()}
    return found | {"error": float((on_test.argmax(1) != truth).mean())}


def main():
    """Print the finding: KL and true calibration error by loss and post-hoc method, mean ± sd over five seeds."""
    for gamma in (0.0, 1.0, 5.0):
        runs = [measure(gamma, seed) for seed in range(5)]
        errors = [run["error"] for run in runs]
        print(f"γ = {gamma:g}: error {np.mean(errors):.4f} ± {np.std(errors, ddof=1):.4f}")
        for method in ("raw", "temperature", "focal_map"):
            cells = []
            for metric in runs[0][method]:
                values = [run[method][metric] for run in runs]
                cells.append(f"{metric} {np.mean(values):.5f} ± {np.std(values, ddof=1):.5f}")
            print(f"  {method:12s}", "  ".join(cells))


if __name__ == "__main__":
    main()
