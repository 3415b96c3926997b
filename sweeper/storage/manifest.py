"""The manifest: versions, git commit, seeds, hardware, command; enough to reproduce the sweep."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from sweeper.space.spec import SweepSpec
from sweeper.text.redaction import redact_arguments
from trainables.files.container import usable_cores

PACKAGES = (
    *("calibration-sweeper", "torch", "torchvision", "timm", "scikit-learn", "numpy"),
    *("ray", "optuna", "mlflow", "pyarrow"),
)


def build_manifest(spec: SweepSpec, dataset_facts: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a sweep that is about to start.

    Args:
        spec: the sweep.
        dataset_facts: sizes of the splits and the hash of their indices.
    """
    rehearsal = {"rehearsal": list(spec.rehearsed)} if spec.is_rehearsal else {}
    return {
        **rehearsal,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": redact_arguments(sys.argv),
        "submitter": os.environ.get("SWEEPER_SUBMITTER", f"{user_name()}@{socket.gethostname()}"),
        "seed": spec.seed,
        "dataset": {**spec.dataset, **dataset_facts},
        "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "git": _git_commit(),
        "hardware": hardware(),
    }


def user_name() -> str:
    """Return who runs this process, `unknown` in a container whose user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def hardware() -> dict[str, Any]:
    """Return this machine's processor, number of cores it may use, memory and GPUs."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_gib": round(memory / 2**30, 1),
        "gpus": cards,
        "system": platform.platform(),
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> dict[str, Any] | None:
    """Return the commit of the code that runs, and whether it was changed since; `None` outside a repository."""
    folder = Path(__file__).resolve().parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
