"""Readable names of configurations, `focal (γ 1.9) · resnet8 · lr 0.12`, the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sweeper.text.cells import Row

LABELS = {
    "accuracy": "accuracy", "nll": "NLL", "brier": "Brier score", "ece": "ECE", "ada_ece": "equal-mass ECE",
    "mce": "MCE", "cw_ece": "class-wise ECE", "aurc": "AURC", "loss": "loss", "gamma": "γ", "nu": "ν",
    "refinement_nll": "refinement NLL", "refinement_brier": "refinement Brier score",
    "calibration_nll": "calibration NLL", "calibration_brier": "calibration Brier score",
    "smooth_ece": "smooth ECE", "cw_smooth_ece": "class-wise smooth ECE", "debiased_l2": "debiased L2 error",
    "cw_debiased_l2": "class-wise debiased L2 error", "ece_bias": "ECE if calibrated", "skce": "SKCE",
    "skce_p": "p of the SKCE test", "confidence_auroc": "AUROC of confidence", "augrc": "AUGRC",
    "alpha": "α", "val": "validation", "hessian_cross_entropy_lambda_max": "cross-entropy λ_max",
    "hessian_cross_entropy_trace": "cross-entropy Tr(H)",
}  # fmt: skip
"""Column names as the field writes them."""

AFTER_METHODS = ("cross_fitted_", "posthoc_")
"""What the names of metrics after a post-hoc method begin with."""

STATUS_WORDS = {
    "completed": "finished", "early_stopped": "stopped early", "failed": "failed", "running": "running",
    "waiting": "waiting", "interrupted": "interrupted",
}  # fmt: skip
"""A trial's status in words."""


def group(column: str) -> str:
    """Return the part of a configuration that a column belongs to, e.g. `loss` of `config_loss_gamma`."""
    return column.split("_")[1]


def in_order(columns: Iterable[str]) -> tuple[str, ...]:
    """Return `config_…` columns in reading order: the loss, the architecture, the rest; names come first."""
    order = {"loss": 0, "architecture": 1}
    return tuple(sorted(columns, key=lambda name: (order.get(group(name), 2), not name.endswith("_name"))))


def describe(row: Row, columns: Sequence[str]) -> str:
    """Return the values of `config_…` columns in a few words: `focal (γ 1.9) · resnet8 · lr 0.12`.

    Hyperparameters follow their component's name in parentheses if that name varies, too.
    """
    parts: list[str] = []
    inside: dict[str, list[str]] = {}
    for column in columns:
        value = row.get(column)
        if value is None:
            continue
        part, _, short = column.removeprefix("config_").partition("_")
        if short == "name":
            parts.append(f"{value}{{{part}}}")
            inside[part] = []
        elif part in inside:
            inside[part].append(f"{label(short)} {number(value)}")
        else:
            parts.append(f"{label(short)} {number(value)}")
    text = " · ".join(parts)
    for part, words in inside.items():
        text = text.replace(f"{{{part}}}", f" ({', '.join(words)})" if words else "")
    return text or "the only configuration"


def label(name: str) -> str:
    """Return a hyperparameter's or metric's name as the field writes it; a post-hoc method's comes after the metric."""
    method = next((name.removeprefix(start) for start in AFTER_METHODS if name.startswith(start)), None)
    metric = next((each for each in LABELS if method is not None and method.endswith(f"_{each}")), None)
    if method is not None and metric is not None:
        return f"{LABELS[metric]} after {method.removesuffix(f'_{metric}').replace('_', ' ')}"
    return LABELS.get(name, name.replace("_", " "))


def number(value: object) -> str:
    """Return a value in three significant digits where it is a float."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def plural(count: int, noun: str) -> str:
    """Return e.g. `1 trial`, `1,200 trials`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def short(name: str) -> str:
    """Return the readable name of a hyperparameter's column."""
    group, _, rest = name.removeprefix("config_").partition("_")
    return group if rest == "name" else label(rest)
