"""The same behaviour in Azure as in S3, against Azurite."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.services import ACCOUNT_KEY, BUCKET, azure_server
from tests.remote.test_store import (  # noqa: F401  (collected here with this file's fixtures)
    test_a_trial_goes_on_from_checkpoints_in_the_store,
    test_an_object_is_created_once,
    test_objects_are_whole_listed_and_gone_when_deleted,
    test_one_driver_a_sweep,
    test_predictions_are_published_where_they_are,
    test_reading_fetches_only_what_has_changed,
)
from tests.running import write_space
from trainables.files.stores.base import StoreError
from trainables.files.stores.object_store import Store

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with azure_server(tmp_path_factory.mktemp("azure")) as environment, pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        patch.setenv("SWEEPER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield environment


@pytest.fixture
def store(service: dict[str, str], request: pytest.FixtureRequest) -> Store:
    return Store(f"az://{BUCKET}/{request.node.name.replace('[', '-').rstrip(']')}")


def test_a_wrong_container_is_one_sentence(service: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="its bucket does not exist"):
        Store("az://no-such-container/x").put("a", b"1")
    with pytest.raises(StoreError, match="its bucket does not exist"):
        Store("az://no-such-container/x").check()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY.replace("E", "F"))
    with pytest.raises(StoreError, match="it refuses the credentials") as refused:
        Store(f"az://{BUCKET}/x").put("a", b"1")
    assert "AZURE_STORAGE_ACCOUNT_KEY" in refused.value.remedy


def test_a_sweep_runs_into_a_container_and_is_read_from_it(service: dict[str, str], tmp_path: Path) -> None:
    space, output = write_space(tmp_path), f"az://{BUCKET}/team"
    for arguments in (["run", str(space), "--no-mlflow"], ["results", "small", "--format", "csv"]):
        done = subprocess.run(
            [sys.executable, "-m", "sweeper", *arguments, "--output", output],
            cwd=tmp_path, capture_output=True, text=True, timeout=300, env=dict(os.environ),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 1
    assert {"small/sweep.yaml", "small/manifest.json", "small/report.html"} <= Store(output).entries().keys()
