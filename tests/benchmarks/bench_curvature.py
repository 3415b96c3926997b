"""Time to λ_max at a residual of 1e-3 and Tr(H) to a standard error of 2 %, beside curvlinops and PyHessian.

`python -m tests.benchmarks.bench_curvature [--rows mlp resnet8 resnet18 quickstart lanes] [--rounds 5] [--threads 1]`

All contenders take the same network, data, loss (cross-entropy) and cores, in turns within one run. What the two
packages must be told to reach the precision is found beforehand and not timed: PyHessian's tolerance for the
residual, the number of probes from 60 pilot probes (neither states an error). Times of the resnet18 row are products
needed times a measured time per product, for the packages only; this project's are run in full.
The quickstart row weighs curvature against training in a sweep of 48 configurations × 2 seeds, half mlp, half
resnet8, of which about 17 and 9 pass the rungs at 3 and 9 of 27 epochs.
The lanes row takes eight mlps with focal losses of different γ, on 128 samples, together and one by one.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from trainables.curvature import CurvatureSettings, measure_curvature
from trainables.curvature.lanes import Lane, measure_lanes
from trainables.datasets import load_dataset
from trainables.losses import build_loss
from trainables.models import build_model

RESIDUAL, PRECISION, PILOT = 1e-3, 0.02, 60
RUNGS = ((3, 48), (9, 17), (27, 9))  # epochs, and how many of 48 configurations get there


class Problem:
    """A network in eval mode and one batch of data."""

    def __init__(self, name: str, epochs: int = 9) -> None:
        torch.manual_seed(0)
        if name == "resnet18":
            self.model = build_model("resnet18", (3, 32, 32), 10)
            self.inputs, self.targets = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
            settle_statistics(self.model, self.inputs)
        else:
            digits = load_dataset("digits")
            self.model = build_model(name, digits.input_shape, digits.classes)
            train = digits.train
            self.epoch_seconds = fit(self.model, train.prepare(train.inputs), train.targets, epochs)
            self.inputs, self.targets = digits.val.prepare(digits.val.inputs), digits.val.targets
        self.model.eval()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]

    def product(self, vector: list[Tensor]) -> list[Tensor]:
        """H·v by double backward; used to check others, never timed."""
        loss = cross_entropy(self.model(self.inputs), self.targets)
        gradients = torch.autograd.grad(loss, self.parameters, create_graph=True)
        return list(torch.autograd.grad(gradients, self.parameters, vector))


def settle_statistics(model: nn.Module, inputs: Tensor) -> None:
    """Give batch-norm the statistics of the random images."""
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model(inputs)


def fit(model: nn.Module, inputs: Tensor, targets: Tensor, epochs: int) -> float:
    """Train with SGD and return the seconds of a median epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    generator, seconds = torch.Generator().manual_seed(1), []
    model.train()
    for _ in range(epochs):
        began = time.perf_counter()
        for rows in torch.randperm(len(targets), generator=generator).split(128):
            optimizer.zero_grad()
            cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def ours(problem: Problem, method: str) -> Callable[[int], dict[str, float]]:
    """This project's measurement, which states its own residual and error."""
    settings = CurvatureSettings(
        lanczos_steps=64, residual_tolerance=RESIDUAL, trace_precision=PRECISION, trace_method=method, max_matvecs=600
    )

    def measure(seed: int) -> dict[str, float]:
        losses = {"loss": cross_entropy}
        return measure_curvature(problem.model, problem.inputs, problem.targets, losses, settings=settings, seed=seed)[
            "loss"
        ]

    return measure


def curvlinops_operator(problem: Problem) -> Any:
    import curvlinops

    data = [(problem.inputs, problem.targets)]
    return curvlinops.HessianLinearOperator(
        problem.model, nn.CrossEntropyLoss(), problem.parameters, data, check_deterministic=False
    )


def curvlinops_lambda(problem: Problem, counts: dict[str, int]) -> float:
    """λ_max by scipy's eigsh on curvlinops' operator."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator = curvlinops_operator(problem).to_scipy()

    def times(vector: Any) -> Any:
        counts["lambda"] = counts.get("lambda", 0) + 1
        return operator @ vector

    counted = LinearOperator(operator.shape, matvec=times, dtype=operator.dtype)
    return float(eigsh(counted, k=1, which="LA", tol=RESIDUAL, return_eigenvectors=True)[0][0])


def curvlinops_trace(problem: Problem, probes: int) -> float:
    import curvlinops

    return float(curvlinops.hutchinson_trace(curvlinops_operator(problem), num_matvecs=probes))


def pyhessian_computer(problem: Problem) -> Any:
    """PyHessian's object; it adds to gradients left from before, so they are cleared."""
    import pyhessian

    problem.model.zero_grad(set_to_none=True)
    return pyhessian.hessian(problem.model, nn.CrossEntropyLoss(), data=(problem.inputs, problem.targets), cuda=False)


