"""Sweeps to track, and a store in each test's folder, empty, as MLflow makes it: copied, since that takes seconds."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from tests.sweeper.random_sweep import RandomSweep


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{made}").get_experiment_by_name("Default")
    return made


@pytest.fixture(autouse=True)
def store_at_hand(request: pytest.FixtureRequest) -> None:
    if "tmp_path" in request.fixturenames:
        shutil.copyfile(request.getfixturevalue("empty_store"), request.getfixturevalue("tmp_path") / "mlflow.db")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The address of that store."""
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def random_sweep(random_sweep: Callable[..., RandomSweep]) -> Callable[..., RandomSweep]:
    """Return a function that makes a random sweep with its `sweep.yaml`."""

    def make(*seed: int, **options: object) -> RandomSweep:
        sweep = random_sweep(*seed, **options)
        sweep.write_spec()
        return sweep

    return make
