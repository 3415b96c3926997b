"""The two files that describe a sweep: write `manifest.json`, and read both it and `sweep.yaml`, even if damaged.

The manifest has versions, git commit, seeds, hardware and command: enough to reproduce the sweep. `sweep.yaml` is the
resolved search space.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from sweeper.core.display import redact_arguments
from sweeper.core.domains.values import Values, part_of
from sweeper.core.errors import SweeperError
from sweeper.space.catalogue import installed_registries
from sweeper.space.file import parse_written
from sweeper.space.spec import SweepSpec
from trainables.files.atomic import read_bytes
from trainables.files.container import usable_cores
from trainables.registry.names import QUANTITIES

#: Packages whose versions the manifest records, because they can change results.
PACKAGES = (
    *("calibration-sweeper", "torch", "torchvision", "timm", "scikit-learn", "numpy"),
    *("ray", "optuna", "mlflow", "pyarrow"),
)


#: Format number of a results folder: files, records, columns. Increase it with each change that breaks older readers.
FORMAT = 7

#: Key of the manifest that says which tracker the sweep was started with, see `sweeper.tracking.choice`.
TRACKER = "tracker"

#: Key of the manifest with the hyperparameters that are quantities under other names, see `Space.renamed_quantities`.
QUANTITIES_KEY = "quantities"


def build_manifest(spec: SweepSpec, dataset_facts: dict[str, Any]) -> dict[str, Any]:
    """Build the manifest of a sweep that is about to start.

    Args:
        spec: Search space of the sweep.
        dataset_facts: Sizes of the splits and the hash of their indices.
    """
    rehearsal = {"rehearsal": list(spec.rehearsed)} if spec.is_rehearsal else {}
    return {
        **rehearsal,
        "format": FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": redact_arguments(sys.argv),  # an address can contain a password
        "submitter": os.environ.get("SWEEPER_SUBMITTER", user_and_host()),
        "seed": spec.seed,
        "dataset": {**spec.dataset, **dataset_facts},
        QUANTITIES_KEY: spec.space.renamed_quantities(installed_registries().space),
        "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "git": _git_commit(),
        "hardware": hardware(),
    }


def user_and_host() -> str:
    """Return this process's `user@host`; the user is `unknown` in a container whose user id has no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def hardware() -> dict[str, Any]:
    """Return this machine's processor, usable cores, memory and GPUs."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_gib": round(memory / 2**30, 1),
        "gpus": gpus,
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
    """Return the commit of the running code, and whether files have changed since; `None` outside a repository."""
    folder = Path(__file__).resolve().parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    # If git hangs, for example on a network file system, the sweep must still start.
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


#: Size of the largest file that is read. Manifests and search spaces have some kilobytes, but somebody else's file can
#: have any size.
MAXIMUM_BYTES = 10_000_000

_PARTS = ("dataset", "evaluation", "header", "objective", "replicates", "scheduler", "searcher", "space")

#: Types that readers rely on: file → type → dotted keys, each of which may be missing.
_SHAPES: Mapping[str, Mapping[type, Sequence[str]]] = {
    "sweep.yaml": {
        dict: _PARTS,
        list: ("evaluation.posthoc", "rehearsed"),
        str: ("objective.metric", "objective.mode"),
        int: ("evaluation.bins", "replicates.count", "samples", "scheduler.max_epochs"),
    },
    "manifest.json": {
        dict: ("dataset", "extensions", "git", "hardware", QUANTITIES_KEY, "versions"),
        list: ("command",),
        str: ("created", "dataset.name", "git.commit", "submitter", TRACKER),
    },
}


def read_specification(path: Path, *, required: bool = False) -> Values:
    """Read a sweep's resolved search space; return an empty mapping if the file is missing.

    Raises SweeperError if the file is damaged, or missing although `required`.
    """
    if required and not os.path.lexists(path):
        raise SweeperError(
            f"the sweep in {path.parent} has no {path.name}: only its tables can be read",
            "restore the file from a backup; the journal can only be continued with its original search space",
        )
    return _read(path, parse_written)


def read_manifest(path: Path, *, unknown_if_damaged: bool = False) -> dict[str, Any]:
    """Read a sweep's manifest; return an empty mapping if the file is missing.

    Args:
        path: Manifest file.
        unknown_if_damaged: Also return an empty mapping if the file cannot be read.

    Raises:
        SweeperError: The file is damaged.
    """
    try:
        values = _read(path, _parse_json)
        try:
            started_at(values)
        except (ValueError, OverflowError) as error:
            raise _damaged(path, str(error)) from error
    except SweeperError:
        if unknown_if_damaged:
            return {}
        raise
    return values


def quantities_of(manifest: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return a manifest's `renamed_quantities`, without entries that no sweep writes."""
    columns = {column: of for column, of in manifest.get(QUANTITIES_KEY, {}).items() if isinstance(of, dict)}
    return {column: {name: q for name, q in of.items() if q in [*QUANTITIES]} for column, of in columns.items()}


def require_format(path: Path) -> None:
    """Raise SweeperError if a sweep's manifest names another format."""
    manifest = read_manifest(path, unknown_if_damaged=True)
    number, writer = manifest.get("format"), part_of(manifest, "versions", "calibration-sweeper")
    if number != FORMAT and (number is not None or "versions" in manifest):
        raise SweeperError(
            f"{path.parent} has format {number if number is not None else 'of before 5'}, written by version "
            f"{writer or 'unknown'}, and this version reads format {FORMAT}",
            "read it with the version that wrote it",
        )


def started_at(manifest: Mapping[str, object]) -> float | None:
    """Return when a sweep began, in Unix seconds; `None` if its manifest does not say.

    Raises ValueError or OverflowError for an invalid time.
    """
    if "created" not in manifest:
        return None
    created = datetime.fromisoformat(str(manifest["created"]))
    if not 1970 < created.year < 9999:  # at the limits, the year can be invalid in another time zone
        raise ValueError(f"its created is the year {created.year}")
    return (created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp()


def _parse_json(content: bytes) -> Any:
    """Parse JSON. Raises ValueError or RecursionError for invalid bytes and for integers beyond 64 bits."""
    # Larger integers would overflow Arrow's int64 columns later, far from the file that is at fault.
    return json.loads(content.decode("utf-8"), parse_int=_whole_number)


def _whole_number(text: str) -> int:
    number = int(text)
    if abs(number) >= 2**63:
        raise ValueError(f"{text[:20]}… is not a whole number of at most 64 bits")
    return number


def _read(path: Path, parse: Callable[[bytes], Any]) -> dict[str, Any]:
    try:
        values = parse(read_bytes(path, MAXIMUM_BYTES))
    except FileNotFoundError:
        return {}
    except PermissionError as error:
        raise SweeperError(f"{path} cannot be read: {error.strerror}", "ask its owner for access") from error
    except (OSError, ValueError, RecursionError) as error:
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise _damaged(path, reason) from error
    if not isinstance(values, dict):
        raise _damaged(path, "it is not a mapping")
    shapes = _SHAPES.get(path.name, {}).items()
    for place, expected in sorted((place, expected) for expected, places in shapes for place in places):
        value = part_of(values, *place.split("."))
        # bool is a subclass of int, and no key here is a flag.
        if value is not None and (not isinstance(value, expected) or isinstance(value, bool)):
            raise _damaged(path, f"its {place} is not valid")
    return values


def _damaged(path: Path, reason: str) -> SweeperError:
    return SweeperError(
        f"{path} is damaged: {reason}", "restore it from a backup, or remove it: results are readable without it"
    )
