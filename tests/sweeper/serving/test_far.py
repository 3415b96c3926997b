"""A server of sweeps in an object store: a page follows its journal there, trials and rows come from its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.remote.services import BUCKET, s3_server
from tests.running import SPACE, sweeper
from tests.sweeper.serving.server import served


@pytest.mark.integration
def test_sweeps_in_a_store_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.yaml").write_text(SPACE)
    (tmp_path / "s3").mkdir()
    monkeypatch.setenv("SWEEPER_CACHE", str(tmp_path / "cache"))  # a driver's folder there would take the name
    with s3_server(tmp_path / "s3") as environment:
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        output = f"s3://{BUCKET}/far"
        settings = ("--set", "samples=3", "--set", "replicates=1")
        sweeper("run", tmp_path / "small.yaml", "--output", output, "--no-mlflow", *settings, cwd=tmp_path)
        with served(output, tmp_path / "cache") as up:
            up.wait_for("/", "3 of 3", 60)
            page = up.wait_for("/sweeps/small/", 'id="manifest"', 120)
            assert "finished" in page
            assert up.ask("/sweeps/small/trials/0").status == 200
            assert "c00002" in up.ask("/sweeps/small/rows/trials.csv").text
            assert up.ask("/sweeps/none/").status == 404
