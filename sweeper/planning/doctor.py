"""Checks of this machine: can it run a sweep, and if not, what to do."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SHARED_MEMORY_GIB = 0.5
DISK_GIB = 2.0
PACKAGES = ("torch", "ray", "mlflow-skinny", "pyarrow", "duckdb", "scikit-learn", "plotly")


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, whether it will do, and the remedy if not."""

    subject: str
    ok: bool
    finding: str
    remedy: str = ""


def checks() -> list[Check]:
    """Return all findings, in the order in which a sweep would hit them."""
    looks: list[Callable[[], Check]] = [_python, _packages, _images, _gpus, _shared_memory, _disk, _own_components]
    return [look() for look in looks]


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    return Check("Python", sys.version_info >= (3, 11), found, "install Python 3.11 or newer")


def _packages() -> Check:
    missing, found = [], []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    remedy = f"pip install -c constraints.txt {' '.join(missing)}"
    return Check("packages", not missing, ", ".join(missing or found), remedy)


def _images() -> Check:
    from trainables.extensions.libraries import register_missing_operators

    register_missing_operators()
    try:
        module = importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:
        return Check("torchvision", False, str(error), "install the torchvision that fits the installed torch")
    alone = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, check=False)
    if alone.returncode == 0:
        return Check("torchvision", True, f"{module.__version__} imports with this torch")
    said = (
        f"{module.__version__} is of another torch: sweeps add what it lacks, your own `import timm` would fail; "
        "`pip install --force-reinstall torchvision` of torch's own index mends that"
    )
    return Check("torchvision", True, said)


def _gpus() -> Check:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Check("GPUs", True, ", ".join(names) or "none: trials run on the CPU")


def _shared_memory() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("shared memory", True, "no /dev/shm: Ray uses the temporary directory, which is slower but works")
    free = shutil.disk_usage(folder).free / 2**30
    remedy = "in a container, set --shm-size=2g"
    return Check("shared memory", free >= SHARED_MEMORY_GIB, f"{free:.1f} GiB free in {folder}", remedy)


def _disk() -> Check:
    places = {Path.cwd(), Path(tempfile.gettempdir())}
    frees = {place: shutil.disk_usage(place).free / 2**30 for place in places}
    writable = all(os.access(place, os.W_OK) for place in places)
    finding = ", ".join(f"{free:.1f} GiB free at {place}" for place, free in sorted(frees.items()))
    return Check(
        "disk", writable and min(frees.values()) >= DISK_GIB, finding, "free space, or work in another directory"
    )


def _own_components() -> Check:
    """Import components that installed packages add, as a sweep that names them would."""
    from sweeper.space.catalogue import installed_registries
    from trainables.extensions.targets import NAME, entry_points

    registries = installed_registries()
    kinds = (*registries.space.values(), registries.datasets, registries.posthoc, registries.further_metrics)
    found, faults = [], []
    for registry in kinds:
        for name in entry_points(registry.group) if registry.group else ():
            fault = registry.fault(name) if NAME.fullmatch(name) else "use lower-case letters, digits and _"
            if fault is None and not registry.is_own(name):
                fault = "a built-in component has the same name"
            found.append(f"{registry.kind} {name}")
            faults += [f"{registry.kind} {name}: {fault}"] if fault else []
    finding = "; ".join(faults) or ", ".join(found) or "none: `sweeper spaces` lists built-in components"
    return Check("components of packages", not faults, finding, "fix or uninstall the package that adds it")
