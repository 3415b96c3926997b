"""Cores and memory that this process may use, by its affinity and its container's limits (cgroups v1 and v2).

Inside a container, the kernel shows the host's figures. A process that trusts `/proc/meminfo` is killed long before
that memory is used up. The limits of the process's own group and of all groups above it apply.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the number of cores that this process may use, at least one."""
    cores = len(os.sched_getaffinity(0))
    for group in _groups("cpu", cgroups, membership):
        # Version 1 has two files and -1 for no limit, version 2 one file and `max`.
        older = _words(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
        quota, period = _words(group / "cpu.max") or older or ("max", "")
        if quota not in ("max", "-1"):
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def fullest_memory(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> tuple[int, int]:
    """Return used and total bytes of the machine or its container, whichever is closer to its limit.

    Inactive file cache does not count as used, since the kernel reclaims it first.
    """
    return max(_memories(cgroups, membership), key=lambda memory: memory[0] / memory[1])


def free_memory(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the bytes of memory that are still free for this process in the machine and its container."""
    return max(0, min(total - used for used, total in _memories(cgroups, membership)))


def _memories(cgroups: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """Yield used and total bytes of the machine and of each group with a limit."""
    machine = psutil.virtual_memory()
    yield machine.total - machine.available, machine.total
    for group in _groups("memory", cgroups, membership):
        limit = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes") or ("max",)
        used = _words(group / "memory.current") or _words(group / "memory.usage_in_bytes")
        if limit[0] != "max" and used:
            yield int(used[0]) - _reclaimable(group), max(1, int(limit[0]))


def _groups(controller: str, cgroups: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of the groups whose limits apply to this process, from its own group upwards, for v1 and v2."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # no Linux, or no /proc
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = cgroups / controller if controllers else cgroups
        # Inside a container the path can be the host's, which is not mounted there; the mounted root is then its own
        # group.
        inside = mount / path.lstrip("/")
        yield from (group for group in (inside, *inside.parents) if group.is_dir() and group.is_relative_to(mount))


def _reclaimable(group: Path) -> int:
    lines = (line.split() for line in _text(group / "memory.stat").splitlines())
    counts = {words[0]: int(words[1]) for words in lines if len(words) == 2}
    return counts.get("total_inactive_file", counts.get("inactive_file", 0))


def _words(*files: Path) -> tuple[str, ...]:
    """Return the words in files. A file of the other cgroup version, or at the root, does not exist and has none."""
    return tuple(word for file in files for word in _text(file).split())


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