def pyhessian_tolerance(problem: Problem) -> tuple[float, float]:
    """The loosest tolerance at which PyHessian's eigenvector meets the residual, and that residual."""
    for tolerance in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
        torch.manual_seed(0)
        values, vectors = pyhessian_computer(problem).eigenvalues(maxIter=400, tol=tolerance)
        image = problem.product([v.detach() for v in vectors[0]])
        gaps = zip(image, vectors[0], strict=True)
        residual = math.sqrt(sum(float((h - values[0] * v).detach().square().sum()) for h, v in gaps)) / abs(values[0])
        if residual <= RESIDUAL:
            break
    return tolerance, residual


def probes_needed(problem: Problem, pilot: int = PILOT) -> int:
    """How many plain Rademacher probes reach a standard error of `PRECISION` times the trace."""
    generator, values = torch.Generator().manual_seed(5), []
    for _ in range(pilot):
        signs = [torch.randint(0, 2, p.shape, generator=generator) * 2.0 - 1 for p in problem.parameters]
        values.append(sum(float((s * h).sum()) for s, h in zip(signs, problem.product(signs), strict=True)))
    return math.ceil((statistics.stdev(values) / (PRECISION * abs(statistics.fmean(values)))) ** 2)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):8.3f} [{min(seconds):.3f}, {max(seconds):.3f}]"


def compare(name: str, rounds: int) -> None:
    """One row in full: all contenders in turns."""
    problem = Problem(name)
    probes, (tolerance, residual) = probes_needed(problem), pyhessian_tolerance(problem)
    count = sum(p.numel() for p in problem.parameters)
    print(f"\n{name}: {count} parameters, {len(problem.targets)} samples; {probes} plain probes needed for "
          f"{PRECISION:.0%}; PyHessian's tol {tolerance:g} (residual {residual:.1e})")  # fmt: skip
    times: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for seed in range(rounds):
        for method in ("auto", "hutchinson", "hutch++"):
            seconds, row = timed(lambda s=seed, m=method: ours(problem, m)(s))
            times.setdefault(f"this project, {method}", []).append(seconds)
            counts[f"this project, {method}"] = int(row["matvecs"])
            print(f"  {method}: λ_max {row['lambda_max']:.4f} residual {row['residual']:.0e} "
                  f"trace {row['trace']:.2f} ± {row['trace_se']:.2f}, {row['matvecs']:.0f} products, {seconds:.2f} s",
                  flush=True)  # fmt: skip
        torch.manual_seed(seed)
        counts["lambda"] = 0
        first, top = timed(lambda: curvlinops_lambda(problem, counts))
        second, trace = timed(lambda: curvlinops_trace(problem, probes))
        times.setdefault("curvlinops λ_max", []).append(first)
        times.setdefault("curvlinops λ_max + trace", []).append(first + second)
        counts["curvlinops λ_max"], counts["curvlinops λ_max + trace"] = counts["lambda"], counts["lambda"] + probes
        print(f"  curvlinops: λ_max {top:.4f} trace {trace:.2f}, {first:.2f} + {second:.2f} s", flush=True)
        first, computer = timed(lambda: pyhessian_computer(problem))
        second, (values, _) = timed(lambda c=computer: c.eigenvalues(maxIter=400, tol=tolerance))
        first += second
        second, drawn = timed(lambda c=computer: c.trace(maxIter=probes, tol=-1.0))
        times.setdefault("PyHessian λ_max", []).append(first)
        times.setdefault("PyHessian λ_max + trace", []).append(first + second)
        print(f"  PyHessian: λ_max {values[0]:.4f} trace {statistics.fmean(drawn):.2f}, {first:.2f} + {second:.2f} s",
              flush=True)  # fmt: skip
    fastest = statistics.median(times["this project, auto"])
    for contender, seconds in times.items():
        ratio = statistics.median(seconds) / fastest
        print(f"| {name} | {contender} | {spread(seconds)} | ×{ratio:.1f} | {counts.get(contender, '')} |")


