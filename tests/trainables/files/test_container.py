"""A container's own limits are what counts, in both versions of cgroups and at any level."""

import os
from pathlib import Path

import psutil
import pytest

from trainables.files.container import free_memory, fullest_memory, usable_cores


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def _v2(tmp_path: Path, membership: str, folder: str) -> tuple[Path, Path]:
    (tmp_path / "self").write_text(f"0::{membership}\n")
    gib = 2**30
    _write(
        tmp_path / "cgroup" / folder,
        memory__max=f"{4 * gib}\n",
        memory__current=f"{4 * gib}\n",
        memory__stat=f"anon {3 * gib}\ninactive_file {gib // 10}\n",
        cpu__max="100000 100000\n",
    )
    return tmp_path / "cgroup", tmp_path / "self"


def share(memory: tuple[int, int]) -> float:
    return memory[0] / memory[1]


@pytest.mark.parametrize(
    ("membership", "folder"),
    [("/", ""), ("/pod/box", "pod/box"), ("/pod/box", "pod"), ("/docker/not-mounted-here", "")],
    ids=["its own", "its own below the root", "the one above", "a path of the host's"],
)
def test_limits_of_version_2_hold_at_every_level(tmp_path: Path, membership: str, folder: str) -> None:
    files = _v2(tmp_path, membership, folder)
    assert share(fullest_memory(*files)) == pytest.approx(0.975)
    assert usable_cores(*files) == 1


def test_limits_of_version_1_hold(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("4:memory:/box\n1:cpu,cpuacct:/box\n0::/\n")
    _write(
        tmp_path / "cgroup/memory/box",
        memory__limit_in_bytes="1000\n",
        memory__usage_in_bytes="990\n",
        memory__stat="inactive_file 1\ntotal_inactive_file 20\n",
    )
    _write(tmp_path / "cgroup/cpu", cpu__cfs_quota_us="150000\n", cpu__cfs_period_us="100000\n")
    assert share(fullest_memory(tmp_path / "cgroup", tmp_path / "self")) == pytest.approx(0.97)
    assert free_memory(tmp_path / "cgroup", tmp_path / "self") == 30
    assert usable_cores(tmp_path / "cgroup", tmp_path / "self") == 1


def test_without_limits_the_machines_own_figures_count(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("4:memory:/\n1:cpu:/\n0::/\n")
    _write(tmp_path / "cgroup/memory", memory__limit_in_bytes=f"{2**63 - 4096}\n", memory__usage_in_bytes="990\n")
    _write(tmp_path / "cgroup/cpu", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    for membership in (tmp_path / "self", tmp_path / "missing"):
        assert share(fullest_memory(tmp_path / "cgroup", membership)) == pytest.approx(
            psutil.virtual_memory().percent / 100, abs=0.2
        )
        assert usable_cores(tmp_path / "cgroup", membership) == len(os.sched_getaffinity(0))
