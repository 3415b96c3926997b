"""How far metrics, post-hoc methods, sets, corruptions and curvature are from independent packages: n, worst error.

`make bench-oracles` installs what tests/benchmarks/oracles.txt names into build/oracles and prints a table in Markdown;
`python -m tests.benchmarks.bench_oracles [--cases 20]` does so with what is installed, and names what is missing.
"""

import argparse
import logging
import warnings
from importlib.metadata import PackageNotFoundError, version

import torch

from tests.benchmarks.oracles import Comparison, curvature, metrics, networks, posthoc, predictive

COMPARISONS: tuple[tuple[str, Comparison], ...] = (
    ("dense matrices", curvature.of_dense),
    ("curvlinops-for-pytorch", curvature.of_curvlinops),
    ("hessian-eigenthings", curvature.of_eigenthings),
    ("plain gradients of torchvision", networks.of("torchvision")),
    ("plain gradients of timm", networks.of("timm")),
    ("plain gradients of transformers", networks.of("transformers")),
    ("plain loops", metrics.of_loops),
    ("scipy", metrics.of_scipy),
    ("scikit-learn", metrics.of_scikit_learn),
    ("torchmetrics", metrics.of_torchmetrics),
    ("netcal", metrics.of_netcal),
    ("torch-uncertainty", metrics.of_torch_uncertainty),
    ("relplot", metrics.of_relplot),
    ("uncertainty-calibration", metrics.of_uncertainty_calibration),
    ("probmetrics", metrics.of_probmetrics),
    ("plain loops", posthoc.of_loops),
    ("scipy", posthoc.of_scipy),
    ("scikit-learn", posthoc.of_scikit_learn),
    ("netcal", posthoc.of_netcal),
    ("torch-uncertainty", posthoc.of_torch_uncertainty),
    ("probmetrics", posthoc.of_probmetrics),
    ("venn-abers", posthoc.of_venn_abers),
    ("torch-uncertainty", predictive.of_torch_uncertainty),
    ("torchcp", predictive.of_torchcp),
    ("mapie", predictive.of_mapie),
    ("scipy", predictive.of_scipy),
    ("imagecorruptions", predictive.of_imagecorruptions),
)
"""The package as pip names it, and a comparison with it."""


def release(name: str) -> str:
    """Return the package's name and version."""
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return name


def worst_of(compare: Comparison, cases: int) -> dict[str, tuple[int, float]]:
    """Return how many cases of each measure were compared, and the worst difference."""
    found: dict[str, tuple[int, float]] = {}
    for seed in range(cases):
        for measure, difference in compare(seed):
            count, worst = found.get(measure, (0, 0.0))
            found[measure] = count + 1, max(worst, abs(float(difference)))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20)
    cases = parser.parse_args().cases
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print("| measure | oracle | n | worst difference |\n|---|---|---|---|")
    for name, compare in COMPARISONS:
        try:
            found = worst_of(compare, cases)
        except ImportError as error:
            print(f"| – | {name} | 0 | cannot be imported: {error} |", flush=True)
            continue
        for measure, (count, worst) in found.items():
            print(f"| {measure} | {release(name)} | {count} | {worst:.1e} |", flush=True)


if __name__ == "__main__":
    main()