def compare_by_product(rounds: int, pilot: int = 12) -> None:
    """The resnet18 row: this project in full, the packages by their time per product."""
    problem = Problem("resnet18")
    probes = probes_needed(problem, pilot)
    settings = CurvatureSettings(lanczos_steps=64, residual_tolerance=RESIDUAL)
    losses = {"loss": cross_entropy}
    data = (problem.inputs, problem.targets)
    own, linops, pyhessian = [], [], []
    operator, computer = curvlinops_operator(problem), pyhessian_computer(problem)
    vector = torch.randn(operator.shape[1])
    for seed in range(rounds):
        seconds, row = timed(
            lambda s=seed: measure_curvature(problem.model, *data, losses, settings=settings, seed=s)["loss"]
        )
        own.append(seconds)
        linops.append(timed(lambda: operator @ vector)[0])
        pyhessian.append(timed(lambda: computer.trace(maxIter=1))[0])
        print(f"  {row}")
    needed = int(row["matvecs"]) + probes
    print(f"| resnet18 | this project, auto | {spread(own)} | ×1 | {row['matvecs']:.0f} |")
    for contender, seconds in (("curvlinops", linops), ("PyHessian", pyhessian)):
        total = statistics.median(seconds) * needed
        print(f"| resnet18 | {contender} (a product: {spread(seconds)}) | {total:.0f} extrapolated "
              f"| ×{total / statistics.median(own):.1f} | {needed} = λ_max as above + {probes} probes |")  # fmt: skip


def quickstart_share(rounds: int) -> None:
    """Curvature's share of training and curvature time, by probes as before and as it is now."""
    losses = {"cross_entropy": build_loss("cross_entropy"), "training": build_loss("focal")}
    shared = {"samples": 128, "lanczos_steps": 6, "trace_probes": 4}
    kinds = {
        "6 + 4 products a loss, probes": CurvatureSettings(**shared, residual_tolerance=0.0, trace_method="hutchinson"),
        "now": CurvatureSettings(**shared, residual_tolerance=0.01),
    }
    evaluations = 2 * sum(count for _, count in RUNGS)
    epochs = 2 * (3 * 48 + 6 * 17 + 18 * 9)
    training, spent = 0.0, dict.fromkeys(kinds, 0.0)
    for name in ("mlp", "resnet8"):
        problem = Problem(name)
        training += problem.epoch_seconds * epochs / 2
        for label, settings in kinds.items():
            seconds = []
            for seed in range(rounds):
                arguments = (problem.model, problem.inputs, problem.targets, losses)
                took, row = timed(lambda a=arguments, s=settings, n=seed: measure_curvature(*a, settings=s, seed=n))
                seconds.append(took)
            spent[label] += statistics.median(seconds) * evaluations / 2
            errors = {loss: f"{values['trace_se'] / values['trace']:.1%}" for loss, values in row.items()}
            print(f"  {name}, {label}: {spread(seconds)} s an evaluation; the trace's standard error {errors}")
    for label, seconds_spent in spent.items():
        print(f"| quickstart | {label} | {seconds_spent:.1f} s of curvature, {training:.1f} s of training "
              f"| share {seconds_spent / (seconds_spent + training):.0%} | |")  # fmt: skip


def lanes_share(rounds: int, count: int = 8) -> None:
    """Processor time of lanes measured together, beside one by one, in turns within one run."""
    plain, problem, lanes = build_loss("cross_entropy"), Problem("mlp"), []
    for seed in range(count):
        torch.manual_seed(seed)
        model = build_model("mlp", tuple(problem.inputs.shape[1:]), 10)
        fit(model, problem.inputs, problem.targets, 20)
        losses = {"cross_entropy": plain, "training": build_loss("focal", gamma=1 + seed / 4)}
        lanes.append(Lane(model.eval(), losses, seed))
    data = problem.inputs, problem.targets
    for steps in (8, 32):
        settings = CurvatureSettings(samples=128, lanczos_steps=steps)
        ratios = []
        for _ in range(rounds):
            began = time.process_time()
            for lane in lanes:
                measure_curvature(lane.model, *data, lane.losses, settings=settings, seed=lane.seed)
            between = time.process_time()
            assert None not in measure_lanes(lanes, *data, settings=settings)
            ratios.append((between - began) / (time.process_time() - between))
        print(f"| lanes | {count} mlps, {steps} steps | one by one over together: ×{spread(ratios)} | | |")


def hardware() -> str:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {torch.get_num_threads()} thread(s), torch {torch.__version__}"


def main() -> None:
    """Run the chosen rows and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("mlp", "resnet8", "resnet18", "quickstart", "lanes")
    parser.add_argument("--rows", nargs="+", choices=names, default=list(names))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{hardware()}; {arguments.rounds} rounds; seconds: median [least, most]")
    print("| row | contender | seconds | ratio | products |\n|---|---|---|---|---|")
    for row in arguments.rows:
        if row == "quickstart":
            quickstart_share(arguments.rounds)
        elif row == "lanes":
            lanes_share(arguments.rounds)
        elif row == "resnet18":
            compare_by_product(min(arguments.rounds, 3))
        else:
            compare(row, arguments.rounds)


if __name__ == "__main__":
    main()
