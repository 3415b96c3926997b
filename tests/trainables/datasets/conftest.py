from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep every data set in a folder of the test."""
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path / "data"))
    return tmp_path / "data"
