"""Where a node of a sweep's own cluster listens, and what it is given."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.execution.cluster.cluster import create_token
from sweeper.execution.slurm.worker import address_here, environment, free_port, ray_folder


def test_an_interface_has_its_address_and_one_that_is_not_there_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPER_SLURM_INTERFACE", "lo")
    assert address_here() == "127.0.0.1"
    monkeypatch.setenv("SWEEPER_SLURM_INTERFACE", "ib9")
    with pytest.raises(SweeperError, match=r"interface 'ib9': this machine has .*lo"):
        address_here()


def test_a_port_is_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port("127.0.0.1")))


def test_a_node_has_the_sweep_s_token_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    monkeypatch.setenv("SWEEPER_SLURM_SCRATCH", str(tmp_path))
    found = environment(tmp_path / "token")
    assert found["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token") and found["RAY_AUTH_MODE"] == "token"
    assert "RAY_AUTH_TOKEN" not in found and "RAY_ADDRESS" not in found
    assert found["TMPDIR"] == str(tmp_path)
    monkeypatch.setenv("SWEEPER_SLURM_SCRATCH", str(tmp_path / "absent"))
    assert environment(tmp_path / "token").get("TMPDIR") != str(tmp_path / "absent")


def test_a_folder_of_ray_s_sockets_is_this_user_s_alone(tmp_path: Path) -> None:
    token = tmp_path / "token"
    create_token(token)
    folder = ray_folder(token).parent
    try:
        assert folder.stat().st_mode & 0o777 == 0o700 and ray_folder(token).parent == folder
        folder.chmod(0o777)  # as somebody may have made it before
        with pytest.raises(SweeperError, match="is somebody else's"):
            ray_folder(token)
    finally:
        shutil.rmtree(folder)
