"""Shards of images in an S3 server: copied to this machine, and nowhere else."""

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.remote.services import BUCKET, s3_server
from tests.trainables.stream_files import write_shards
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.shards import local_copy
from trainables.files.stores.object_store import Store

pytestmark = pytest.mark.integration


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3_server(tmp_path) as environment:
        for name, value in {**environment, "SWEEPER_DATA": str(tmp_path / "data")}.items():
            monkeypatch.setenv(name, value)
        folder = write_shards(tmp_path / "shards", "train", shards=2, samples=3)
        Store(f"s3://{BUCKET}/images").put_all({path.name: path for path in folder.iterdir()})
        yield f"s3://{BUCKET}/images"


def test_shards_are_copied_and_no_name_leaves_their_folder(address: str, tmp_path: Path) -> None:
    folder = local_copy(address)
    names = ["small-train-0000.tar", "small-train-0001.tar"]
    assert sorted(path.name for path in folder.glob("*.tar")) == names
    assert local_copy(f"{address}/") == folder
    with pytest.raises(DataSetUnavailableError, match=f"^{address}nothing: holds no shards"):
        local_copy(f"{address}nothing")
    client = boto3.client("s3")
    client.put_object(Bucket=BUCKET, Key="images/../../../evil.tar", Body=b"evil")
    with pytest.raises(
        DataSetUnavailableError, match=r"name is not a path below it: .*images/\.\./\.\./\.\./evil\.tar"
    ):
        local_copy(address)
    assert not list(tmp_path.rglob("evil.tar"))
    assert sorted(path.name for path in folder.glob("*.tar")) == names
