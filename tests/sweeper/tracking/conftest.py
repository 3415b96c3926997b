"""A tracking store in each test's folder, empty, as MLflow makes it: copied, since making one takes it seconds."""

import shutil
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{made}").get_experiment_by_name("Default")
    return made


@pytest.fixture(autouse=True)
def store_at_hand(request: pytest.FixtureRequest) -> None:
    if "tmp_path" in request.fixturenames:
        shutil.copyfile(request.getfixturevalue("empty_store"), request.getfixturevalue("tmp_path") / "mlflow.db")
