"""Names of evaluation splits that are not the data set's own, as they stand in the column `split`."""

from __future__ import annotations

CORRUPTED, OTHER = "corrupted_", "other_"
"""What the names begin with."""

CORRUPTED_PATTERN = r"^corrupted_(.+)_([1-5])$"
"""The names of corrupted splits, with kind and severity, as a regular expression for SQL."""


def corrupted_name(kind: str, severity: int) -> str:
    """Return e.g. `corrupted_fog_3`."""
    return f"{CORRUPTED}{kind}_{severity}"


def corruption_of(name: str) -> tuple[str, int]:
    """Return kind and severity of the name of a corrupted split."""
    kind, _, severity = name.removeprefix(CORRUPTED).rpartition("_")
    return kind, int(severity)


def is_corrupted(name: str) -> bool:
    """Return whether a split is a corrupted one."""
    return name.startswith(CORRUPTED) and name[-2:-1] == "_" and name[-1:].isdigit()


def other_name(label: str) -> str:
    """Return e.g. `other_svhn`."""
    return f"{OTHER}{label}"
