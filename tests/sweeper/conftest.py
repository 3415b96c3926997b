"""Synthetic results folders, written once a run of the tests and only read afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sweeper.random_sweep import RandomSweep, expected_rows
from tests.sweeper.synthetic_sweep import write_sweep


@pytest.fixture(scope="session")
def quickstart_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of 48 × 2 with successive halving, in a folder that holds nothing else."""
    return write_sweep(tmp_path_factory.mktemp("finished") / "quickstart")


@pytest.fixture(scope="session")
def gamma_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid over γ, 9 × 3, every trial trained to the end."""
    folder = tmp_path_factory.mktemp("grid") / "curvature_vs_gamma"
    return write_sweep(folder, space="gamma", configurations=9, replicates=3, failures=0, samples=200)


@pytest.fixture(scope="session")
def live_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep in progress: of 16 trials, 3 run and 3 wait."""
    return write_sweep(tmp_path_factory.mktemp("live") / "live", configurations=16, running=3, failures=1, samples=120)


@pytest.fixture(scope="session")
def losses_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid over losses × 2 networks × 2 learning rates, every trial but one trained to the end."""
    folder = tmp_path_factory.mktemp("losses") / "losses"
    return write_sweep(folder, space="losses", configurations=64, failures=1, samples=60)


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
