"""Synthetic results folders, written once a run of the tests and only read afterwards."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from sweeper.reporting.page import write_report
from tests.sweeper.random_sweep import RandomSweep, expected_rows
from tests.sweeper.synthetic_sweep import write_sweep

Shared = Callable[..., Path]


@pytest.fixture(scope="session")
def shared_sweep(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Return a function that gives a sweep with its report, made by the first process of this run that needs it."""
    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"

    def folder(place: str, **options: Any) -> Path:
        root = base / place
        root.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{root.parent}.lock"):
            if not root.exists():
                write_report(write_sweep(root, **options))
        return root

    return folder


@pytest.fixture(scope="session")
def quickstart_folder(shared_sweep: Shared) -> Path:
    """A finished sweep of 48 × 2 with successive halving, in a folder that holds nothing else."""
    return shared_sweep("finished/quickstart")


@pytest.fixture(scope="session")
def gamma_folder(shared_sweep: Shared) -> Path:
    """A grid over γ, 9 × 3, every trial trained to the end."""
    options = {"configurations": 9, "replicates": 3, "failures": 0, "samples": 200}
    return shared_sweep("grid/curvature_vs_gamma", space="gamma", **options)


@pytest.fixture(scope="session")
def live_folder(shared_sweep: Shared) -> Path:
    """A sweep in progress: of 16 trials, 3 run and 3 wait."""
    return shared_sweep("live/live", configurations=16, running=3, failures=1, samples=120)


@pytest.fixture(scope="session")
def losses_folder(shared_sweep: Shared) -> Path:
    """A grid over losses × 2 networks × 2 learning rates, every trial but one trained to the end."""
    return shared_sweep("losses/losses", space="losses", configurations=64, failures=1, samples=60)


@pytest.fixture
def random_sweep(tmp_path: Path) -> Any:
    """Return a function that makes a random sweep of a seed."""

    def make(seed: int = 0, name: str = "sweep", **options: Any) -> RandomSweep:
        return RandomSweep(tmp_path / f"{name}-{seed}", seed, **options)

    return make


@pytest.fixture
def expected() -> Any:
    """Return the naive projection of a journal."""
    return expected_rows
