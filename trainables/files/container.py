"""What this process may use of the machine: by its affinity, and by the limits of its container (cgroups v1 and v2).

The kernel gives a container the host's figures: `/proc/meminfo` shows the host's memory, so a process that minds them
is killed long before they are taken. Limits are those of the group that this process is in and of all groups above it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return how many cores this process may use, at least one."""
    cores = len(os.sched_getaffinity(0))
    for group in _groups("cpu", cgroups, membership):
        older = _words(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
        quota, period = _words(group / "cpu.max") or older or ("max", "")
        if quota not in ("max", "-1"):
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def fullest_memory(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> tuple[int, int]:
    """Return bytes taken and bytes there are, of the machine or of its container, whichever is nearer its end.

    What the kernel would give back first, cached files that nobody has touched for long, does not count as taken.
    """
    return max(_memories(cgroups, membership), key=lambda memory: memory[0] / memory[1])


def free_memory(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the bytes of memory that this process could still take, of the machine and of its container."""
    return max(0, min(total - used for used, total in _memories(cgroups, membership)))


def _memories(cgroups: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """Yield bytes taken and bytes there are, of the machine and of each group with a limit."""
    machine = psutil.virtual_memory()
    yield machine.total - machine.available, machine.total
    for group in _groups("memory", cgroups, membership):
        limit = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes") or ("max",)
        used = _words(group / "memory.current") or _words(group / "memory.usage_in_bytes")
        if limit[0] != "max" and used:
            yield int(used[0]) - _reclaimable(group), max(1, int(limit[0]))


def _groups(controller: str, cgroups: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of the groups whose limits hold for this process, from its own up, in either version."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # no Linux, or no /proc
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = cgroups / controller if controllers else cgroups
        # Inside a container the path may be the host's, which is not mounted there: what is there is then its own.
        inside = mount / path.lstrip("/")
        yield from (each for each in (inside, *inside.parents) if each.is_dir() and each.is_relative_to(mount))


def _reclaimable(group: Path) -> int:
    lines = (line.split() for line in _text(group / "memory.stat").splitlines())
    counts = {words[0]: int(words[1]) for words in lines if len(words) == 2}
    return counts.get("total_inactive_file", counts.get("inactive_file", 0))


def _words(*files: Path) -> tuple[str, ...]:
    """Return the words of files; none where they do not exist, as in the other version and at the root."""
    return tuple(word for file in files for word in _text(file).split())


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
