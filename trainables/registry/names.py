"""Suggestions for misspelled names, the columns of objectives, and the names of evaluation splits."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Quantities of the literature → symbol. A hyperparameter is one of them if its name is, or if it declares so; figures,
#: tables and labels read them from there, whatever a component calls its hyperparameter.
QUANTITIES = {"gamma": "γ", "coverage": "coverage", "nu": "ν", "alpha": "α", "tau": "τ"}

#: Similarity from which a name is suggested (`difflib.SequenceMatcher.ratio`, 0 to 1): `gama` and `gamma` have .89.
CUTOFF = 0.5


def nearest(value: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` with the nearest of `names`, or an empty text."""
    near = difflib.get_close_matches(str(value), list(names), n=1, cutoff=CUTOFF)
    return f"; did you mean {near[0]!r}?" if near else ""


def did_you_mean(value: str, names: tuple[str, ...]) -> str:
    """Return `; did you mean 'x'?` with the nearest of `names`, or all of them if none is near.

    Example:
        >>> did_you_mean("focl", ("brier", "focal"))
        "; did you mean 'focal'?"
    """
    known = f"; known: {', '.join(names)}" if names else ""
    return nearest(value, names) or known


def hint(value: str, names: Iterable[str]) -> str:
    """Return `did_you_mean` as a separate remedy: `did you mean 'x'?`."""
    return did_you_mean(value, tuple(names)).removeprefix("; ")


#: Prefix of columns of cross-fitted post-hoc methods. `posthoc_` columns come from one fit on all samples, so on the
#: split of the fit they would be too good.
CROSS_FITTED = "cross_fitted_"


def measured_as(metric: str) -> tuple[str, str]:
    """Return the split and the column of `evaluations` that hold an objective.

    `val_ece` is `ece` on `val`. On the split that a post-hoc method is fitted on, its cross-fitted metric is used. The
    Hessian is measured on validation data alone, so its name has no split.

    Example:
        >>> measured_as("val_posthoc_temperature_ece")
        ('val', 'cross_fitted_temperature_ece')
        >>> measured_as("hessian_training_trace")
        ('val', 'hessian_training_trace')
    """
    if metric.startswith("hessian_"):
        return "val", metric
    split, _, column = metric.partition("_")
    if split == "val" and column.startswith("posthoc_"):
        column = CROSS_FITTED + column.removeprefix("posthoc_")
    return split, column


#: Prefixes of corrupted and of other (out-of-distribution) splits.
CORRUPTED, OTHER = "corrupted_", "other_"

#: Names of corrupted splits with kind and severity, as a regular expression for SQL.
CORRUPTED_PATTERN = r"^corrupted_(.+)_([1-5])$"


def corrupted_name(kind: str, severity: int) -> str:
    """Return the name of a corrupted split, e.g. `corrupted_fog_3`."""
    return f"{CORRUPTED}{kind}_{severity}"


def corruption_of(name: str) -> tuple[str, int]:
    """Return kind and severity of a corrupted split's name."""
    # From the right: kinds contain underscores, as `gaussian_noise` does.
    kind, _, severity = name.removeprefix(CORRUPTED).rpartition("_")
    return kind, int(severity)


def is_corrupted(name: str) -> bool:
    """Return whether `name` is the name of a corrupted split."""
    return name.startswith(CORRUPTED) and name[-2:-1] == "_" and name[-1:].isdigit()


def other_name(label: str) -> str:
    """Return the name of an evaluation split from another data set, e.g. `other_svhn`."""
    return f"{OTHER}{label}"
