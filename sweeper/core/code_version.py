"""A digest of the code that computes a trial's numbers: equal digests mean equal results, bit by bit."""

from __future__ import annotations

import functools
import hashlib
import platform
from importlib import metadata
from pathlib import Path

import trainables

NUMERICAL_PACKAGES = ("torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn")
"""The packages whose release can change a number of a trial."""


@functools.cache
def code_version() -> str:
    """Return 16 hexadecimal digits of everything that a trial runs: the sources of `trainables` and its packages.

    A commit would say less: it is the same for sources that were edited since, another for every change of the README,
    and an installed package has none.
    """
    root = Path(trainables.__file__).parent
    digest = hashlib.sha256(platform.python_version().encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for package in NUMERICAL_PACKAGES:
        digest.update(f"{package} {metadata.version(package)}\0".encode())
    return digest.hexdigest()[:16]
